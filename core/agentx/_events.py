"""What a run reports. Stored kinds are the log: history, state and usage are rebuilt from them alone.

    session.start
      turn.start → user.input
        model.start → model.attempt … → model.end
          tool.call → tool.start → tool.progress … → tool.result
      turn.end
    session.end

Starts and ends come only from the core and always pair. `seq` counts the stored events of a session without gaps;
an event that is not stored has the `seq` of the stored one before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, ClassVar, overload

import attrs

from ._messages import (
    NO_USAGE,
    Data,
    Delta,
    Message,
    ModelResponse,
    Sent,
    TextDelta,
    ThinkingDelta,
    ToolArgsDelta,
    ToolResult,
    Usage,
)


@attrs.frozen(eq=False, repr=False)
class Event(Data):
    """One thing that happened. `time` is seconds since the epoch; `path` is the way to a sub-agent's session."""

    kind: ClassVar[str] = ""
    stored: ClassVar[bool] = True

    seq: int
    time: float
    turn_id: str | None


@attrs.frozen(eq=False, repr=False)
class SessionStart(Event):
    kind: ClassVar[str] = "session.start"
    agent: str
    user: str | None = None
    plugins: tuple[str, ...] = ()
    """`id distribution version` of every active plugin."""
    format: int = 1
    seed: tuple[Message, ...] = ()
    """The history the application gave."""


@attrs.frozen(eq=False, repr=False)
class SessionEnd(Event):
    """Not stored: a session can always be opened again."""

    kind: ClassVar[str] = "session.end"
    stored: ClassVar[bool] = False


@attrs.frozen(eq=False, repr=False)
class SessionForked(Event):
    """The events up to here are those of another session; what comes now is this one's own."""

    kind: ClassVar[str] = "session.forked"
    origin: str
    """The id of the other session."""
    at: int
    """The `seq` of its last event that is here; what follows up to this event closed its turn."""


@attrs.frozen(eq=False, repr=False)
class SessionRewound(Event):
    """Turns were undone: history and state are what they were before the first of them. The log keeps them."""

    kind: ClassVar[str] = "session.rewound"
    turns: tuple[str, ...]
    """Their ids, oldest first."""
    kept: int
    """How many messages of the history stayed."""
    messages: tuple[Message, ...] = ()
    """What follows those: messages that the undone turns had replaced."""
    state: Mapping[str, Any] = MappingProxyType({})
    """The values of every plugin's state."""


@attrs.frozen(eq=False, repr=False)
class TurnStart(Event):
    kind: ClassVar[str] = "turn.start"
    turn_index: int
    model: str
    metadata: Mapping[str, Any] | None = None
    resumed: bool = False
    """The turn goes on: it had paused, or its process ended."""


@attrs.frozen(eq=False, repr=False)
class UserInput(Event):
    kind: ClassVar[str] = "user.input"
    message: Message
    queued: int | None = None
    """The `seq` of the `input.queued` that this delivers."""


@attrs.frozen(eq=False, repr=False)
class ModelStart(Event):
    kind: ClassVar[str] = "model.start"
    model: str
    call_index: int
    asked_by: str | None = None
    """The plugin whose own call this is (`call_model`); its text is not shown to the user."""


@attrs.frozen(eq=False, repr=False)
class ModelAttempt(Event):
    """One dispatch to a provider, successful or not."""

    kind: ClassVar[str] = "model.attempt"
    model: str
    call_index: int
    attempt: int
    usage: Usage | None = None
    error: str | None = None
    asked_by: str | None = None
    cost: Decimal | None = None
    """US dollars, where the provider itself states a price."""
    sent: Sent | None = None
    """What the history does not tell of the request; `None`: nothing new."""


@attrs.frozen(eq=False, repr=False)
class HistoryAdapted(Event):
    """Parts of the history stayed behind: the model that was asked cannot read them. The history keeps them."""

    kind: ClassVar[str] = "history.adapted"
    model: str
    call_index: int
    dropped: tuple[str, ...]


@attrs.frozen(eq=False, repr=False)
class ModelRetrying(Event):
    """The call is tried again; text of this call that was already shown is void."""

    kind: ClassVar[str] = "model.retrying"
    call_index: int
    attempt: int
    reason: str
    by: str
    delay: float = 0.0


@attrs.frozen(eq=False, repr=False)
class ModelEnd(Event):
    kind: ClassVar[str] = "model.end"
    call_index: int
    response: ModelResponse | None
    """`None`: the call failed or was cancelled."""
    error: str | None = None
    asked_by: str | None = None


@attrs.frozen(eq=False, repr=False)
class DeltaEvent(Event):
    """A piece of what the model is saying."""

    stored: ClassVar[bool] = False
    call_index: int
    attempt: int
    text: str


@attrs.frozen(eq=False, repr=False)
class TextDeltaEvent(DeltaEvent):
    kind: ClassVar[str] = "text.delta"


@attrs.frozen(eq=False, repr=False)
class ThinkingDeltaEvent(DeltaEvent):
    kind: ClassVar[str] = "thinking.delta"


@attrs.frozen(eq=False, repr=False)
class ToolArgsDeltaEvent(DeltaEvent):
    kind: ClassVar[str] = "tool.args.delta"
    call_id: str = ""
    tool: str = ""


@attrs.frozen(eq=False, repr=False)
class ToolCallEvent(Event):
    """What the model asked for."""

    kind: ClassVar[str] = "tool.call"
    call_id: str
    tool: str
    arguments: str
    """JSON text as the model wrote it, cut at 1,000 characters where it is no JSON object."""


@attrs.frozen(eq=False, repr=False)
class ToolStart(Event):
    """What will run. Committed before the effect."""

    kind: ClassVar[str] = "tool.start"
    call_id: str
    tool: str
    args: Mapping[str, Any]


@attrs.frozen(eq=False, repr=False)
class ToolProgress(Event):
    kind: ClassVar[str] = "tool.progress"
    stored: ClassVar[bool] = False
    call_id: str
    tool: str
    message: str
    done: float | None = None
    total: float | None = None


@attrs.frozen(eq=False, repr=False)
class ToolResultEvent(Event):
    kind: ClassVar[str] = "tool.result"
    result: ToolResult
    by: str | None = None
    """The plugin that denied, skipped or aborted the call."""


@attrs.frozen(eq=False, repr=False)
class ApprovalRequested(Event):
    kind: ClassVar[str] = "approval.requested"
    call_id: str
    tool: str
    args: Mapping[str, Any]
    reason: str
    by: str
    expires: float | None = None
    """Seconds since the epoch, after which it counts as denied."""
    fingerprint: str = ""
    """What a decision is bound to: a hash of session, call, tool and arguments."""
    scopes: tuple[str, ...] = ()
    """For how long an approval may hold beside `once`: `session`, `always`."""
    covers: str = ""
    """What such an approval lets run."""


@attrs.frozen(eq=False, repr=False)
class ApprovalDecided(Event):
    kind: ClassVar[str] = "approval.decided"
    call_id: str
    decision: str
    """`approve`, `deny`, `edit` or `respond`."""
    by: str | None = None
    reason: str | None = None
    """Why it was denied, or the text of the response."""
    args: Mapping[str, Any] | None = None
    fingerprint: str = ""
    """That of the request."""
    scope: str = "once"
    """How long an approval holds."""


@attrs.frozen(eq=False, repr=False)
class HistoryReplaced(Event):
    """The history from here on; the log keeps the originals."""

    kind: ClassVar[str] = "history.replaced"
    by: str
    messages: tuple[Message, ...]


@attrs.frozen(eq=False, repr=False)
class StateUpdated(Event):
    """The resulting values of the fields that changed, so that replay needs no plugin."""

    kind: ClassVar[str] = "state.updated"
    plugin: str
    values: Mapping[str, Any]


@attrs.frozen(eq=False, repr=False)
class ToolsChanged(Event):
    kind: ClassVar[str] = "tools.changed"
    by: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@attrs.frozen(eq=False, repr=False)
class PromptPrefixChanged(Event):
    """The part of the prompt that a provider caches changed, and who changed it."""

    kind: ClassVar[str] = "prompt.prefix"
    stored: ClassVar[bool] = False
    by: str
    what: str


@attrs.frozen(eq=False, repr=False)
class LimitWarning(Event):
    kind: ClassVar[str] = "limit.warning"
    key: str
    scope: str
    used: str
    maximum: str
    by: str


@attrs.frozen(eq=False, repr=False)
class SteerInput(Event):
    """What the model is told within a turn: by a user who steers, or by a plugin that sent its answer back."""

    kind: ClassVar[str] = "steer.input"
    message: Message
    queued: int | None = None
    """The `seq` of the `input.queued` that this delivers."""


@attrs.frozen(eq=False, repr=False)
class InputQueued(Event):
    """A user's message that waits: `steer` for the next model call, `follow_up` for the next turn."""

    kind: ClassVar[str] = "input.queued"
    how: str
    message: Message


@attrs.frozen(eq=False, repr=False)
class ErrorEvent(Event):
    """Something failed; `where` is a hook, a tool or a listener."""

    kind: ClassVar[str] = "error"
    where: str
    error: str
    message: str
    by: str | None = None


@attrs.frozen(eq=False, repr=False)
class TurnEnd(Event):
    kind: ClassVar[str] = "turn.end"
    status: str
    reason: str | None = None
    by: str | None = None
    usage: Usage = NO_USAGE
    cost: str | None = None
    """US dollars as a decimal number; `None` where some price is unknown."""


@attrs.frozen(eq=False, repr=False)
class PluginEvent(Event):
    """A plugin's own event, of kind `plugin.<id>.<name>`. `data` is JSON."""

    kind: ClassVar[str] = "plugin"
    plugin: str
    name: str
    data: Mapping[str, Any]


@attrs.frozen(eq=False, repr=False)
class UnknownEvent(Event):
    """An event of a kind this version does not know; kept as it came."""

    kind: ClassVar[str] = "unknown"
    raw_kind: str
    data: Mapping[str, Any]


@attrs.frozen(eq=False, repr=False)
class RecordDamaged(Event):
    """A record of the log that a store could not read; it stands where the event stood."""

    kind: ClassVar[str] = "record.damaged"
    was: str
    """The kind of event it was."""
    record: str
    """What is left of it."""
    problem: str


@attrs.frozen(eq=False, repr=False)
class SubAgentEvent(Event):
    """An event of a sub-agent's session, seen from its parent. `path` are the call ids that lead to it."""

    kind: ClassVar[str] = "subagent"
    stored: ClassVar[bool] = False
    path: tuple[str, ...]
    event: Event


EVENTS: Mapping[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        SessionStart,
        SessionEnd,
        SessionForked,
        SessionRewound,
        TurnStart,
        UserInput,
        ModelStart,
        ModelAttempt,
        HistoryAdapted,
        ModelRetrying,
        ModelEnd,
        TextDeltaEvent,
        ThinkingDeltaEvent,
        ToolArgsDeltaEvent,
        ToolCallEvent,
        ToolStart,
        ToolProgress,
        ToolResultEvent,
        ApprovalRequested,
        ApprovalDecided,
        HistoryReplaced,
        StateUpdated,
        ToolsChanged,
        PromptPrefixChanged,
        LimitWarning,
        SteerInput,
        InputQueued,
        ErrorEvent,
        TurnEnd,
        PluginEvent,
        RecordDamaged,
        SubAgentEvent,
    )
}


Note = Event | tuple[Any, ...]
"""An event, or its class and its fields: an event that nobody reads is never made."""


def event_of(note: Note) -> Event:
    """Return the event that a log's note stands for."""
    if isinstance(note, Event):
        return note
    event: Event = note[0](*note[1:])
    return event


class Events(Sequence[Event]):
    """The events of a list of notes; each is made when it is first read."""

    __slots__ = ("notes",)

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def __len__(self) -> int:
        return len(self.notes)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        notes = self.notes
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(notes)))]
        note = notes[index]
        if not isinstance(note, Event):
            note = notes[index] = event_of(note)
        return note


def kind_of(event: Event) -> str:
    """Return the kind that listeners see: a plugin's own event carries its plugin's id in it."""
    if isinstance(event, PluginEvent):
        return f"plugin.{event.plugin}.{event.name}"
    if isinstance(event, UnknownEvent):
        return event.raw_kind
    return event.kind


def delta_event(delta: Delta, seq: int, time: float, turn_id: str | None, call_index: int, attempt: int) -> Event:
    """Return `delta` as the event of a stream."""
    if isinstance(delta, TextDelta):
        return TextDeltaEvent(seq, time, turn_id, call_index, attempt, delta.text)
    if isinstance(delta, ThinkingDelta):
        return ThinkingDeltaEvent(seq, time, turn_id, call_index, attempt, delta.text)
    if isinstance(delta, ToolArgsDelta):
        return ToolArgsDeltaEvent(seq, time, turn_id, call_index, attempt, delta.text, delta.call_id, delta.name)
    raise TypeError(f"a model may emit TextDelta, ThinkingDelta or ToolArgsDelta, not {type(delta).__name__}")
