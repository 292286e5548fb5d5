"""An agent as a tool of another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ._context import ToolContext
from ._errors import OrderError, PauseSignal, ToolFailed, TurnAborted
from ._events import ApprovalRequested, Event, SubAgentEvent
from ._frames import SessionFrame, TurnFrame
from ._onion import Onions
from ._order import PHASES
from ._session import Session
from ._tools import Tool, tool

if TYPE_CHECKING:
    from ._agent import Agent

DEPTH = 5
"""How deep sub-agents may call each other."""


def as_tool(agent: Agent[Any, Any], name: str, description: str | None, inherit: tuple[str, ...]) -> Tool:
    """Return the tool that hands a task to `agent`.

    Raises:
        OrderError: there is no such phase to inherit.
    """
    unknown = [phase for phase in inherit if phase not in PHASES]
    if unknown:
        raise OrderError(f"as_tool(inherit=…): there is no phase {unknown[0]!r}; the phases are {', '.join(PHASES)}")

    async def delegate(task: str, ctx: ToolContext) -> str:
        turn: TurnFrame = ctx._turn
        if turn.session.depth + 1 > DEPTH:
            raise ToolFailed(f"sub-agents are {DEPTH} deep already; {name!r} was not called", tool=name)
        session = Session(agent, f"{turn.session.id}/{ctx.call_id}", turn.session.user, turn.deps, None, parent=turn)
        async with session:
            frame = session._open_frame("run")
            frame.onions = _wrapped(agent, frame, turn, inherit)
            frame.listen(_bubble(frame))
            if turn.sink is not None:
                frame.delta_listeners += 1
            if frame.is_resumed and not frame.has_open_turn:
                return _last_text(frame)  # it had its answer when the process ended
            try:
                result = await (session.resume(_decisions(ctx, session)) if frame.has_open_turn else session.run(task))
            except TurnAborted as error:
                if _is_inherited(turn, error.by, inherit):
                    raise turn.abort(error.reason, error.by) from error
                raise
            if result.status == "paused":
                _pause(ctx, turn, session)
        if result.status != "completed":
            raise ToolFailed(
                f"agent {name!r} ended as {result.status}: {result.reason}. {result.text}".strip(), tool=name
            )
        return result.text

    text = description or f"Hand a task to the agent {name}. It knows nothing of this conversation."
    return tool(name=name, description=text, idempotent=True)(delegate)


def _decisions(ctx: ToolContext, session: Session[Any]) -> dict[str, Any]:
    """Return what was decided about calls of the sub-agent that are still waiting."""
    prefix = f"{ctx.call_id}/"
    given = ctx._turn.decisions
    waiting = [call.call_id for call in session.pending]
    return {call_id: given[prefix + call_id][1] for call_id in waiting if prefix + call_id in given}


def _pause(ctx: ToolContext, turn: TurnFrame, session: Session[Any]) -> None:
    """Let the caller's turn wait for the decisions that its sub-agent waits for.

    Raises:
        PauseSignal: always.
    """
    for call in session.pending:
        where = f"{ctx.call_id}/{call.call_id}"
        facts = (where, call.tool, call.args, call.reason, call.by, call.expires, call.fingerprint)
        turn.session.record(ApprovalRequested, *facts, call.scopes, call.covers)
    turn.pausing = {*(turn.pausing or ()), ctx.call_id}
    raise PauseSignal(f"sub-agent {session._agent.name} waits for decisions")


def _last_text(frame: SessionFrame) -> str:
    last = frame.history[-1] if frame.history else None
    return last.text if last is not None and last.role == "assistant" else ""


def _bubble(frame: SessionFrame) -> Callable[[Event], Awaitable[None]]:
    """Return a listener that shows the events of a sub-agent's session to its parent's."""
    parent = frame.parent

    async def listener(event: Event) -> None:
        if parent is not None:
            if isinstance(event, SubAgentEvent):
                parent.session.record(SubAgentEvent, event.path, event.event)
            else:
                parent.session.record(SubAgentEvent, frame.path, event)
            await parent.session.deliver()

    return listener


def _is_inherited(turn: TurnFrame, plugin: str, inherit: tuple[str, ...]) -> bool:
    """Return whether a plugin that aborted the child is one of the caller's: then it meant the caller too."""
    layers = [*turn.onions.layers["model"], *turn.onions.layers["tool"]]
    return any(layer.plugin == plugin and layer.phase in inherit for layer in layers)


def _wrapped(agent: Agent[Any, Any], frame: SessionFrame, turn: TurnFrame, inherit: tuple[str, ...]) -> Onions:
    """Return the child's onions with the parent's layers of the inherited phases around them."""
    from ._agent import compile_stack

    own = (frame.onions or frame.agent.onions).layers
    key = (id(turn.onions), id(own), inherit)
    found: Onions | None = agent._onions.get(key)
    if found is None:
        layers = dict(own)
        for hook in ("model", "tool"):
            outer = [layer for layer in turn.onions.layers[hook] if layer.phase in inherit]
            taken = {(layer.plugin, layer.phase) for layer in outer}
            inner = [layer for layer in own[hook] if (layer.plugin, layer.phase) not in taken]
            layers[hook] = (*outer, *inner)
        found = agent._onions[key] = compile_stack(layers)
    return found
