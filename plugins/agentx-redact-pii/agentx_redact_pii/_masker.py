"""Mask whatever carries text: parts, messages, requests, results and events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, overload

import attrs

from agentx import (
    FilePart,
    Message,
    ModelRequest,
    ModelResponse,
    Part,
    RunResult,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolFailed,
    ToolResult,
)

from ._deltas import DeltaRedactor, PlainText
from ._json import JsonRedactor
from ._spans import Find
from ._vault import LITERAL, Vault

A = TypeVar("A", bound=attrs.AttrsInstance)
Mask = Callable[[str], str]

_REMEMBERED = 1_000_000
"""Characters of masked texts that are kept, since most texts pass several times."""
_NEVER_PERSONAL = 10**11
"""Numbers below it are too short for a card, and a phone number is seldom a bare number."""
_CHAIN = 10
"""How far back an error's causes are looked at."""
_TEXT_MEDIA = ("text/", "application/json", "application/xml", "application/yaml", "application/x-ndjson")
_PLACES = ("seq", "time", "turn_id", "turn_index", "call_id", "call_index", "attempt", "format", "path", "kind")
_NAMES = (
    "agent",
    "user",
    "plugin",
    "plugins",
    "name",
    "model",
    "tool",
    "asked_by",
    "by",
    "added",
    "removed",
    "raw_kind",
)
_FIGURES = ("usage", "cost", "key", "scope", "status", "decision", "where")
_KEPT_FIELDS = frozenset((*_PLACES, *_NAMES, *_FIGURES))
"""Names, ids and numbers by which the core finds things again; a mask there would break the log."""


class Masker:
    """Masks and restores for one session.

    What is already masked stays as it is, so masking twice is masking once. `foreign` is for text that has not been
    through a masker yet: what looks like a placeholder there was not given out by the vault and is masked too.
    """

    def __init__(self, find: Find, vault: Vault) -> None:
        self.vault = vault
        self._find = find
        self._texts: dict[str, str] = {}
        self._foreign: dict[str, str] = {}
        self._size = 0
        self._looked_back = False
        self._messages: dict[int, tuple[Message, Message]] = {}

    def transform(self) -> DeltaRedactor:
        """Return a transform for the deltas of one attempt."""
        return DeltaRedactor(self._find, self.vault.placeholder)

    def text(self, text: str) -> str:
        """Return `text` masked; placeholders in it are taken for the vault's own."""
        known = self._texts.get(text)
        if known is not None:
            return known
        redactor = PlainText(self._find, self.vault.placeholder)
        masked = redactor.feed(text) + redactor.finish()
        if masked == text:
            masked = text
        self._remember(self._texts, text, masked)
        self._texts[masked] = masked
        return masked

    def foreign(self, text: str) -> str:
        """Return `text` masked; what looks like a placeholder becomes one itself."""
        known = self._foreign.get(text)
        if known is not None:
            return known
        out: list[str] = []
        done = 0
        for match in self.vault.form.finditer(text):
            out += self.text(text[done : match.start()]), self.vault.placeholder(LITERAL, match[0])
            done = match.end()
        masked = "".join([*out, self.text(text[done:])]) if done else self.text(text)
        self._remember(self._foreign, text, masked)
        return masked

    def _remember(self, where: dict[str, str], text: str, masked: str) -> None:
        self._size += len(text)
        if self._size > _REMEMBERED:
            self._texts.clear()
            self._foreign.clear()
            self._size = len(text)
        where[text] = masked

    def json(self, text: str) -> str:
        """Return JSON text masked."""
        redactor = JsonRedactor(self._find, self.vault.placeholder)
        return redactor.feed(text) + redactor.finish()

    # What carries text

    def part(self, part: Part, mask: Mask | None = None) -> Part:
        """Return a part masked. What a provider has signed and what only it can read is never changed."""
        mask = mask or self.text
        if isinstance(part, TextPart):
            return _changed(part, text=mask(part.text))
        if isinstance(part, ToolCall):
            return _changed(part, arguments=self.json(part.arguments))
        if isinstance(part, ToolResult):
            return self.result(part, mask)
        if isinstance(part, ThinkingPart) and part.signature is None and part.data is None:
            return _changed(part, text=mask(part.text))
        return _masked_file(part, mask) if isinstance(part, FilePart) else part

    def result(self, result: ToolResult, mask: Mask | None = None) -> ToolResult:
        """Return a tool's result masked."""
        return _changed(result, content=self._parts(result.content, mask))

    def message(self, message: Message, mask: Mask | None = None) -> Message:
        """Return a message masked."""
        return _changed(message, parts=self._parts(message.parts, mask))

    def response(self, response: ModelResponse) -> ModelResponse:
        """Return a model's response masked."""
        return _changed(response, parts=self._parts(response.parts))

    def _parts(self, parts: tuple[Part, ...], mask: Mask | None = None) -> tuple[Part, ...]:
        masked = tuple([self.part(part, mask) for part in parts])
        return parts if all(a is b for a, b in zip(parts, masked, strict=True)) else masked

    def request(self, request: ModelRequest) -> ModelRequest:
        """Return a request masked. Its messages are masked when they are read, each once in a session."""
        return _changed(
            request,
            messages=MaskedMessages(request.messages, self.known_message),
            instructions=self.foreign(request.instructions),
            context=tuple([self.foreign(text) for text in request.context]),
        )

    def known_message(self, message: Message) -> Message:
        """Return a message of the history masked; remembered for as long as the session lasts."""
        known = self._messages.get(id(message))
        if known is not None:
            return known[1]
        masked = self.message(message)
        self.reserve(masked)
        self._messages[id(message)] = (message, masked)
        self._messages[id(masked)] = (masked, masked)
        return masked

    def look_back(self, history: Iterable[Message]) -> None:
        """Reserve what the history of a resumed or seeded session refers to; done before its first turn."""
        if not self._looked_back:
            self._looked_back = True
            for message in history:
                self.reserve(message)
            self.vault.floor = 0

    def reserve(self, message: Message | ModelResponse) -> None:
        """Keep numbers that somebody else has given out from being given out again."""
        for part in message.parts:
            texts = [part.arguments] if isinstance(part, ToolCall) else [getattr(part, "text", "")]
            for text in texts:
                self.vault.reserve(text)

    def event(self, event: A) -> A:
        """Return an event with every text in it masked."""
        return self._fields(event)

    def value(self, value: Any) -> Any:
        """Return a JSON value, a part, a message or whatever holds them, masked."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Part):
            return self.part(value)
        if isinstance(value, Message):
            return self.known_message(value)
        if isinstance(value, int) and abs(value) >= _NEVER_PERSONAL:
            masked = self.text(str(value))
            return value if masked == str(value) else masked
        if isinstance(value, Mapping):
            masked_items = {self.value(key): self.value(item) for key, item in value.items()}
            return masked_items if masked_items != value else value
        if isinstance(value, list | tuple | set | frozenset):
            items = [self.value(item) for item in value]
            return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
        return self._fields(value) if attrs.has(type(value)) else value

    def _fields(self, item: A) -> A:
        values = {name: getattr(item, name) for name in _text_fields(type(item))}
        masked = {name: self.json(it) if name == "arguments" else self.value(it) for name, it in values.items()}
        return _changed(item, **masked)

    def turn_result(self, result: RunResult[Any]) -> RunResult[Any]:
        """Return a turn's result with what other plugins wrote into it masked; the model's words are masked already."""
        changes: dict[str, Any] = {"text": self.text(result.text)}
        if result.reason is not None:
            changes["reason"] = self.text(result.reason)
        if result.status == "completed" and isinstance(result.output, str):
            changes["output"] = self.text(result.output)
        return _changed(result, **changes)

    def failure(self, failure: ToolFailed, mask: Mask) -> ToolFailed:
        """Return a tool's failure masked: itself if there is nothing to mask, also in what it came from."""
        texts: list[str] = []
        error: BaseException | None = failure
        while error is not None and len(texts) < _CHAIN:
            texts.append(str(error))
            error = error.__cause__ or error.__context__
        if all(mask(text) == text for text in texts):
            return failure
        return ToolFailed(mask(str(failure)), tool=failure.tool, reason=failure.reason)

    # Tool arguments

    def restore(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments with the real values in the place of placeholders, in every text and key.

        Raises:
            UnknownPlaceholderError: some have no value.
        """
        restored: dict[str, Any] = self._restored(dict(args))
        return restored

    def _restored(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.vault.restore(value)
        if isinstance(value, Mapping):
            return {self._restored(key): self._restored(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._restored(item) for item in value]
        return value


class MaskedMessages(Sequence[Message]):
    """A history, masked as it is read."""

    __slots__ = ("_mask", "_messages")

    def __init__(self, messages: Sequence[Message], mask: Callable[[Message], Message]) -> None:
        self._messages = messages
        self._mask = mask

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self._mask(message) for message in self._messages[index]]
        return self._mask(self._messages[index])

    def __iter__(self) -> Iterator[Message]:
        return map(self._mask, self._messages)


@cache
def _text_fields(cls: type[attrs.AttrsInstance]) -> tuple[str, ...]:
    return tuple([field.name for field in attrs.fields(cls) if field.init and field.name not in _KEPT_FIELDS])


def _changed(item: A, **changes: Any) -> A:
    """Return `item` with `changes`, itself if there are none."""
    real = {name: value for name, value in changes.items() if value is not getattr(item, name)}
    return attrs.evolve(item, **real) if real else item  # type: ignore[misc]  # it is bound to one


def _masked_file(part: FilePart, mask: Mask) -> FilePart:
    """Return a text file masked; of other files only the name is looked at."""
    data = part.data
    if data is not None and part.media_type.startswith(_TEXT_MEDIA):
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = ""
        masked = mask(text)
        data = data if masked == text else masked.encode()
    name = part.name if part.name is None else mask(part.name)
    return _changed(part, data=data, name=name)
