"""Models that say what a test wants them to say."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import anyio
import attrs

from agentx._errors import RequestRejectedError
from agentx._messages import (
    AdaptedDelta,
    Delta,
    Messages,
    ModelRequest,
    ModelResponse,
    Part,
    Report,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolArgsDelta,
    ToolCall,
    ToolResult,
    Usage,
    UsageDelta,
)
from agentx._models import Emit

from ._history import HistoryError, check_history

DELTA = 4
"""Characters in a delta, unless a test says otherwise."""


class ScriptError(AssertionError):
    """The test's script and what the agent did do not fit."""


@attrs.frozen
class Pieces:
    """A text that is streamed in given pieces; made by `pieces`."""

    texts: tuple[str, ...]


def call(name: str, arguments: str | None = None, /, **kwargs: Any) -> ToolCall:
    """Return a tool call for a script: `call("add", a=1, b=2)`. The model gives it the next id: c1, c2, …

    Args:
        name: the tool's name.
        arguments: JSON text in place of keywords, for text that is no JSON or no object.
        kwargs: the arguments.
    """
    if arguments is not None and kwargs:
        raise TypeError("call() takes the arguments as JSON text or as keywords, not both")
    return ToolCall("", name, json.dumps(kwargs, ensure_ascii=False) if arguments is None else arguments)


def pieces(*texts: str) -> Pieces:
    """Return a text for a script that is streamed in exactly these pieces: `pieces("Mail bob@", "acme.example")`."""
    return Pieces(texts)


Item = str | Pieces | Part
Reply = Item | Sequence[Item] | ModelResponse | BaseException | type[BaseException]
"""What a test may answer with."""
ReplyFunction = Callable[..., Reply | Awaitable[Reply]]
"""Takes the request, and `emit` if it streams by itself."""


def count_tokens(text: str) -> int:
    """Return how many tokens the test models say a text has: a quarter of its characters, rounded up."""
    return -(-len(text) // 4)


def request_tokens(request: ModelRequest) -> int:
    """Return how many input tokens the test models report for a request."""
    total = count_tokens(request.instructions)
    for message in request.wire_messages:
        total += sum([_part_tokens(part) for part in message.parts])
    return total


def _part_tokens(part: Part) -> int:
    if isinstance(part, TextPart | ThinkingPart):
        return count_tokens(part.text)
    if isinstance(part, ToolCall):
        return count_tokens(part.name) + count_tokens(part.arguments)
    if isinstance(part, ToolResult):
        return sum([_part_tokens(item) for item in part.content])
    return 1


class FakeModel:
    """What the models of a test have in common: they keep requests and answers, refuse what is invalid, stream, count.

    Subclasses say what is answered, in `reply`.
    """

    def __init__(
        self,
        *,
        name: str,
        delay: float = 0.0,
        delta_size: int = DELTA,
        usage: Usage | str | None = "count",
        check: bool = True,
    ) -> None:
        if isinstance(usage, str) and usage != "count":
            raise ValueError(f"usage is 'count', a Usage or None, not {usage!r}")
        self.name = name
        self.requests: list[ModelRequest] = []
        self.responses: list[ModelResponse] = []
        self.closed = False
        self._delay = delay
        self._delta_size = delta_size
        self._usage = usage
        self._check = check
        self._calls_made = 0

    async def reply(self, request: ModelRequest, emit: Emit) -> Reply:
        raise NotImplementedError

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        """Answer a request; a `Model`."""
        self.requests.append(_as_sent(request))
        if self._check:
            _refuse_invalid(request)
        await anyio.sleep(self._delay)
        streamed = False

        async def emit_noting(delta: Delta | Report) -> None:
            nonlocal streamed
            streamed = streamed or not isinstance(delta, UsageDelta | AdaptedDelta)
            await emit(delta)

        answer = await self.reply(request, emit_noting)
        if isinstance(answer, BaseException) or (isinstance(answer, type) and issubclass(answer, BaseException)):
            raise as_error(answer)
        texts: dict[int, Pieces] = {}
        if isinstance(answer, ModelResponse):
            response = self._numbered(answer)
        else:
            response, texts = self._response(_as_items(answer), request)
        self.responses.append(response)
        if not streamed:
            for delta in deltas_of(response, self._delta_size, texts):
                await emit(delta)
        return response

    async def aclose(self) -> None:
        self.closed = True

    def _response(self, items: Sequence[Item], request: ModelRequest) -> tuple[ModelResponse, dict[int, Pieces]]:
        parts: list[Part] = []
        texts: dict[int, Pieces] = {}
        for item in items:
            if isinstance(item, Pieces):
                texts[len(parts)] = item
                parts.append(TextPart("".join(item.texts)))
            elif isinstance(item, str):
                if item:
                    parts.append(TextPart(item))
            else:
                parts.append(item)
        reason = "tool_use" if any(isinstance(part, ToolCall) for part in parts) else "end_turn"
        response = self._numbered(ModelResponse(tuple(parts), reason, model=self.name))
        return attrs.evolve(response, usage=self._usage_of(request, response)), texts

    def _numbered(self, response: ModelResponse) -> ModelResponse:
        if all(call.id for call in response.tool_calls):
            return response
        return attrs.evolve(response, parts=tuple([self._with_id(part) for part in response.parts]))

    def _with_id(self, part: Part) -> Part:
        if not isinstance(part, ToolCall) or part.id:
            return part
        self._calls_made += 1
        return attrs.evolve(part, id=f"c{self._calls_made}")

    def _usage_of(self, request: ModelRequest, response: ModelResponse) -> Usage | None:
        if not isinstance(self._usage, str):
            return self._usage
        output = sum([_part_tokens(part) for part in response.parts])
        return Usage(input_tokens=request_tokens(request), output_tokens=output)


class ScriptedModel(FakeModel):
    """A model that answers from a script and keeps every request, in `requests`, as it was sent.

    An entry of the script answers one model call:

    - text, streamed in small deltas; `pieces(…)` says in which;
    - `call("add", a=1)` or another part, or a list of texts and parts;
    - a `ModelResponse`, returned as it is;
    - an exception or its class, to raise;
    - a function of the request, sync or async, that returns any of these.

    A request whose history is invalid is refused, as a provider would, and takes no entry.

    Args:
        script: the entries, in order.
        name: the model's name.
        delay: seconds to wait before each answer.
        delta_size: characters in a delta.
        usage: what every answer says it used; by default tokens counted from the texts, `None` is unknown.
        check: whether to refuse invalid requests.
    """

    def __init__(
        self,
        script: Sequence[Reply | ReplyFunction],
        *,
        name: str = "scripted",
        delay: float = 0.0,
        delta_size: int = DELTA,
        usage: Usage | str | None = "count",
        check: bool = True,
    ) -> None:
        super().__init__(name=name, delay=delay, delta_size=delta_size, usage=usage, check=check)
        if isinstance(script, str):
            raise TypeError('a script is a list with one entry per model call: ScriptedModel(["…"])')
        self._script = list(script)
        self._used = 0

    async def reply(self, request: ModelRequest, emit: Emit) -> Reply:
        if self._used >= len(self._script):
            raise ScriptError(f"model call {self._used + 1}, but the script of {self.name!r} has {self._entries}")
        entry = self._script[self._used]
        self._used += 1
        if callable(entry) and not isinstance(entry, type):
            return await _ask(entry, request, emit)
        return entry

    def assert_finished(self) -> None:
        """Fail unless every entry of the script was used.

        Raises:
            ScriptError: saying how many were.
        """
        if self._used < len(self._script):
            raise ScriptError(f"the script of {self.name!r} has {self._entries}, of which {self._used} were used")

    @property
    def _entries(self) -> str:
        count = len(self._script)
        return "1 entry" if count == 1 else f"{count} entries"


class FunctionModel(FakeModel):
    """A model that answers every request with what a function returns; takes the options of `ScriptedModel`.

    Args:
        fn: a function of the request, sync or async; it returns what an entry of a script may be. With a second
            parameter it also gets `emit`; if it uses that, what it returns is not streamed again.
    """

    def __init__(
        self,
        fn: ReplyFunction,
        *,
        name: str = "function",
        delay: float = 0.0,
        delta_size: int = DELTA,
        usage: Usage | str | None = "count",
        check: bool = True,
    ) -> None:
        super().__init__(name=name, delay=delay, delta_size=delta_size, usage=usage, check=check)
        self._fn = fn

    async def reply(self, request: ModelRequest, emit: Emit) -> Reply:
        return await _ask(self._fn, request, emit)


class EchoModel(FakeModel):
    """A model that answers with the text of the newest message, also of tool results."""

    def __init__(self, *, name: str = "echo", delay: float = 0.0, delta_size: int = DELTA, check: bool = True) -> None:
        super().__init__(name=name, delay=delay, delta_size=delta_size, check=check)

    async def reply(self, request: ModelRequest, emit: Emit) -> Reply:
        newest = request.messages[-1]
        if newest.role == "tool":
            return "\n".join([part.text for part in newest.parts if isinstance(part, ToolResult)])
        return newest.text


async def _ask(fn: ReplyFunction, request: ModelRequest, emit: Emit) -> Reply:
    answer = fn(request, emit) if len(inspect.signature(fn).parameters) > 1 else fn(request)
    return await answer if inspect.isawaitable(answer) else answer


def _as_items(answer: Any) -> Sequence[Item]:
    items = [answer] if isinstance(answer, str | Pieces | Part) else answer
    if not isinstance(items, Sequence) or not all(isinstance(item, str | Pieces | Part) for item in items):
        raise ScriptError(
            f"{answer!r} is no answer: a script holds text, call(…), other parts, lists of these, responses, "
            "exceptions and functions of the request"
        )
    return items


def as_error(answer: BaseException | type[BaseException]) -> BaseException:
    return answer("raised by the test") if isinstance(answer, type) else answer


def _as_sent(request: ModelRequest) -> ModelRequest:
    """Return a request that does not change if somebody changes a list or dict that is in it."""
    if not isinstance(request.messages, Messages):
        request = attrs.evolve(request, messages=Messages(tuple(request.messages)))
    if request.settings.extra:
        settings = attrs.evolve(request.settings, extra=copy.deepcopy(dict(request.settings.extra)))
        request = attrs.evolve(request, settings=settings)
    return request


def _refuse_invalid(request: ModelRequest) -> None:
    try:
        check_history(request.wire_messages)
    except HistoryError as error:
        raise RequestRejectedError(f"the request is invalid: {error}", status=400) from error


def deltas_of(response: ModelResponse, size: int = DELTA, texts: Mapping[int, Pieces] | None = None) -> Iterator[Delta]:
    """Yield the deltas in which a response is streamed: `size` characters each, or the given pieces of a part."""
    index = 0
    for place, part in enumerate(response.parts):
        if isinstance(part, TextPart):
            given = (texts or {}).get(place)
            for piece in given.texts if given is not None else _cut(part.text, size):
                yield TextDelta(piece, index)
            index += 1
        elif isinstance(part, ThinkingPart):
            for piece in _cut(part.text, size):
                yield ThinkingDelta(piece)
        elif isinstance(part, ToolCall):
            yield from _call_deltas(part, size)


def _call_deltas(part: ToolCall, size: int) -> Iterator[Delta]:
    name = part.name
    for piece in _cut(part.arguments, size) or [""]:
        yield ToolArgsDelta(piece, part.id, name)
        name = ""


def _cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]
