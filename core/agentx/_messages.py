"""What flows between the loop, the layers and a model: frozen data, nothing that acts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, overload

import attrs

if TYPE_CHECKING:
    from decimal import Decimal

Role = Literal["user", "assistant", "tool"]
ToolStatus = Literal["ok", "error", "denied", "skipped", "cancelled", "aborted", "unknown"]
STOP_REASONS = frozenset(
    {
        "end_turn",
        "tool_use",
        "max_tokens",
        "refusal",
        "pause_turn",
        "content_filter",
        "stop_sequence",
        "context_window",
        "unknown",
    }
)


def _fields(data: Data) -> tuple[attrs.Attribute[Any], ...]:
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(cast(Any, type(data)))
    return fields


class Data:
    """Compares, hashes and shows frozen data by its fields.

    attrs would generate these methods for each of some forty classes; importing agentx would take half again as long.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Data) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), *self._values()))

    def __repr__(self) -> str:
        fields = [field for field in _fields(self) if field.repr]
        return f"{type(self).__name__}({', '.join([f'{f.name}={getattr(self, f.name)!r}' for f in fields])})"

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, field.name) for field in _fields(self)])


@attrs.frozen(eq=False, repr=False)
class Part(Data):
    """One piece of a message. `kind` tells the pieces apart in JSON."""

    kind: ClassVar[str] = ""


@attrs.frozen(eq=False, repr=False)
class TextPart(Part):
    """Text. `data` is what `provider` attached to it, such as citations; only that provider gets it back."""

    kind: ClassVar[str] = "text"
    text: str
    data: Mapping[str, Any] | None = None
    provider: str = ""


@attrs.frozen(eq=False, repr=False)
class ThinkingPart(Part):
    """A model's reasoning. `signature` and `data` are the provider's and are sent back to it byte for byte.

    Of a `provider` that is not named nobody can read it.
    """

    kind: ClassVar[str] = "thinking"
    text: str = ""
    signature: str | None = None
    data: Mapping[str, Any] | None = None
    provider: str = ""


@attrs.frozen(eq=False, repr=False)
class ToolCall(Part):
    """What the model asked for. `arguments` is JSON text; once in a history it is always an object.

    `data` is what `provider` attached to it, such as a signature; only that provider gets it back.
    """

    kind: ClassVar[str] = "tool_call"
    id: str
    name: str
    arguments: str = "{}"
    data: Mapping[str, Any] | None = None
    provider: str = ""


@attrs.frozen(eq=False, repr=False)
class ToolResult(Part):
    """The one result of a call. `status` is `ok` or says why there is no real result."""

    kind: ClassVar[str] = "tool_result"
    call_id: str
    name: str
    content: tuple[Part, ...] = ()
    status: ToolStatus = "ok"

    @property
    def text(self) -> str:
        return "".join([part.text for part in self.content if isinstance(part, TextPart)])

    @property
    def is_error(self) -> bool:
        return self.status != "ok"


@attrs.frozen(eq=False, repr=False)
class FilePart(Part):
    """A file given by its bytes, by URL or by the provider's id: exactly one of the three.

    `provider` is whose id it is; without it, whoever is asked.
    """

    kind: ClassVar[str] = "file"
    media_type: str
    data: bytes | None = attrs.field(default=None, repr=False)
    url: str | None = None
    file_id: str | None = None
    name: str | None = None
    provider: str = ""

    def __attrs_post_init__(self) -> None:
        given = [self.data is not None, self.url is not None, self.file_id is not None]
        if sum(given) != 1:
            raise ValueError("a file part takes exactly one of data, url and file_id")


@attrs.frozen(eq=False, repr=False)
class OpaquePart(Part):
    """An item of one provider that agentx does not read; kept as it came and sent back to that provider only."""

    kind: ClassVar[str] = "opaque"
    provider: str
    data: Mapping[str, Any]


PARTS: Mapping[str, type[Part]] = {
    cls.kind: cls for cls in (TextPart, ThinkingPart, ToolCall, ToolResult, FilePart, OpaquePart)
}


@attrs.frozen(eq=False, repr=False)
class Message(Data):
    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join([part.text for part in self.parts if isinstance(part, TextPart)])

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple([part for part in self.parts if isinstance(part, ToolCall)])


UserInput = str | Part | Sequence[Part]
"""What `run` takes: text, one part, or parts."""


def user_message(value: UserInput) -> Message:
    """Return `value` as the message of a user."""
    if isinstance(value, str):
        return Message("user", (TextPart(value),))
    several = isinstance(value, Sequence) and not isinstance(value, bytes | bytearray)
    parts: tuple[Any, ...] = tuple(value) if several else (value,)  # type: ignore[arg-type]  # a sequence
    if not parts:
        raise TypeError("the input is empty: give text or parts")
    for part in parts:
        if not isinstance(part, Part):
            fix = "; bytes go into FilePart(media_type, data=…)" if isinstance(part, bytes | bytearray) else ""
            kind = type(part).__name__
            raise TypeError(f"the input takes text or parts (TextPart, FilePart, …), not {kind}{fix}")
    return Message("user", parts)


@attrs.define(eq=False, repr=False)
class Messages(Sequence[Message]):
    """An immutable view of a history that only grows: the first `stop` of `base`, then `tail`.

    It is made in constant time, so that no step copies the history.
    """

    _base: Sequence[Message]
    _stop: int = attrs.Factory(lambda self: len(self._base), takes_self=True)
    _tail: tuple[Message, ...] = ()

    def __len__(self) -> int:
        return self._stop + len(self._tail)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [*self][index]
        if index < 0:
            index += self._stop + len(self._tail)
        if 0 <= index < self._stop:
            return self._base[index]
        if index < self._stop:
            raise IndexError("message index out of range")
        return self._tail[index - self._stop]

    def __iter__(self) -> Iterator[Message]:
        base = self._base
        for index in range(self._stop):
            yield base[index]
        yield from self._tail

    def is_all_of(self, history: Sequence[Message]) -> bool:
        """Whether this shows a history as it is, told without a look at its messages."""
        return self._base is history and self._stop == len(history) and not self._tail

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # compared by content, like a list

    def __repr__(self) -> str:
        return f"Messages({list(self)!r})"


@attrs.frozen(eq=False, repr=False)
class Usage(Data):
    """Tokens of one or more model calls. The buckets do not overlap, whatever a provider's own convention.

    `input_tokens` were neither read from nor written to a cache. `reasoning_tokens` is the one exception:
    that part of `output_tokens` which was reasoning.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    requests: int = 1
    estimated: bool = False
    """Some of it was not reported by the provider but taken from a reservation or an estimate."""

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.requests + other.requests,
            self.estimated or other.estimated,
        )

    def __sub__(self, other: Usage) -> Usage:
        """Return what was used beyond `other`, which is a part of this."""
        return Usage(
            self.input_tokens - other.input_tokens,
            self.output_tokens - other.output_tokens,
            self.cache_read_tokens - other.cache_read_tokens,
            self.cache_write_tokens - other.cache_write_tokens,
            self.reasoning_tokens - other.reasoning_tokens,
            self.requests - other.requests,
            self.estimated,
        )


NO_USAGE = Usage(requests=0)


@attrs.define(eq=False, repr=False)
class Totals:
    """Usage added up, in place because it happens on every call."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    requests: int = 0
    estimated: bool = False

    def add(self, usage: Usage | None) -> None:
        """Add one attempt; `None` is an attempt whose usage nobody reported."""
        if usage is None:
            self.requests += 1
            self.estimated = True
            return
        self.input += usage.input_tokens
        self.output += usage.output_tokens
        self.cache_read += usage.cache_read_tokens
        self.cache_write += usage.cache_write_tokens
        self.reasoning += usage.reasoning_tokens
        self.requests += usage.requests
        if usage.estimated:
            self.estimated = True

    @property
    def usage(self) -> Usage:
        return Usage(
            self.input,
            self.output,
            self.cache_read,
            self.cache_write,
            self.reasoning,
            self.requests,
            self.estimated,
        )


@attrs.frozen(eq=False, repr=False)
class ToolSpec(Data):
    """A tool as a model sees it. `schema` is a JSON Schema of an object."""

    name: str
    description: str
    schema: Mapping[str, Any]


def _read_only(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(value))


@attrs.frozen(eq=False, repr=False)
class ModelSettings(Data):
    """How to sample. `None` is the provider's own default; what a provider cannot do is an error, not silence."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: str | None = None
    """`auto`, `none`, `required`, or the name of a tool."""
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    service_tier: str | None = None
    timeout: float | None = None
    """Seconds for the whole call; without it only silence is limited."""
    extra: Mapping[str, Any] = attrs.field(factory=dict, converter=_read_only)
    """Raw keys for the body of the request."""

    def merge(self, other: ModelSettings | None) -> ModelSettings:
        """Return these settings with everything that `other` states laid over them."""
        if other is None:
            return self
        changes = {name: value for name in _SETTING_NAMES if (value := getattr(other, name)) not in (None, (), {})}
        return attrs.evolve(self, **changes) if changes else self


_SETTING_NAMES = tuple(field.name for field in attrs.fields(ModelSettings))
NO_SETTINGS = ModelSettings()


@attrs.frozen(eq=False, repr=False)
class OutputFormat(Data):
    """The JSON Schema that the answer's text must fit, for models that can be held to one."""

    name: str
    schema: Mapping[str, Any] = attrs.field(converter=_read_only)
    strict: bool = True
    """The schema is one that the provider can enforce; otherwise it only guides."""
    description: str = ""


@attrs.frozen(eq=False, repr=False)
class RequestPrefix(Data):
    """What one request has in common with the next, as a rule."""

    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    settings: ModelSettings = NO_SETTINGS
    output: OutputFormat | None = None

    def is_of(self, request: ModelRequest) -> bool:
        return (
            self.instructions == request.instructions
            and (self.tools is request.tools or self.tools == request.tools)
            and (self.settings is request.settings or self.settings == request.settings)
            and self.output == request.output
        )


@attrs.frozen(eq=False, repr=False)
class Sent(Data):
    """What was sent to a model beside the history. Where nothing is stated it is as in the dispatch before."""

    prefix: RequestPrefix | None = None
    context: tuple[str, ...] | None = None
    """What layers added for this call."""
    messages: str | None = None
    """A hash of what layers changed in the messages for this call; `None`: they are the history."""

    def after(self, known: Sent | None) -> Sent:
        """Return everything that is known of prefix and context once this is."""
        if known is None:
            return Sent(self.prefix, self.context or ())
        context = known.context if self.context is None else self.context
        return Sent(self.prefix or known.prefix, context)


@attrs.frozen(eq=False, repr=False)
class ModelRequest(Data):
    """What goes on the wire for one model call: history, instructions and the layers' additions, kept apart.

    `context` is what layers added for this call only; it goes to the tail, behind the history, so that a provider's
    prompt cache holds. `wire_messages` has everything in the order it is sent. `output` is what was asked for, for
    layers to see; a model gets it only if it can be held to a schema.
    """

    model: str
    messages: Sequence[Message]
    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    settings: ModelSettings = NO_SETTINGS
    context: tuple[str, ...] = ()
    output: OutputFormat | None = None

    @property
    def wire_messages(self) -> Sequence[Message]:
        """The messages with the added context as a last user message."""
        if not self.context:
            return self.messages
        tail = Message("user", tuple([TextPart(text) for text in self.context]))
        return Messages(self.messages, len(self.messages), (tail,))

    def beside(self, known: Sent | None, history: Sequence[Message]) -> tuple[Sent | None, Sent, bool]:
        """Return what this has beside a history that is not known, all that is known then, and whether that is all."""
        messages = self.messages
        is_history = type(messages) is Messages and messages.is_all_of(history)
        if known is not None and known.prefix is not None and known.prefix.is_of(self):
            if known.context == self.context:
                return None, known, is_history
            sent = Sent(context=self.context)
        else:
            context = None if self.context == (known.context if known else ()) else self.context
            sent = Sent(RequestPrefix(self.instructions, self.tools, self.settings, self.output), context)
        return sent, sent.after(known), is_history


@attrs.frozen(eq=False, repr=False)
class ModelResponse(Data):
    """The whole answer of a model call. `usage` is `None` when the provider did not say.

    `model` is the model that answered. `raw_stop_reason` keeps what the provider called it.
    """

    parts: tuple[Part, ...]
    stop_reason: str = "end_turn"
    usage: Usage | None = None
    model: str = ""
    id: str | None = None
    raw_stop_reason: str | None = None
    cost: Decimal | None = None
    """US dollars, where the provider itself states a price."""

    @property
    def text(self) -> str:
        parts = self.parts
        if len(parts) == 1 and type(parts[0]) is TextPart:
            return parts[0].text
        return "".join([part.text for part in parts if isinstance(part, TextPart)])

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple([part for part in self.parts if isinstance(part, ToolCall)])

    @property
    def message(self) -> Message:
        return Message("assistant", self.parts)


@attrs.frozen(eq=False, repr=False)
class TextDelta(Data):
    """A piece of text; `index` is the place of its text among the text parts of the response."""

    text: str
    index: int = 0


@attrs.frozen(eq=False, repr=False)
class ThinkingDelta(Data):
    text: str
    index: int = 0


@attrs.frozen(eq=False, repr=False)
class ToolArgsDelta(Data):
    """A piece of the JSON text of a call's arguments. `name` comes with the first piece."""

    text: str
    call_id: str
    name: str = ""


@attrs.frozen(eq=False, repr=False)
class UsageDelta(Data):
    """What the call has used so far: a running total in the place of the last one. Nobody is shown it.

    It is what counts if the call ends without a response.
    """

    usage: Usage


@attrs.frozen(eq=False, repr=False)
class AdaptedDelta(Data):
    """What of the history this model cannot read and was not sent; becomes the event `history.adapted`."""

    dropped: tuple[str, ...]


Delta = TextDelta | ThinkingDelta | ToolArgsDelta
Report = UsageDelta | AdaptedDelta
"""What a model tells agentx about a call, in between its deltas."""
