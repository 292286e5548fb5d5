"""A model that answers what a recorded session was answered; the event log is the cassette."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agentx import _errors
from agentx._codec import decode_event, encode_event
from agentx._errors import CodecError, ModelError
from agentx._events import Event, SessionStart, UserInput
from agentx._messages import Message, ModelRequest
from agentx._messages import UserInput as Said
from agentx._models import Capabilities, Emit
from agentx._output import ANSWER_TOOL
from agentx._recording import RecordedCall, recorded_calls
from agentx._result import RunResult

from ._models import DELTA, FakeModel, Reply, ScriptError
from ._request_diff import differences


class ReplayError(ScriptError):
    """What the agent asks and what is recorded do not fit."""


class ReplayModel(FakeModel):
    """A model that answers every request with what the same request was answered when the session was recorded.

    A request is compared in its instructions, messages, tools, settings and added context. Messages are rebuilt from
    the log; where layers had changed them for one call, and for plugins' own calls, the log has a hash of them. The
    model's name is not compared. What log and request differ in is the text of the `ReplayError`.

    Args:
        recording: the events of a session, or the file they were written to.
        strict: `False` takes the recorded call that differs least, and raises only when none is left.
        delta_size: characters in a delta; the log does not keep in which pieces a text came.
    """

    def __init__(
        self, recording: str | Path | Iterable[Event], *, strict: bool = True, name: str = "", delta_size: int = DELTA
    ) -> None:
        events = list(read_events(recording) if isinstance(recording, str | Path) else recording)
        self.calls: Sequence[RecordedCall] = recorded_calls(events)
        super().__init__(name=name or (self.calls[0].model if self.calls else "replay"), delta_size=delta_size)
        self.inputs: Sequence[Message] = [event.message for event in events if isinstance(event, UserInput)]
        prefixes = [call.sent.prefix for call in self.calls if call.sent.prefix is not None]
        has_tool = any(tool.name.startswith(ANSWER_TOOL) for prefix in prefixes for tool in prefix.tools)
        self.capabilities = Capabilities(json_schema=any(prefix.output for prefix in prefixes), tools=has_tool)
        self._strict = strict
        self._left = list(range(len(self.calls)))

    async def reply(self, request: ModelRequest, emit: Emit) -> Reply:
        call = self._next(request)
        if call.response is None:
            return _failure(call)
        return call.response

    def _next(self, request: ModelRequest) -> RecordedCall:
        """Return the recorded call that a request is, and cross it off.

        Raises:
            ReplayError: none is left, or the request differs from the next one.
        """
        candidates = self._candidates()
        if not candidates:
            raise ReplayError(f"the recording has {len(self.calls)} model calls, and this is one more")
        found = [(differences(request, self.calls[place]), place) for place in candidates]
        differing, place = min(found, key=lambda one: len(one[0]))
        if differing and self._strict:
            place = candidates[-1]
            raise ReplayError(_told(self.calls[place], differences(request, self.calls[place])))
        self._left.remove(place)
        return self.calls[place]

    def _candidates(self) -> list[int]:
        """Return what may be asked next: the next call of the turns, and plugins' own calls before it."""
        found: list[int] = []
        for place in self._left:
            found.append(place)
            if self.calls[place].asked_by is None:
                break
        return found

    def assert_finished(self) -> None:
        """Fail unless every recorded call was asked for.

        Raises:
            ReplayError: naming those that were not.
        """
        if self._left:
            raise ReplayError(f"not asked for: {', '.join([_place(self.calls[place]) for place in self._left])}")


def _failure(call: RecordedCall) -> BaseException:
    """Return the error with which a recorded call ended; one that was cut off is one of the model."""
    kind, _, message = (call.error or "").partition(": ")
    cls = getattr(_errors, kind, None)
    if isinstance(cls, type) and issubclass(cls, ModelError):
        return cls(message)
    return ModelError(f"in the recording this call has no answer: {call.error}")


def _place(call: RecordedCall) -> str:
    by = f" of {call.asked_by}" if call.asked_by else ""
    return f"call {call.call_index + 1}{by} in turn {call.turn_index + 1}"


def _told(call: RecordedCall, differing: Sequence[str]) -> str:
    head = f"the request is not the recorded one ({_place(call)}; - recorded, + now)"
    return "\n".join([head, *differing])


def read_events(file: str | Path) -> list[Event]:
    """Return the events that `write_events` or `agentx sessions export` wrote: one line of JSON each.

    Raises:
        CodecError: naming the line that is no event.
    """
    events: list[Event] = []
    form = 1
    for number, line in enumerate(Path(file).read_text(encoding="utf-8").splitlines(), 1):
        try:
            event = decode_event(line, format=form)
        except CodecError as error:
            raise CodecError(f"{file}, line {number}: {error}") from error
        if isinstance(event, SessionStart):
            form = event.format
        events.append(event)
    return events


def write_events(events: Iterable[Event], file: str | Path) -> None:
    """Write the events of a session to a file, for `ReplayModel`."""
    Path(file).write_bytes(b"".join([encode_event(event) + b"\n" for event in events]))


async def record(
    agent: Any, inputs: Iterable[Said], file: str | Path, *, model: Any = None, **options: Any
) -> list[RunResult[Any]]:
    """Run turns in a new session of an agent and write its log to a file, whatever happens.

    Args:
        agent: with the model that is to be recorded.
        inputs: one for each turn.
        file: is replaced.
        model: in place of the agent's.
        options: of `agent.session`.
    """
    results: list[RunResult[Any]] = []
    async with agent.session(**options) as session:
        try:
            for said in inputs:
                results.append(await session.run(said, model=model))
        finally:
            write_events(session.events, file)
    return results
