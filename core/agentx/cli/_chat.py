"""The chat itself: read, run a turn or a command, read again."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any

from agentx._errors import SessionClosedError
from agentx._models import model_name
from agentx._result import RunResult

from ._chat_view import ChatView
from ._exits import Exit, describe, exit_of_error, exit_of_status
from ._lines import ending
from ._plain_view import PlainView
from ._prompt import Prompt, history_file
from ._screen import count, note, out, print_error, styled
from ._slash import COMMANDS, Slash
from ._turns import Cancelled, Conversation


class Chat:
    """A conversation with a person at a terminal, or with lines from a pipe."""

    def __init__(self, conversation: Conversation, *, markdown: bool | None, remembers: bool) -> None:
        self.conversation = conversation
        self.cost: Decimal | None = None
        self._is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._markdown = self._is_interactive if markdown is None else markdown
        self._prompt = Prompt(history_file() if remembers else None, [f"/{name}" for name in COMMANDS])
        self._slash = Slash(self)
        self._code = Exit.OK

    def run(self) -> int:
        """Talk until the person leaves; return 0, or how the last turn ended if nobody was there to see it."""
        if self._is_interactive:
            self._greet()
        leaving = False
        while True:
            try:
                text = self._prompt.read()
            except KeyboardInterrupt:
                if leaving and not self._prompt.typed:
                    break
                leaving = not self._prompt.typed
                note("\n(Ctrl-C again, Ctrl-D or /exit to leave)" if leaving else "", "dim")
                continue
            leaving = False
            if text is None:
                break
            if text and not self._answer(text):
                break
        if self._is_interactive:
            out().print()
        return Exit.OK if self._is_interactive else self._code

    def _answer(self, text: str) -> bool:
        """Answer one message; `False` ends the chat."""
        if text.startswith("/") and not text.startswith("//"):
            return self._slash.run(text)
        try:
            result = self._turn(text.removeprefix("/") if text.startswith("//") else text)
        except (Cancelled, KeyboardInterrupt):
            self._code = Exit.CANCELLED
            note("cancelled")
        except BrokenPipeError:
            raise
        except Exception as error:
            self._code = exit_of_error(error)
            print_error(describe(error))
            return not isinstance(error, SessionClosedError)
        else:
            self._code = exit_of_status(result.status)
            if result.cost is not None:
                self.cost = (self.cost or Decimal(0)) + result.cost
            end = ending(result)
            if end is not None:
                note(*end)
        return True

    def _turn(self, text: str) -> RunResult[Any]:
        if self._markdown:
            return self.conversation.turn(text, ChatView(out()))
        plain = PlainView(sys.stdout, streams=True, tells=True)
        result = self.conversation.turn(text, plain)
        plain.print_answer(result.text)
        return result

    def _greet(self) -> None:
        agent = self.conversation.agent
        active = [row for row in agent.plugins if row.status == "enabled"]
        model = agent.model if isinstance(agent.model, str) else model_name(agent.model)
        line = f"agentx · {model} · {count(len(active), 'plugin')} · /help, Ctrl-D leaves"
        out().print(styled(line, "dim"), soft_wrap=True)
