"""`agentx chat`: one turn after the other. Ctrl-C ends the turn; at an idle prompt a second one ends the chat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ._agents import agent_options, plugin_options
from ._command import command as make_command

if TYPE_CHECKING:
    from ._agents import Choice


@make_command("chat")
@agent_options
@click.option("--markdown/--no-markdown", default=None, help="Render Markdown; by default on a terminal only.")
@click.option("--no-history", is_flag=True, help="Do not remember what is typed for the next chat.")
@plugin_options
def command(
    model: str | None,
    tools: tuple[str, ...],
    instructions: str,
    markdown: bool | None,
    no_history: bool,
    choice: Choice,
) -> int:
    """Talk with an agent, turn after turn.

    Several lines: end a line with a backslash, or put the message between two lines of three double quotes; a pasted
    text is one message. /help shows the commands.
    """
    from ._agents import choose_model, make_agent
    from ._chat import Chat
    from ._log import show_log
    from ._turns import opened

    show_log()
    agent = make_agent(choice, choose_model(model), tools, instructions)
    with opened(agent) as conversation:
        return Chat(conversation, markdown=markdown, remembers=not no_history).run()
