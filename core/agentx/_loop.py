"""Model, tools, model.

`steps` is the core of the turn onion, `dispatch` of the model onion; `run_tool`, of the tool onion, is in `_calls.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from ._calls import Parsed, cleaned, close_calls, run_tools, skip_calls, whole
from ._errors import (
    BadResponseError,
    ContextWindowError,
    HookError,
    ModelError,
    PauseSignal,
    StopSignal,
)
from ._events import (
    HistoryAdapted,
    ModelAttempt,
    ModelEnd,
    ModelStart,
    SteerInput,
    UserInput,
)
from ._frames import ModelFrame, Stop, TurnFrame
from ._host import is_cancellation
from ._ledger import Holds, Refusal, reserve, settle
from ._messages import (
    STOP_REASONS,
    Message,
    Messages,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Part,
    Sent,
    TextPart,
    ToolCall,
    ToolResult,
    Usage,
)
from ._models import capabilities_of, model_name
from ._onion import DONE, CallNext, annotate, compile_onion, note_failure
from ._output import OutputInvalid, OutputType, ask_for
from ._recording import how_changed
from ._result import RunResult
from ._streaming import UnheardStream, open_stream

BACKSTOP = 1000
"""Model calls of one turn; a net for turns that no limit on `requests` holds for."""
SEND_BACKS = 5
OUTPUT = "output"
"""Who sends back an answer that is not the data that was asked for."""
_RUNS_TOOLS = frozenset({"end_turn", "tool_use", "stop_sequence", "pause_turn"})
"""With any other stop reason a response may be cut, and no tool of it runs."""


async def steps(turn: TurnFrame, outer: CallNext | None = None) -> RunResult[Any]:
    """Run a turn from its input to its outcome. The innermost part of the turn onion."""
    try:
        if not turn.committed:
            commit_input(turn)
            if not turn.session.quiet:
                await turn.session.commit("input")
        if turn.outcome is not None:
            begin_again(turn)
        while turn.outcome is None:
            if turn.feedback is not None and not take_feedback(turn):
                turn.outcome = turn.stop
            elif turn.stop is not None:
                turn.outcome = await stopped(turn)
            elif turn.calls >= BACKSTOP and not turn.counts("requests"):
                turn.outcome = Stop("limit", f"{BACKSTOP} model calls in one turn", "core")
            else:
                await step(turn)
        result = turn.result()
    except BaseException as error:
        note_failure(outer, error, turn)
        raise
    if outer is not None:
        outer.result, outer.state = result, DONE
    return result


def begin_again(turn: TurnFrame) -> None:
    """Let a turn layer run its turn again, behind what it said about the answer.

    Raises:
        HookError: it said nothing: the model would be asked to go on from its own answer.
    """
    history = turn.session.history
    if turn.feedback is None and history and history[-1].role == "assistant":
        raise HookError("a turn layer ran its turn again after the answer: say what is wrong with ctx.send_back first")
    turn.outcome = None


def commit_input(turn: TurnFrame) -> None:
    turn.committed = True
    turn.input = cleaned(turn.input)
    turn.session.history.append(turn.session.record(UserInput, turn.input, turn.queued)[0])


async def step(turn: TurnFrame) -> None:
    """Make one model call and run the tools it asks for; note the outcome if that was the last."""
    try:
        if turn.resumed is not None:
            await take_up(turn, turn.resumed)
            return
        if turn.session.queue:
            deliver_steering(turn)
        response, parsed = await call_model(turn)
        if parsed and response.stop_reason in _RUNS_TOOLS:
            await run_tools(turn, parsed)
            return
    except StopSignal as signal:
        if turn.scope.signal is signal:
            turn.scope.signal = None
        turn.outcome = await stopped(turn)
        return
    if parsed:
        skip_calls(turn, response, "the response was cut before it was whole")
    if response.stop_reason != "pause_turn":
        turn.outcome = conclude(turn, response)


async def take_up(turn: TurnFrame, response: ModelResponse) -> None:
    """Go on behind the last response of a resumed turn: with its tools, or with what it means if it has none left."""
    turn.resumed, turn.output = None, response.message
    runs_tools = response.stop_reason in _RUNS_TOOLS
    if turn.open_calls and runs_tools:
        await run_tools(turn, turn.open_calls)
    elif turn.open_calls:
        close_calls(turn, PauseSignal("not run: the response was cut before it was whole"))
    turn.forget_resumed()
    if response.stop_reason != "pause_turn" and not (response.tool_calls and runs_tools):
        turn.outcome = conclude(turn, response)


def conclude(turn: TurnFrame, response: ModelResponse) -> Stop | None:
    """Return what a response without tools to run means for the turn."""
    reason = response.stop_reason
    raw = response.raw_stop_reason or reason
    if reason in ("max_tokens", "unknown") or reason not in STOP_REASONS:
        return Stop("truncated", f"the model stopped with {raw}", "")
    if reason in ("refusal", "content_filter"):
        return Stop("refused", f"the model stopped with {raw}", "")
    if reason == "context_window":
        if not response.text:
            raise ContextWindowError(f"the context window of {response.model or 'the model'} is full")
        return Stop("truncated", "the context window is full", "")
    if turn.feedback is not None:
        return None
    if turn.stop is not None:
        return turn.stop
    if turn.session.queue and any(queued.how == "steer" for queued in turn.session.queue.values()):
        return None
    text = response.text
    if not text.strip() and not any(part.kind == "file" for part in response.parts):
        return Stop("empty", "the model answered nothing", "")
    if turn.output_type is not None:
        return _read(turn, turn.output_type, response)
    return Stop("completed", "", "", text, True)


def _read(turn: TurnFrame, output: OutputType, response: ModelResponse) -> Stop | None:
    """Return the outcome of an answer that is data; one that does not fit goes back to the model a few times."""
    try:
        return Stop("completed", "", "", output.read(response), True)
    except OutputInvalid as problem:
        if turn.output_tries >= output.retries:
            return Stop("stopped", f"the answer is not a valid {output.format.name}: {problem}", OUTPUT)
        turn.output_tries += 1
        turn.feedback = (output.rejection(problem), OUTPUT)
        return None


def deliver_steering(turn: TurnFrame) -> None:
    """Put what the user said meanwhile into the history, each message once and in order."""
    session = turn.session
    for seq, queued in list(session.queue.items()):
        if queued.how == "steer":
            del session.queue[seq]
            session.history.append(session.record(SteerInput, queued.message, seq)[0])


def take_feedback(turn: TurnFrame) -> bool:
    """Put the feedback of a rejected answer into the history; `False` when that happened too often."""
    feedback, by = turn.feedback or ("", "")
    turn.feedback = None
    turn.send_backs += by != OUTPUT  # those have a bound of their own
    if turn.send_backs > SEND_BACKS:
        turn.stop = turn.stop or Stop("stopped", f"the answer was sent back {SEND_BACKS} times: {feedback}", by)
        return False
    message = cleaned(Message("user", (TextPart(feedback),)))
    turn.session.history.append(turn.session.record(SteerInput, message)[0])
    return True


async def stopped(turn: TurnFrame) -> Stop:
    """Return the outcome of a stopped turn, after one last answer without tools where the limit allows it."""
    stop = turn.stop or Stop("stopped", "stopped", "")
    limit = turn.limit
    if limit is None or limit.on_limit != "answer" or turn.answering:
        return stop
    turn.answering, turn.stop = True, None
    try:
        response, parsed = await call_model(turn, tools=())
    except StopSignal as signal:
        if turn.scope.signal is signal:
            turn.scope.signal = None
        turn.stop = stop
        return stop
    if parsed:
        skip_calls(turn, response, "no tools may run at the limit")
    turn.stop = stop
    return stop


# The model call


async def call_model(turn: TurnFrame, *, tools: tuple[Any, ...] | None = None) -> tuple[ModelResponse, Parsed]:
    """Make one model call of the turn, through the model onion, and commit the response."""
    session, index = turn.session, turn.calls
    turn.calls += 1
    _, prompt, specs, _ = turn.prefix()
    tools = specs if tools is None else tools
    output = turn.output_type.format if turn.output_type is not None else None
    messages = Messages(session.history, len(session.history))
    request = ModelRequest(turn.model, messages, prompt, tools, turn.settings, (), output)
    frame = ModelFrame(turn, turn.scope, request, index, [0], turn.sink)
    session.record(ModelStart, request.model, index)
    try:
        if not session.quiet:
            await session.deliver()
        response = await turn.onions.model(frame)
        if turn.scope.may_be_cancelled():
            await turn.scope.check()
    except BaseException as error:
        session.record(ModelEnd, index, None, _describe(error))
        annotate(error, "model", frame, turn.onions.layers["model"])
        raise
    response, parsed = whole(response, index)
    response = session.record(ModelEnd, index, response)[1]
    turn.open_calls, turn.results, turn.output = parsed, {}, Message("assistant", response.parts)
    if response.parts:
        session.history.append(turn.output)
    sent = frame.sent[-1].tools if frame.sent else frame.request.tools
    turn.offered = None if sent is tools else frozenset([spec.name for spec in sent])
    if not session.quiet:
        await session.commit("response")
    return response, parsed


async def dispatch(frame: ModelFrame, outer: CallNext | None = None) -> ModelResponse:
    """Call the model: reserve, stream, settle. The innermost part of the model onion."""
    turn, request = frame.turn, frame.request
    holds: Holds | None = None
    stream: Any = None
    usage, failed, cost = None, None, None
    try:
        model = turn.agent.models.get(request.model)
        if model is None:
            model = turn.agent.resolve(request.model)
        asked = None
        if turn.output_type is not None and frame.asked_by is None:  # a plugin's own call asks for text
            asked = ask_for(turn.output_type, request, capabilities_of(model))
            request = asked.request
        holds = _hold(frame, request)
        unheard = frame.sink is None and not frame.transforms
        stream = UnheardStream() if unheard else open_stream(frame, frame.attempts[0])
        if not turn.session.quiet:
            await turn.session.deliver()
        emit = stream.emit if asked is None else asked.emit(stream.emit)
        response: ModelResponse = await model.respond(request, emit)
        check_response(response, model)
        response = response if asked is None else asked.answer(response)
        usage, cost = response.usage, response.cost
    except BaseException as error:
        usage = error.usage if isinstance(error, ModelError) else None
        if usage is None and stream is not None and stream.usage is not None:
            usage = attrs.evolve(stream.usage, estimated=True)
        failed = _describe(error)
        note_failure(outer, error, frame)
        raise
    finally:
        if holds is not None:
            _book(frame, request, holds, usage, failed, cost)
    if stream.dropped:
        _tell_adapted(frame, stream.dropped)
    if not unheard:
        response = await _closed(stream, response, frame, outer)
    if outer is not None:
        outer.result, outer.state = response, DONE
    return response


def _hold(frame: ModelFrame, request: ModelRequest) -> Holds:
    """Reserve what a dispatch may use, under every limit.

    Raises:
        StopSignal: a limit refuses it, or the turn is to stop.
    """
    turn = frame.turn
    if turn.stop is not None:
        raise turn.halt()
    lines = turn.model_lines()
    holds = reserve(lines, request, is_last_answer=turn.answering) if lines else []
    if isinstance(holds, Refusal):
        turn.limit = holds.line.limit
        turn.at_limit(holds.reason, holds.line.owner)
        raise turn.halt()
    frame.attempts[0] += 1
    frame.sent[:] = [frame.request]
    return holds


def _book(
    frame: ModelFrame, request: ModelRequest, holds: Holds, usage: Usage | None, failed: str | None, cost: Any
) -> None:
    """Settle what a dispatch used."""
    turn, model = frame.turn, frame.request.model
    if holds:
        settle(holds, request, usage, turn.warn, cost)
    turn.totals.add(usage)
    attempt = (model, frame.call_index, frame.attempts[0], usage, failed)
    session = turn.session
    sent, known, is_history = request.beside(session.sent.get(frame.asked_by or ""), session.history)
    if sent is not None or not is_history:
        sent = _note_sent(frame, request, sent, known, is_history)
    session.record(ModelAttempt, *attempt, frame.asked_by, cost, sent)
    if turn.session.parent is not None:
        _book_above(turn, attempt, cost)


def _note_sent(
    frame: ModelFrame, request: ModelRequest, sent: Sent | None, known: Sent, is_history: bool
) -> Sent | None:
    """Return what the log does not know of a request; the messages of a plugin's own call are not in the log."""
    session, by = frame.turn.session, frame.asked_by or ""
    session.sent[by] = known
    if is_history:
        return sent
    changed = how_changed(request.messages, () if by else session.history)
    return attrs.evolve(sent or Sent(), messages=changed) if changed else sent


def _tell_adapted(frame: ModelFrame, dropped: tuple[str, ...]) -> None:
    """Say what of the history the model cannot read, unless that was said before."""
    session, told = frame.turn.session, (frame.request.model, dropped)
    if session.adapted != told:
        session.adapted = told
        session.record(HistoryAdapted, frame.request.model, frame.call_index, dropped)


async def _closed(stream: Any, response: ModelResponse, frame: ModelFrame, outer: CallNext | None) -> ModelResponse:
    """Let the transforms finish and return the response as they leave it."""
    try:
        closed: ModelResponse = await stream.close(response)
    except BaseException as error:
        note_failure(outer, error, frame)
        raise
    return closed


def _book_above(turn: TurnFrame, attempt: tuple[Any, ...], cost: Any) -> None:
    """Count a sub-agent's dispatch in the turns that called it, and in their logs."""
    usage, by = attempt[3], turn.agent.name
    while turn.session.parent is not None:
        turn = turn.session.parent
        turn.totals.add(usage)
        turn.session.record(ModelAttempt, *attempt, f"sub-agent {by}", cost)


def check_response(response: Any, model: Any) -> None:
    """Refuse what is no response.

    Raises:
        BadResponseError: naming the model and what it returned.
    """
    if type(response) is not ModelResponse and not isinstance(response, ModelResponse):
        raise BadResponseError(f"model {model_name(model)} returned {type(response).__name__}, not a ModelResponse")
    if not isinstance(response.parts, tuple):
        kind = type(response.parts).__name__
        raise BadResponseError(f"model {model_name(model)} returned a response whose parts are a {kind}, not a tuple")
    if response.usage is not None and not isinstance(response.usage, Usage):
        kind = type(response.usage).__name__
        raise BadResponseError(f"model {model_name(model)} returned a response whose usage is a {kind}, not a Usage")
    usage = response.usage
    if usage is not None and (usage.input_tokens < 0 or usage.output_tokens < 0 or usage.requests < 0):
        raise BadResponseError(f"model {model_name(model)} returned a usage below 0: {usage}")
    for part in response.parts:
        if not isinstance(part, Part):
            raise BadResponseError(f"model {model_name(model)} returned a part of type {type(part).__name__}")
        if isinstance(part, ToolResult):
            raise BadResponseError(f"model {model_name(model)} returned a tool result, which only tools may")
        if isinstance(part, TextPart) and not isinstance(part.text, str):
            raise BadResponseError(f"model {model_name(model)} returned text of type {type(part.text).__name__}")
        if isinstance(part, ToolCall) and not isinstance(part.name, str):
            raise BadResponseError(f"model {model_name(model)} returned a call of {part.name!r}")


async def ask(
    turn: TurnFrame,
    messages: Sequence[Message],
    model: Any,
    instructions: str,
    settings: ModelSettings | None,
    by: str,
    asking: tuple[str, ...],
) -> ModelResponse:
    """Make a plugin's own model call: `ctx.call_model`."""
    if turn.scope.signal is not None:
        raise turn.scope.signal
    if len(asking) >= 2:
        raise HookError(f"{by}: call_model within call_model within call_model; {' > '.join(asking)}", plugin=by)
    if model is None:
        model = turn.model
    elif not isinstance(model, str):
        model = turn.agent.register_model(model)
    asking = (*asking, by)
    session, index = turn.session, turn.calls
    turn.calls += 1
    request = ModelRequest(model, Messages(tuple(messages)), instructions, (), (settings or ModelSettings()))
    frame = ModelFrame(turn, turn.scope, request, index, [0], None, by, asking=asking)
    session.record(ModelStart, request.model, index, by)
    try:
        response: ModelResponse = await _asked_onion(turn, asking)(frame)
    except BaseException as error:
        session.record(ModelEnd, index, None, _describe(error), by)
        raise
    stored: ModelResponse = session.record(ModelEnd, index, response, None, by)[1]
    return stored


def _asked_onion(turn: TurnFrame, asking: tuple[str, ...]) -> Any:
    """Every layer but those of the plugins that are asking and those that prepare; redaction and retry always stay."""
    onions = turn.onions
    if asking not in onions.asked:
        layers = [
            layer
            for layer in onions.layers["model"]
            if layer.phase in ("redact", "retry") or (layer.phase != "prepare" and layer.plugin not in asking)
        ]
        onions.asked[asking] = compile_onion(layers, dispatch, ModelResponse)
    return onions.asked[asking]


def _describe(error: BaseException) -> str:
    return "cancelled" if is_cancellation(error) else f"{type(error).__name__}: {error}"
