"""Events as rows of a table: what every event has in columns, the rest as one JSON text, long contents beside it."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import msgspec

from agentx._codec import FORMAT, decode, read_event, to_plain
from agentx._errors import CodecError
from agentx._events import ErrorEvent, Event, Note, RecordDamaged, UnknownEvent

logger = logging.getLogger("agentx")
CONTENT_LIMIT = 64 * 1024
"""A text of more characters than this lives beside the log, under its hash."""
_HEAD = ("seq", "time", "turn_id")


@attrs.frozen
class Record:
    """A row of a log."""

    seq: int
    kind: str
    turn_id: str | None
    time: float
    body: str
    """A JSON object of the fields that differ from their defaults."""
    contents: str | None = None
    """JSON: where in the body the long texts belong, and their hashes."""
    texts: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """The long texts by hash; to be written before the record."""


def record_of(note: Note) -> Record:
    """Return the row of an event.

    Raises:
        CodecError: something in it cannot become JSON.
    """
    if isinstance(note, Event):
        cls, (seq, time, turn_id, *fields) = type(note), note._values()
    else:
        cls, seq, time, turn_id, *fields = note
    try:
        if cls is UnknownEvent:
            kind, plain = fields[0], to_plain(fields[1])
        else:
            kind, plain = cls.kind, _plain(cls, fields)
        body = msgspec.json.encode(plain).decode()
    except (CodecError, ValueError, RecursionError) as error:
        raise CodecError(f"event {seq} ({cls.kind}) cannot be stored: {error}") from error
    if len(body) <= CONTENT_LIMIT:
        return Record(seq, kind, turn_id, time, body)
    return _with_contents(Record(seq, kind, turn_id, time, body), plain)


def unstorable(note: Note, error: CodecError) -> Event:
    """Return what stands in the log for an event that cannot become JSON, so that its `seq` is not missing."""
    seq, time, turn_id = (note.seq, note.time, note.turn_id) if isinstance(note, Event) else note[1:4]
    return ErrorEvent(seq, time, turn_id, "store", type(error).__name__, str(error))


def _plain(cls: Any, fields: list[Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for (name, default), value in zip(_body_fields(cls), fields, strict=False):
        if value is not default:
            plain[name] = to_plain(value)
    return plain


@functools.lru_cache(maxsize=256)
def _body_fields(cls: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields behind those in columns; an identical default need not be written."""
    return tuple([(field.name, field.default) for field in attrs.fields(cls)[len(_HEAD) :]])


def _with_contents(record: Record, plain: Any) -> Record:
    """Return the row with its long texts beside it."""
    places: list[tuple[list[str | int], str]] = []
    texts: dict[str, str] = {}
    for holder, key, path in _long_texts(plain, []):
        text = holder[key]
        name = hashlib.sha256(text.encode()).hexdigest()
        places.append((path, name))
        texts[name] = text
        holder[key] = None
    if not places:
        return record
    body, contents = msgspec.json.encode(plain).decode(), msgspec.json.encode(places).decode()
    return attrs.evolve(record, body=body, contents=contents, texts=texts)


def _long_texts(plain: Any, path: list[str | int]) -> Iterator[tuple[Any, Any, list[str | int]]]:
    """Yield what holds a long text, its key there, and its path; `plain` may be changed meanwhile."""
    items = plain.items() if isinstance(plain, dict) else enumerate(plain)
    for key, value in list(items):
        if isinstance(value, str) and len(value) > CONTENT_LIMIT:
            yield plain, key, [*path, key]
        elif isinstance(value, dict | list):
            yield from _long_texts(value, [*path, key])


def event_of_record(
    record: Record, text_of: Callable[[str], str | None], *, session_id: str, format: int = FORMAT
) -> Event:
    """Return the event of a row. One that is damaged is logged as an error and becomes a `RecordDamaged`.

    Args:
        text_of: returns the long text of a hash.
        format: what the log's `session.start` states.

    Raises:
        CodecError: the log is of a format that only a newer agentx reads.
    """
    if format > FORMAT:
        raise CodecError(f"session {session_id!r} has format {format}, and this agentx reads up to {FORMAT}")
    head = {"kind": record.kind, "seq": record.seq, "time": record.time, "turn_id": record.turn_id}
    try:
        raw = decode(record.body)
        for path, name in decode(record.contents) if record.contents else ():
            _put_back(raw, path, text_of(name))
        return read_event({**head, **raw}, format=format)
    except Exception as error:  # whatever the damage makes of it
        problem = f"{type(error).__name__}: {error}"
        logger.error("session %r: record %d (%s) is damaged: %s", session_id, record.seq, record.kind, problem)
        rest = record.body if isinstance(record.body, str) else repr(record.body)
        return RecordDamaged(record.seq, record.time, record.turn_id, str(record.kind), rest[:CONTENT_LIMIT], problem)


def missing_record(seq: int, time: float, session_id: str) -> Event:
    """Return what stands where a row should be, and log that as an error."""
    logger.error("session %r: record %d is missing", session_id, seq)
    return RecordDamaged(seq, time, None, "", "", "the record is missing")


def _put_back(raw: Any, path: list[Any], text: str | None) -> None:
    if text is None:
        raise CodecError("a long content is missing")
    for key in path[:-1]:
        raw = raw[key]
    raw[path[-1]] = text
