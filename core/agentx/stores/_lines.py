"""A session as JSON Lines: one event a line, the first is its `session.start`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from agentx._codec import FORMAT, decode, encode_event, read_event
from agentx._errors import CodecError, SessionError, StoreError
from agentx._events import Event, SessionStart
from agentx._store import Store

logger = logging.getLogger("agentx")


async def export_session(store: Store, session_id: str) -> list[str]:
    """Return the events of a session as lines of JSON, without the lines' ends.

    Raises:
        SessionError: there is no such session.
    """
    events = await store.read(session_id)
    if not events:
        raise SessionError(f"there is no session {session_id!r} to export")
    return [encode_event(event).decode() for event in events]


async def import_session(store: Store, lines: Iterable[str], session_id: str) -> int:
    """Make a session of exported lines and return how many events it has.

    A last line that was cut off is dropped, and logged as an error.

    Raises:
        StoreError: the lines are no session; nothing was stored.
        SessionError: the session exists already.
    """
    events = _read([line for line in lines if line.strip()])
    if await store.read(session_id):
        raise SessionError(f"session {session_id!r} exists already: import into a new one")
    log = await store.open(session_id)
    try:
        for event in events:
            log.add(event)
        if log.is_durable:
            await log.commit("session.end")
    finally:
        await log.close()
    return len(events)


def _read(lines: Sequence[str]) -> list[Event]:
    events: list[Event] = []
    format = FORMAT
    for number, line in enumerate(lines, 1):
        try:
            raw = decode(line)
            if number == 1:
                format = raw.get("format", FORMAT) if isinstance(raw, dict) else FORMAT
            event = read_event(raw, format=format)
        except CodecError as error:
            if number == len(lines) and number > 1 and format <= FORMAT:
                logger.error("line %d, the last, is cut off and was dropped: %s", number, error)
                break
            raise StoreError(f"line {number} is no event: {error}") from error
        if number == 1 and not isinstance(event, SessionStart):
            raise StoreError(f"line 1 is {event.kind}, and a session begins with session.start")
        if event.seq != number:
            raise StoreError(f"line {number} has seq {event.seq}: events are missing, or stand twice")
        events.append(event)
    if not events:
        raise StoreError("there are no events to import")
    return events
