"""From the neutral history to one that a provider's dialect can say: what it cannot read stays behind, and is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import attrs

from agentx._errors import RequestRejectedError
from agentx._messages import (
    AdaptedDelta,
    FilePart,
    Message,
    ModelRequest,
    OpaquePart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
)

NO_RESULT = "no result of this call is known"


@attrs.frozen
class Adapted:
    """A history as one provider can read it, and what stayed behind."""

    messages: tuple[Message, ...]
    dropped: tuple[str, ...] = ()

    @property
    def report(self) -> AdaptedDelta | None:
        """What a model emits before its request; nothing where all of the history was sent."""
        return AdaptedDelta(self.dropped) if self.dropped else None


def adapt(
    request: ModelRequest,
    *,
    provider: str,
    reads: Callable[[Part], bool] = lambda part: True,
    alternate: bool = False,
) -> Adapted:
    """Return the messages of a request, with the added context, as `provider` can read them.

    - Thinking, opaque items and file ids of other providers stay behind; so does what they attached to text and calls.
    - Every call has exactly one result, right behind its message, and every result its call.
    - No message is empty.

    Args:
        provider: whose own parts are kept.
        reads: says of a part that is anybody's, or the provider's own, whether this model can read it.
        alternate: joins messages of one role that follow each other; results then stand in messages of the user, before
            what the user says.

    Raises:
        RequestRejectedError: the newest message of the user has a file that the provider cannot read.
    """
    adapter = _Adapter(provider, reads)
    messages = _paired(adapter.keep(request.wire_messages), adapter.dropped)
    if alternate:
        messages = _merged(messages)
    told = [f"{count} × {what}" if count > 1 else what for what, count in adapter.dropped.items()]
    return Adapted(tuple(messages), tuple(told))


class _Adapter:
    def __init__(self, provider: str, reads: Callable[[Part], bool]) -> None:
        self._provider = provider
        self._reads = reads
        self.dropped: Counter[str] = Counter()

    def keep(self, messages: Sequence[Message]) -> list[Message]:
        newest = max([at for at, message in enumerate(messages) if message.role == "user"], default=-1)
        kept: list[Message] = []
        for at, message in enumerate(messages):
            parts = tuple([out for part in message.parts for out in self._kept(part, is_newest=at == newest)])
            if parts == message.parts:
                kept.append(message)
            elif parts:
                kept.append(Message(message.role, parts))
        return [message for message in kept if message.parts]

    def _kept(self, part: Part, *, is_newest: bool = False) -> Iterable[Part]:
        if isinstance(part, ThinkingPart | OpaquePart):
            return self._own(part)
        if isinstance(part, FilePart):
            return self._file(part, is_newest)
        if isinstance(part, ToolResult):
            content = tuple([out for inner in part.content for out in self._kept(inner)])
            return (part if content == part.content else attrs.evolve(part, content=content),)
        if isinstance(part, TextPart) and not part.text and part.data is None:
            return ()
        if isinstance(part, TextPart | ToolCall) and part.data is not None and part.provider != self._provider:
            return (attrs.evolve(part, data=None, provider=""),)
        return (part,)

    def _own(self, part: ThinkingPart | OpaquePart) -> Iterable[Part]:
        if part.provider == self._provider and self._reads(part):
            return (part,)
        what = "reasoning" if isinstance(part, ThinkingPart) else f"{part.data.get('type') or 'an item'}"
        whose = part.provider or "another provider"
        self.dropped[f"{what} of {whose}"] += 1
        return ()

    def _file(self, part: FilePart, is_newest: bool) -> Iterable[Part]:
        is_foreign = part.file_id is not None and part.provider not in ("", self._provider)
        if not is_foreign and self._reads(part):
            return (part,)
        name = f" {part.name}" if part.name else ""
        why = f"its id is one of {part.provider}" if is_foreign else "this model cannot read it"
        if is_newest:
            raise RequestRejectedError(f"the file{name} ({part.media_type}) cannot be sent to {self._provider}: {why}")
        self.dropped[f"a file ({part.media_type})"] += 1
        return (TextPart(f"[file{name} ({part.media_type}) is not shown: {why}]"),)


def _paired(messages: Sequence[Message], dropped: Counter[str]) -> list[Message]:
    """Put the results of every call into one message right behind it; make up what is missing, leave what is nobody's.

    Ids may come again in later messages, so a result is looked for up to the next message of the assistant only.
    """
    paired: list[Message] = []
    waiting = _results_behind(messages, -1)
    for at, message in enumerate(messages):
        if message.role == "assistant":
            dropped.update(["a tool result without its call"] * len(waiting))
            waiting = _results_behind(messages, at)
            paired.append(message)
            answers = [waiting.pop(call.id) if call.id in waiting else _made_up(call) for call in message.tool_calls]
            if answers:
                paired.append(Message("tool", tuple(answers)))
            continue
        rest = tuple([part for part in message.parts if not isinstance(part, ToolResult)])
        if rest:
            paired.append(Message("user", rest))
    dropped.update(["a tool result without its call"] * len(waiting))
    return paired


def _results_behind(messages: Sequence[Message], at: int) -> dict[str, ToolResult]:
    """Return the results that stand between a message and the next one of the assistant, by call."""
    found: dict[str, ToolResult] = {}
    for message in messages[at + 1 :]:
        if message.role == "assistant":
            break
        found.update({part.call_id: part for part in message.parts if isinstance(part, ToolResult)})
    return found


def _made_up(call: ToolCall) -> ToolResult:
    return ToolResult(call.id, call.name, (TextPart(NO_RESULT),), "unknown")


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Join messages of one role; results and what the user says behind them are one side of the conversation."""
    merged: list[Message] = []
    for message in messages:
        role: Role = "assistant" if message.role == "assistant" else "user"
        if merged and merged[-1].role == role:
            merged[-1] = Message(role, (*merged[-1].parts, *message.parts))
        else:
            merged.append(Message(role, message.parts))
    return merged
