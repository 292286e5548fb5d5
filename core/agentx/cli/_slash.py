"""The commands of a chat: lines that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from agentx._errors import AgentxError
from agentx._models import model_name, split_model_id

from ._exits import describe
from ._screen import Column, note, out, print_error, print_table, styled

if TYPE_CHECKING:
    from ._chat import Chat

COMMANDS: Mapping[str, str] = {
    "help": "show this",
    "plugins": "list the plugins",
    "tools": "list the tools the model has",
    "usage": "show what this session has used",
    "model": "show the model, or change it: /model provider/name",
    "new": "begin a new session",
    "exit": "leave",
}
_ALIASES = {"quit": "exit", "q": "exit", "?": "help"}


class Slash:
    """Runs the commands of one chat."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._chosen: Any = None
        """The model of `/model`, once there was one."""

    def run(self, text: str) -> bool:
        """Run a command; `False` ends the chat."""
        name, _, rest = text[1:].partition(" ")
        name = _ALIASES.get(name, name)
        if name == "exit":
            return False
        command: Callable[[str], None] | None = getattr(self, f"_{name}", None) if name in COMMANDS else None
        if command is None:
            near = get_close_matches(name, COMMANDS, 1)
            hint = f"did you mean /{near[0]}?" if near else "/help lists them"
            note(f"there is no command /{name}: {hint} (a message that begins with a slash: //…)")
            return True
        try:
            command(rest.strip())
        except (AgentxError, click.ClickException, ValueError) as error:
            print_error(describe(error))
        return True

    def _help(self, _: str) -> None:
        for name, what in COMMANDS.items():
            out().print(styled(f"  /{name:9}", "bold").append(what, style="not bold"))
        out().print(styled('  \\ at the end of a line, or """ around lines: a message of several lines; //: a slash'))

    def _plugins(self, _: str) -> None:
        from ._listing import show_rows

        show_rows([row.to_json() for row in self._chat.conversation.agent.plugins])

    def _tools(self, _: str) -> None:
        session = self._chat.conversation.session
        box = session._open_frame("tools").toolbox
        rows = [
            [name, box.owner(name) or "", " ".join(tool.description.split()[:20])] for name, tool in box.tools().items()
        ]
        if not rows:
            out().print(styled("the model has no tools (agentx chat -t module:function)"))
            return
        print_table([Column("tool", style="bold"), Column("owner", drop=1), Column("description")], rows)

    def _usage(self, _: str) -> None:
        usage = self._chat.conversation.session.usage
        cost = "unknown" if self._chat.cost is None else f"{self._chat.cost} USD"
        cached = f" ({usage.cache_read_tokens} more from the cache)" if usage.cache_read_tokens else ""
        about = " (estimated)" if usage.estimated else ""
        out().print(styled(f"model calls  {usage.requests}"))
        out().print(styled(f"tokens       {usage.input_tokens} in{cached}, {usage.output_tokens} out{about}"))
        out().print(styled(f"cost         {cost}"))

    def _model(self, wanted: str) -> None:
        from ._agents import choose_model

        conversation = self._chat.conversation
        if wanted:
            model = choose_model(wanted)
            if isinstance(model, str):
                prefix, name = split_model_id(model)
                conversation.call(lambda: conversation.agent.stack().provider(prefix).model(name))
            conversation.call(lambda: conversation.session.configure(model=model))
            self._chosen = model
        model = self._chosen or conversation.agent.model
        out().print(styled(model if isinstance(model, str) else model_name(model)))

    def _new(self, _: str) -> None:
        self._chat.conversation.renew()
        self._chosen = None
        self._chat.cost = None
        out().print(styled("a new session", "dim"))
