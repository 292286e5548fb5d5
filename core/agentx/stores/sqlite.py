"""Sessions in one SQLite file, for any number of processes on one machine."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agentx._codec import FORMAT
from agentx._errors import CodecError, SessionConflictError, StoreError
from agentx._events import Event, Events, SessionStart, TurnEnd, TurnStart
from agentx._ledger import Accounts
from agentx._store import RUNNING, SessionInfo, SessionLog

from ._accounts import Booking, Bookings, amount_of, amount_text
from ._leases import Renewal, check_lease, owner_name
from ._records import Record, event_of_record, missing_record, record_of, unstorable
from ._sqlite_file import SQLiteFile
from ._urls import path_and_options

Connection = sqlite3.Connection
Durability = Literal["step", "turn"]
ENDS = ("turn.end", "session.end")

_COMMIT = """UPDATE sessions SET revision = ?, updated = ?, turns = coalesce(?, turns), status = coalesce(?, status),
    owner = ?, expires = ? WHERE key = ? AND revision = ? AND (owner = ? OR owner IS NULL)"""
_START = "UPDATE sessions SET user = ?, agent = ?, format = ?, created = ? WHERE key = ?"
_INSERT = "INSERT INTO events (session, seq, kind, turn_id, time, body, contents) VALUES (?, ?, ?, ?, ?, ?, ?)"
_EVENTS = "SELECT seq, kind, turn_id, time, body, contents FROM events WHERE session = ? ORDER BY seq"
_ACCOUNT = "SELECT owner, key, scope, what, used, exact, warned FROM accounts WHERE"
_BOOK = """INSERT INTO accounts VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
    SET used = excluded.used, exact = excluded.exact, warned = excluded.warned, revision = excluded.revision"""
_TEXTS = """SELECT DISTINCT hash, text FROM events, json_each(events.contents) AS place
    JOIN contents ON contents.hash = place.value ->> 1 WHERE session = ? AND events.contents IS NOT NULL"""
_UNUSED = """DELETE FROM contents WHERE hash NOT IN
    (SELECT place.value ->> 1 FROM events, json_each(events.contents) AS place WHERE events.contents IS NOT NULL)"""


class SQLiteStore:
    """Sessions in one SQLite file. Nothing is opened before the first use.

    Args:
        path: of the file, or a URL such as `sqlite:///sessions.db?durability=turn`, with these options in it.
        durability: `step` writes at every commit point; `turn` only at the end of a turn, for a third of the cost: a
            process that dies takes its running turn with it.
        synchronous: `normal` survives the death of the process, but after a loss of power the last turns may be
            missing; `full` survives that too, and waits for the disk at every write.
        busy_timeout: seconds to wait for other processes that are writing.
        lease: seconds after which a session of a process that died may be opened by another one; a process that
            lives keeps its sessions.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "step",
        synchronous: Literal["normal", "full"] = "normal",
        busy_timeout: float = 10.0,
        lease: float = 30.0,
    ) -> None:
        options = {
            "durability": durability,
            "synchronous": synchronous,
            "busy_timeout": busy_timeout,
            "lease": lease,
        }
        file, chosen = path_and_options(os.fspath(path), options)
        self.path: Path = file
        self.durability: str = chosen["durability"]
        self.lease: float = chosen["lease"]
        self._file = SQLiteFile(file, synchronous=chosen["synchronous"], busy_timeout=chosen["busy_timeout"])
        self._bookings = Bookings(self._load_account)
        self._accounts_seen = 0
        self._renewal = Renewal(self._renew, self.lease)

    @property
    def accounts(self) -> Accounts:
        return self._bookings

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.path)!r})"

    async def open(self, session_id: str) -> SessionLog:
        owner = owner_name()
        key, revision, format = await self._file.write(lambda connection: self._take(connection, session_id, owner))
        log = SQLiteLog(self, session_id, key, owner)
        self._renewal.add(owner, key)
        try:
            rows, texts = await self._file.read(lambda connection: _rows_of(connection, key))
            log.events.notes.extend(_events_of(rows, texts, session_id, format, revision))
            log.begin(revision)
        except BaseException:
            await log.close()
            raise
        return log

    def _take(self, connection: Connection, session_id: str, owner: str) -> tuple[int, int, int]:
        """Take the lease of a session; return its key, its revision and its format.

        Raises:
            SessionConflictError: another process has it.
        """
        now = time.time()
        select = "SELECT key, revision, format, owner, expires FROM sessions WHERE id = ?"
        found = connection.execute(select, (session_id,)).fetchone()
        if found is None:
            insert = "INSERT INTO sessions (id, created, updated, owner, expires) VALUES (?, ?, ?, ?, ?)"
            made = connection.execute(insert, (session_id, now, now, owner, now + self.lease))
            return int(made.lastrowid or 0), 0, FORMAT
        key, revision, format, holder, expires = found
        check_lease(session_id, holder, expires)
        take = "UPDATE sessions SET owner = ?, expires = ? WHERE key = ?"
        connection.execute(take, (owner, now + self.lease, key))
        return key, revision, format

    async def read(self, session_id: str) -> Sequence[Event]:
        def work(connection: Connection) -> tuple[list[Any], Mapping[str, str], int, int]:
            select = "SELECT key, format, revision FROM sessions WHERE id = ?"
            key, format, revision = connection.execute(select, (session_id,)).fetchone() or (0, FORMAT, 0)
            return (*_rows_of(connection, key), format, revision)

        rows, texts, format, revision = await self._file.read(work)
        return tuple(_events_of(rows, texts, session_id, format, revision))

    async def sessions(self) -> Sequence[SessionInfo]:
        select = """SELECT id, user, agent, created, updated, turns, revision, status FROM sessions
            WHERE revision > 0 ORDER BY updated DESC, key DESC"""
        rows = await self._file.read(lambda connection: connection.execute(select).fetchall())
        return [SessionInfo(*row) for row in rows]

    async def delete(self, session_id: str) -> None:
        def work(connection: Connection) -> None:
            select = "SELECT key, owner, expires FROM sessions WHERE id = ?"
            found = connection.execute(select, (session_id,)).fetchone()
            if found is None:
                return
            key, owner, expires = found
            check_lease(session_id, owner, expires)
            has_contents = "SELECT 1 FROM events WHERE session = ? AND contents IS NOT NULL LIMIT 1"
            is_cleared = connection.execute(has_contents, (key,)).fetchone() is not None
            connection.execute("DELETE FROM events WHERE session = ?", (key,))
            connection.execute("DELETE FROM sessions WHERE key = ?", (key,))
            connection.execute("DELETE FROM accounts WHERE scope = 'session' AND what = ?", (session_id,))
            if is_cleared:
                connection.execute(_UNUSED)

        await self._file.write(work)
        for account in [account for account in self._bookings if account[2:] == ("session", session_id)]:
            del self._bookings[account]

    async def vacuum(self) -> None:
        """Give the space of deleted sessions back to the disk; nobody can write meanwhile."""
        await self._file.vacuum()

    async def close(self) -> None:
        """Close the file. Sessions that are open write on, and open it again."""
        self._renewal.stop()
        self._file.close()

    # For the logs

    async def write_log(self, log: SQLiteLog) -> None:
        """Write what a log holds back, and what was booked meanwhile, in one transaction."""
        rows, booked = await self._file.write(log.write)
        log.written(rows)
        self._booked(*booked)

    async def refresh_accounts(self) -> None:
        """Learn what other processes have booked, where a commit does not write."""
        if self._bookings.in_use:
            seen, bookings = await self._file.read(lambda connection: self._booked_since(connection))
            self._bookings.refreshed(bookings)
            self._accounts_seen = seen

    def book(self, connection: Connection) -> tuple[int, list[Booking], list[Booking]]:
        """Write the bookings of this process, inside of a transaction.

        Returns what `_booked` takes once that is committed.
        """
        bookings = self._bookings
        if not bookings.in_use and not bookings.changed:
            return self._accounts_seen, [], []
        seen, others = self._booked_since(connection)
        made: list[Booking] = []
        for key, account in bookings.changed.items():
            booking = (_account(connection, key) or Booking(key)).plus(account)
            seen += 1
            row = (*key, amount_text(booking.used), booking.exact, booking.warned, seen)
            connection.execute(_BOOK, row)
            made.append(booking)
        return seen, others, made

    def _booked(self, seen: int, others: list[Booking], made: list[Booking]) -> None:
        if others or made:
            self._bookings.refreshed([booking for booking in others if booking.key not in self._bookings.changed])
            self._bookings.kept(made)
        self._accounts_seen = seen

    def _booked_since(self, connection: Connection) -> tuple[int, list[Booking]]:
        (last,) = connection.execute("SELECT coalesce(max(revision), 0) FROM accounts").fetchone()
        if last == self._accounts_seen:
            return last, []
        rows = connection.execute(f"{_ACCOUNT} revision > ?", (self._accounts_seen,))
        return last, [_booking(row) for row in rows]

    def _load_account(self, key: tuple[str, str, str, str]) -> Booking | None:
        try:
            return self._file.read_now(lambda connection: _account(connection, key))
        except sqlite3.Error as error:
            raise StoreError(f"the accounts in {self.path} cannot be read: {error}") from error

    def _renew(self, leases: Sequence[tuple[str, int]]) -> None:
        expires = time.time() + self.lease
        update = "UPDATE sessions SET expires = ? WHERE key = ? AND owner = ?"
        rows = [(expires, key, owner) for owner, key in leases]
        self._file.write_now(lambda connection: connection.executemany(update, rows))

    async def release(self, owner: str, key: int) -> None:
        """Give up the lease of a session; one that nothing was written to vanishes."""
        self._renewal.remove(owner)

        def work(connection: Connection) -> None:
            free = "UPDATE sessions SET owner = NULL, expires = NULL WHERE key = ? AND owner = ?"
            if connection.execute(free, (key, owner)).rowcount:
                connection.execute("DELETE FROM sessions WHERE key = ? AND revision = 0", (key,))

        await self._file.write(work)


class SQLiteLog:
    """The log of one session in a SQLite file, open for writing."""

    is_durable = True

    def __init__(self, store: SQLiteStore, session_id: str, key: int, owner: str) -> None:
        self.events = Events()
        self.add = self.events.notes.append
        self._store = store
        self._id = session_id
        self._key = key
        self._owner = owner
        self._revision = 0
        self._encoded = 0
        """How many of the events are rows in `_rows`, or in the file."""
        self._rows: list[Record] = []
        self._failure: SessionConflictError | None = None

    def begin(self, revision: int) -> None:
        """Say how much of the log is in the file."""
        self._revision, self._encoded = revision, len(self.events)

    async def commit(self, point: str) -> None:
        if self._store.durability == "turn" and point not in ENDS:
            await self._store.refresh_accounts()
            return
        if self._failure is not None:
            if point == "session.end":  # it was raised before
                return
            raise self._failure
        if point == "session.end" and self._is_unused():
            return
        self._encode()
        if self._rows:
            await self._store.write_log(self)

    def _is_unused(self) -> bool:
        """Whether nothing happened in a new session: it need not be kept."""
        if self._revision or len(self.events) != 1:
            return False
        start = self.events[0]
        return isinstance(start, SessionStart) and not start.seed

    def _encode(self) -> None:
        notes = self.events.notes
        while self._encoded < len(notes):
            note = notes[self._encoded]
            try:
                self._rows.append(record_of(note))
            except CodecError as error:
                notes[self._encoded] = unstorable(note, error)
                raise
            self._encoded += 1

    def write(self, connection: Connection) -> tuple[int, tuple[int, list[Booking], list[Booking]]]:
        """Write all that was added, inside of a transaction.

        Returns what `written` takes once that is committed, and what the store takes.

        Raises:
            SessionConflictError: another process has taken the session.
        """
        rows, now = self._rows, time.time()
        if not rows:  # another commit of this session wrote it while this one waited
            return 0, self._store.book(connection)
        last = self._revision + len(rows)
        turns, status = self._turns()
        expires = now + self._store.lease
        known = (last, rows[-1].time, turns, status, self._owner, expires, self._key, self._revision, self._owner)
        if connection.execute(_COMMIT, known).rowcount != 1:
            self._failure = self._conflict(connection)
            raise self._failure
        if self._revision == 0:
            self._write_start(connection)
        for row in rows:
            if row.texts:
                connection.executemany("INSERT OR IGNORE INTO contents VALUES (?, ?)", list(row.texts.items()))
        values = [(self._key, row.seq, row.kind, row.turn_id, row.time, row.body, row.contents) for row in rows]
        connection.executemany(_INSERT, values)
        return len(rows), self._store.book(connection)

    def written(self, rows: int) -> None:
        """Take note that the file has the next `rows` rows."""
        self._revision += rows
        del self._rows[:rows]

    def _turns(self) -> tuple[int | None, str | None]:
        """Return what a list of sessions says of the turns, as far as it changes."""
        turns, status = None, None
        for row in self._rows:
            if row.kind == TurnStart.kind:
                event = self.events[row.seq - 1]
                turns, status = (event.turn_index + 1 if isinstance(event, TurnStart) else None), RUNNING
            elif row.kind == TurnEnd.kind:
                event = self.events[row.seq - 1]
                status = event.status if isinstance(event, TurnEnd) else None
        return turns, status

    def _write_start(self, connection: Connection) -> None:
        start = self.events[0]
        if isinstance(start, SessionStart):
            known = (start.user, start.agent, start.format, start.time, self._key)
            connection.execute(_START, known)

    def _conflict(self, connection: Connection) -> SessionConflictError:
        select = "SELECT revision FROM sessions WHERE key = ?"
        found = connection.execute(select, (self._key,)).fetchone()
        what = "was deleted" if found is None else "was taken over and may have been written"
        return SessionConflictError(
            f"session {self._id!r} {what} by another process, after this one had not renewed its lease of "
            f"{self._store.lease:g} s: open it again"
        )

    async def close(self) -> None:
        await self._store.release(self._owner, self._key)


def _rows_of(connection: Connection, key: int) -> tuple[list[Any], Mapping[str, str]]:
    """Return the rows of a session, and the long texts that belong into them."""
    rows = connection.execute(_EVENTS, (key,)).fetchall()
    if all(row[5] is None for row in rows):
        return rows, {}
    return rows, dict(connection.execute(_TEXTS, (key,)).fetchall())


def _events_of(
    rows: Sequence[Any], texts: Mapping[str, str], session_id: str, format: int, revision: int
) -> Iterator[Event]:
    """Yield the events of a session; in the place of one that is missing stands a `RecordDamaged`."""
    seq = 0
    for row in rows:
        record = Record(*row)
        for missing in range(seq + 1, record.seq):
            yield missing_record(missing, record.time, session_id)
        seq = record.seq
        yield event_of_record(record, texts.get, session_id=session_id, format=format)
    for missing in range(seq + 1, revision + 1):
        yield missing_record(missing, rows[-1][3] if rows else 0.0, session_id)


def _account(connection: Connection, key: tuple[str, str, str, str]) -> Booking | None:
    row = connection.execute(f"{_ACCOUNT} owner = ? AND key = ? AND scope = ? AND what = ?", key).fetchone()
    return None if row is None else _booking(row)


def _booking(row: Sequence[Any]) -> Booking:
    owner, key, scope, what, used, exact, warned = row
    return Booking((owner, key, scope, what), amount_of(used), bool(exact), bool(warned))
