"""The calls of a response: read, run and closed. Each gets exactly one result, whatever happens.

`run_tool` is the core of the tool onion.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

import attrs
import msgspec

from ._approval import approve
from ._codec import clean_text, encode
from ._context import ToolContext
from ._errors import AbortSignal, CodecError, HookError, PauseSignal, StopSignal, ToolFailed
from ._events import ToolCallEvent, ToolResultEvent, ToolStart
from ._frames import Stop, ToolFrame, TurnFrame
from ._hookspecs import Layer, place_of
from ._host import is_cancellation
from ._ledger import Holds, Refusal, reserve, settle
from ._messages import Message, ModelResponse, Part, TextPart, ToolCall, ToolResult
from ._onion import DONE, CallNext, annotate, collapse, note_failure
from ._parallel import run_all
from ._tools import Tool

PARALLEL = 32
"""Tool calls of one step that run at once."""
EXCERPT = 500
UNKNOWN_OUTCOME = "outcome unknown: the process ended while this call ran; it was not run again"
NO_TOOL = "there is no tool"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_decode = msgspec.json.decode
Parsed = list[tuple[ToolCall, dict[str, Any] | None, str]]
"""Each call with its arguments as an object, or with what is wrong with them."""


# What the model wrote


def _clean(text: str) -> str:
    return text if text.isascii() and "\0" not in text else clean_text(text)


def whole(response: ModelResponse, index: int) -> tuple[ModelResponse, Parsed]:
    """Return a response as it may enter the history: valid text, distinct call ids, arguments that are objects."""
    parsed: Parsed = []
    parts: list[Part] = []
    seen: set[str] = set()
    changed = False
    for part in response.parts:
        fixed = part
        if isinstance(part, TextPart):
            text = _clean(part.text)
            if text is not part.text:
                fixed = attrs.evolve(part, text=text)
        elif isinstance(part, ToolCall):
            fixed, args, problem = _parse_call(part, seen, index)
            parsed.append((attrs.evolve(fixed, arguments=part.arguments) if problem else fixed, args, problem))
            seen.add(fixed.id)
        changed = changed or fixed is not part
        parts.append(fixed)
    return (attrs.evolve(response, parts=tuple(parts)) if changed else response), parsed


def _parse_call(call: ToolCall, seen: set[str], index: int) -> tuple[ToolCall, dict[str, Any] | None, str]:
    """Return a call as every provider takes it back: a valid name, an id of its own, an object as arguments."""
    call_id = _clean(str(call.id or ""))
    if not call_id or call_id in seen:
        call_id = f"{call_id or 'call'}_{index}_{len(seen)}"
    given = _as_text(call.arguments)
    args, problem = parse_arguments(given)
    text = _clean(given) if args and not problem else "{}"
    name = call.name
    if not _NAME.fullmatch(name):
        args, problem, text = None, f"{NO_TOOL} {_clean(name)[:64]!r} here", "{}"
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unnamed"
    if call_id != call.id or text != call.arguments or name != call.name:
        call = attrs.evolve(call, id=call_id, name=name, arguments=text)
    return call, args, problem


def _as_text(arguments: Any) -> str:
    """Return arguments as the JSON text they should be; models of others give bytes, objects or nothing."""
    if isinstance(arguments, str):
        return arguments
    if arguments is None:
        return ""
    if isinstance(arguments, bytes):
        return arguments.decode(errors="replace")
    try:
        return encode(arguments).decode()
    except CodecError:
        return repr(arguments)


def parse_arguments(text: str) -> tuple[dict[str, Any] | None, str]:
    """Return the object that a call's arguments mean, or what is wrong with them.

    Nothing and `null` mean no arguments; of a key that is there twice the last one counts.
    """
    try:
        value = _decode(text)
    except Exception as error:
        if text.strip() == "":
            return {}, ""
        try:
            value = json.loads(_clean(text), parse_constant=_no_constant)
        except Exception:
            return None, f"the arguments are not valid JSON ({error}): {_clean(text)[:EXCERPT]}"
    if isinstance(value, dict):
        return value, ""
    if value is None:
        return {}, ""
    kind = {list: "a list", str: "a string", bool: "a boolean"}.get(type(value), "a number")
    return None, f"the arguments are {kind}, not an object: {_clean(text)[:EXCERPT]}"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def cleaned(message: Message) -> Message:
    """Return a message whose text every store can hold."""
    for part in message.parts:
        if isinstance(part, TextPart) and _clean(part.text) is not part.text:
            parts = [attrs.evolve(p, text=_clean(p.text)) if isinstance(p, TextPart) else p for p in message.parts]
            return Message("user", tuple(parts))
    return message


# Running it


async def run_tools(turn: TurnFrame, parsed: Parsed) -> None:
    """Run the calls of a response; each gets exactly one result, in one message, whatever happens."""
    session = turn.session
    for call, _, problem in parsed:
        if call.id in turn.announced:
            continue
        text = call.arguments if not problem else _clean(_as_text(call.arguments))[:EXCERPT]
        session.record(ToolCallEvent, call.id, call.name, text)
    if not session.quiet:
        await session.deliver()
    try:
        tools = turn.prefix()[3]
        if len(parsed) == 1 and not turn.is_resumed:
            await run_call(turn, tools, 0, *parsed[0])
        else:
            await _run_batches(turn, tools, parsed)
        if turn.scope.may_be_cancelled():
            await turn.scope.check()
    except BaseException as error:
        error = collapse(error)
        close_calls(turn, error)
        if turn.scope.signal is not None and not is_cancellation(error):
            raise turn.scope.signal
        raise error
    is_waiting = len(turn.results or ()) < len(parsed)
    if is_waiting and turn.stop is not None:
        close_calls(turn, StopSignal(turn.stop.reason))
    elif is_waiting:
        _pause(turn, parsed)
    else:
        _append_results(turn, parsed)
    if not session.quiet:
        await session.commit("tool.result")


def _pause(turn: TurnFrame, parsed: Parsed) -> None:
    """End the turn for now: some of its calls wait for a decision, or for calls that do."""
    results = turn.results or {}
    turn.waiting = tuple([call.id for call, _, _ in parsed if call.id not in results])
    what = "a decision about a call" if len(turn.waiting) == 1 else f"decisions about {len(turn.waiting)} calls"
    turn.outcome, turn.open_calls = Stop("paused", f"waiting for {what}", ""), None


def _append_results(turn: TurnFrame, parsed: Parsed) -> None:
    results, turn.open_calls = turn.results or {}, None
    turn.session.history.append(Message("tool", tuple([results[call.id] for call, _, _ in parsed])))


async def _run_batches(turn: TurnFrame, tools: Mapping[str, Tool], parsed: Parsed) -> None:
    for batch in _batches(tools, parsed):
        if turn.waiting:
            return
        if turn.results:
            batch = [index for index in batch if parsed[index][0].id not in turn.results]
        if not batch:
            continue
        if len(batch) == 1:
            index = batch[0]
            await run_call(turn, tools, index, *parsed[index])
            continue
        turn.batch = {}
        try:
            await run_all([partial(_run_beside, turn, tools, index, *parsed[index]) for index in batch], PARALLEL)
        finally:
            turn.batch = None


async def _run_beside(turn: TurnFrame, *call: Any) -> None:
    """Run a call in a task of its own. asyncio stops its whole loop for a KeyboardInterrupt in one."""
    try:
        await run_call(turn, *call)
    except KeyboardInterrupt as error:
        turn.scope.signal = error
        raise StopSignal("interrupted") from None


def _batches(tools: Mapping[str, Tool], parsed: Parsed) -> Iterator[list[int]]:
    """Yield which calls run together: a tool that is not `parallel` is a barrier."""
    batch: list[int] = []
    for index, (call, _, _) in enumerate(parsed):
        tool = tools.get(call.name)
        if tool is None or tool.parallel:
            batch.append(index)
            continue
        if batch:
            yield batch
        yield [index]
        batch = []
    if batch:
        yield batch


async def run_call(
    turn: TurnFrame, tools: Mapping[str, Tool], index: int, call: ToolCall, args: dict[str, Any] | None, problem: str
) -> None:
    """Bring one call to its result, through the tool onion where the call can run at all."""
    tool = tools.get(call.name)
    refused = _refused(turn, tools, tool, call, problem)
    if refused is not None or tool is None or args is None:
        _settle_call(turn, call, refused or _result(call, "error", problem))
        return
    if call.id in turn.started and not tool.idempotent:
        _settle_call(turn, call, _result(call, "unknown", UNKNOWN_OUTCOME))
        return
    if call.id in turn.held:
        turn.waiting = (*turn.waiting, call.id)
        return
    frame = ToolFrame(turn, turn.scope, tool, args, call, index, args)
    try:
        result = await turn.onions.tool(frame)
        if turn.pausing and call.id in turn.pausing:  # whatever a layer made of it, nobody has decided
            raise PauseSignal("waiting for a decision")
    except ToolFailed as failure:
        result = _result(call, failure.status, str(failure))
    except PauseSignal:
        turn.waiting = (*turn.waiting, call.id)
        return
    except Exception as error:
        annotate(error, "tool", frame, turn.onions.layers["tool"])
        raise
    _settle_call(turn, call, result)
    if not turn.session.quiet:
        await turn.session.deliver()


def _refused(
    turn: TurnFrame, tools: Mapping[str, Tool], tool: Tool | None, call: ToolCall, problem: str
) -> ToolResult | None:
    """Return the result of a call that does not enter the onion."""
    if turn.stop is not None:
        return _result(call, "skipped", f"skipped: {turn.stop.reason}")
    unknown = problem if problem.startswith(NO_TOOL) else f"{NO_TOOL} {call.name!r} here"
    hidden = turn.offered is not None and call.name not in turn.offered
    if unknown is problem or tool is None or hidden or _is_deferred(turn, tool):
        offered = [name for name in tools if turn.offered is None or name in turn.offered]
        return _result(call, "error", f"{unknown}; the tools are: {', '.join(offered) or 'none'}")
    return _result(call, "error", problem) if problem else None


def _is_deferred(turn: TurnFrame, tool: Tool) -> bool:
    return tool.deferred and tool.name in turn.session.toolbox.deferred()


async def run_tool(frame: ToolFrame, outer: CallNext | None = None) -> ToolResult:
    """Run a tool. The innermost part of the tool onion."""
    holds: Holds = []
    try:
        turn, tool, call = frame.turn, frame.tool, frame.call
        unchanged = frame.args is frame.given and call.arguments
        args = tool.decode(call.arguments) if unchanged else tool.validate(frame.args)
        if tool.requires_approval and turn.stop is None and _needs_approval(tool, args):
            await approve(frame, "the tool asks for an approval", f"tool {tool.name}", None)
            args = tool.validate(frame.args)
        result, holds = _admit(frame)
        if result is None:
            session = turn.session
            session.record(ToolStart, call.id, tool.name, frame.args)
            if not session.quiet:
                await session.commit("tool.start")
            ctx = ToolContext(frame, _tool_entry(tool)) if tool.context_parameter is not None else None
            result = ToolResult(call.id, call.name, await tool.call(args, ctx, turn.agent.threads))
    except BaseException as error:
        note_failure(outer, error, frame)
        raise
    finally:
        if holds:
            settle(holds, None, None, turn.warn)
    if outer is not None:
        outer.result, outer.state = result, DONE
    return result


def _admit(frame: ToolFrame) -> tuple[ToolResult | None, Holds]:
    """Return what keeps a call from running, as its result, and what was reserved for it."""
    turn, call = frame.turn, frame.call
    if turn.stop is not None:
        return _result(call, "skipped", f"skipped: {turn.stop.reason}"), []
    lines = turn.tool_lines()
    holds = reserve(lines, None) if lines else []
    if isinstance(holds, Refusal):
        turn.limit = holds.line.limit
        turn.at_limit(holds.reason, holds.line.owner)
        return _result(call, "denied", f"denied: {holds.reason}"), []
    return None, holds


def _needs_approval(tool: Tool, args: Mapping[str, Any]) -> bool:
    rule = tool.requires_approval
    return bool(rule(args)) if callable(rule) else bool(rule)


class _ToolEntry:
    """Stands where a layer's `call_next` stands, for the context that a tool itself receives."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer

    def deny(self) -> None:
        raise HookError(f"{self.layer.plugin} used ctx.deny: a tool that refuses raises an error or returns text")


def _tool_entry(tool: Tool) -> Any:
    return _ToolEntry(Layer(f"tool {tool.name}", "tool", "tool", tool.call, place_of(tool.function)))


def _result(call: ToolCall, status: Any, text: str) -> ToolResult:
    return ToolResult(call.id, call.name, (TextPart(_clean(text)),), status)


def _settle_call(turn: TurnFrame, call: ToolCall, result: ToolResult) -> None:
    """Note the one result of a call."""
    if result.call_id != call.id or result.name != call.name:
        result = attrs.evolve(result, call_id=call.id, name=call.name)
    by = turn.stop.by if turn.stop is not None and result.status in ("skipped", "denied") else None
    turn.results[call.id] = turn.session.record(ToolResultEvent, result, by)[0]  # type: ignore[index]  # made with the step


def close_calls(turn: TurnFrame, error: BaseException, *, started: Collection[str] = ()) -> None:
    """Give a result to every call that has none because the turn is ending."""
    parsed: Parsed | None = turn.open_calls
    if not parsed:
        return
    if (
        is_cancellation(error)
        or isinstance(error, KeyboardInterrupt)
        or isinstance(turn.scope.signal, KeyboardInterrupt)
    ):
        status, text = "cancelled", "interrupted: the turn was cancelled before this call had a result"
    elif isinstance(turn.scope.signal, AbortSignal):
        status, text = "aborted", f"aborted: {turn.scope.signal.reason}"
    elif isinstance(error, StopSignal):
        status, text = "skipped", f"skipped: {error.reason}"
    elif isinstance(error, PauseSignal):
        status = "cancelled" if turn.is_interrupted else "denied" if error.reason.startswith("denied") else "skipped"
        text = error.reason
    else:
        status, text = "cancelled", "interrupted: the turn failed before this call had a result"
    for call, _, _ in parsed:
        if call.id in turn.results:  # type: ignore[operator]  # made with the step
            continue
        unknown = call.id in started
        _settle_call(turn, call, _result(call, "unknown" if unknown else status, UNKNOWN_OUTCOME if unknown else text))
    _append_results(turn, parsed)


def skip_calls(turn: TurnFrame, response: ModelResponse, why: str) -> None:
    """Give every call of a response that is not to be run a result that says so."""
    parsed: Parsed = [(call, None, "") for call in response.tool_calls]
    turn.results = {}
    for call, _, _ in parsed:
        turn.session.record(ToolCallEvent, call.id, call.name, call.arguments)
        _settle_call(turn, call, _result(call, "skipped", f"not run: {why}"))
    _append_results(turn, parsed)
