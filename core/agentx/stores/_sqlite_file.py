"""One SQLite file: opening it, its schema and how that changes, and transactions."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from random import uniform
from threading import RLock
from typing import TypeVar

import anyio

from agentx._errors import StoreError, StoreLockedError

T = TypeVar("T")
APPLICATION_ID = 0x61677831
"""Says in the file's header whose it is: `agx1`."""
FIRST_PAUSE, LONGEST_PAUSE = 0.0005, 0.05

_VERSION_1 = (
    """CREATE TABLE sessions (
        key INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        user TEXT,
        agent TEXT NOT NULL DEFAULT '',
        format INTEGER NOT NULL DEFAULT 1,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        turns INTEGER NOT NULL DEFAULT 0,
        status TEXT NOT NULL DEFAULT '',
        revision INTEGER NOT NULL DEFAULT 0,
        owner TEXT,
        expires REAL
    ) STRICT""",
    """CREATE TABLE events (
        session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
        seq INTEGER NOT NULL,
        kind TEXT NOT NULL,
        turn_id TEXT,
        time REAL NOT NULL,
        body TEXT NOT NULL,
        contents TEXT,
        PRIMARY KEY (session, seq)
    ) STRICT""",
    "CREATE INDEX events_with_contents ON events (session) WHERE contents IS NOT NULL",
    "CREATE TABLE contents (hash TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT",
    """CREATE TABLE accounts (
        owner TEXT NOT NULL,
        key TEXT NOT NULL,
        scope TEXT NOT NULL,
        what TEXT NOT NULL,
        used TEXT NOT NULL,
        exact INTEGER NOT NULL,
        warned INTEGER NOT NULL,
        revision INTEGER NOT NULL,
        PRIMARY KEY (owner, key, scope, what)
    ) STRICT""",
    "CREATE INDEX accounts_by_revision ON accounts (revision)",
)
MIGRATIONS: tuple[tuple[str, ...], ...] = (_VERSION_1,)
"""What turns a file of one version into one of the next; a file of version n has had the first n."""


class SQLiteFile:
    """A connection that opens when it is first used, and opens anew in a forked process.

    Transactions run at once in the thread that asks: one that need not reach the disk takes less than a change of
    threads. Where another process holds the file, waiting is the event loop's, and never blocks it.
    """

    def __init__(self, path: Path, *, synchronous: str, busy_timeout: float) -> None:
        self.path = path
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._lock = RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._foreign: list[sqlite3.Connection] = []
        """Connections of the process that forked this one: closing them here would harm it."""

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one transaction that may write.

        Raises:
            StoreLockedError: others held the file for longer than `busy_timeout`.
            StoreError: the file cannot be used.
        """
        return await self._when_free(lambda: self.write_now(work))

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work`, which only reads, on one state of the file. Raises what `write` raises."""
        return await self._when_free(lambda: self.read_now(work))

    async def _when_free(self, attempt: Callable[[], T]) -> T:
        until, pause = 0.0, FIRST_PAUSE
        while True:
            try:
                return attempt()
            except sqlite3.Error as error:
                if not _is_busy(error):
                    raise self._failure(error) from error
                until = until or time.monotonic() + self._busy_timeout
                if time.monotonic() >= until:
                    fix = "end the program that holds it, or give the store a longer busy_timeout"
                    message = f"{self.path} is locked by another process for more than {self._busy_timeout:g} s: {fix}"
                    raise StoreLockedError(message) from error
            await anyio.sleep(pause * uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_PAUSE)

    def write_now(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a transaction, without waiting for anybody.

        Raises:
            sqlite3.Error: the file is locked, or cannot be used.
        """
        return self._transaction("BEGIN IMMEDIATE", work)

    def read_now(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return self._transaction("BEGIN", work)

    def _transaction(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            connection = self._connection
            if connection is None or self._pid != os.getpid():
                connection = self._open()
            connection.execute(begin)
            try:
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return result

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            self._foreign.append(self._connection)
            self._connection = None
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # what SQLite creates, others could read
        except OSError as error:
            raise StoreError(f"the store {self.path} cannot be opened: {error.strerror}") from error
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._pid = connection, os.getpid()
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Bring the file to the schema of this version. Nothing is written to a file that is not ours.

        Raises:
            StoreError: it is another program's, or a newer agentx's.
        """
        version = self._check(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute("PRAGMA foreign_keys = ON")
        if version == len(MIGRATIONS):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            for migration in MIGRATIONS[self._check(connection) :]:
                for statement in migration:
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    def _check(self, connection: sqlite3.Connection) -> int:
        """Return the version of the file's schema."""
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if owner != APPLICATION_ID:
            if version or owner or connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                raise StoreError(f"{self.path} is a database of another program: name another file for the store")
            return 0
        if version > len(MIGRATIONS):
            raise StoreError(
                f"{self.path} has version {version}, and this agentx reads up to {len(MIGRATIONS)}: use a newer one"
            )
        return int(version)

    def _failure(self, error: sqlite3.Error) -> StoreError:
        if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
            return StoreError(f"{self.path} cannot be written: {error}")
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            return StoreError(f"{self.path} is damaged ({error}): `sqlite3 FILE .recover` saves what can be read")
        return StoreError(f"{self.path} cannot be used: {error}")

    async def vacuum(self) -> None:
        """Give unused pages back to the disk. Raises what `write` raises."""

        def attempt() -> None:
            with self._lock:
                connection = self._connection or self._open()
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        await self._when_free(attempt)

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None and self._pid == os.getpid():
                connection.close()
            elif connection is not None:
                self._foreign.append(connection)


def _is_busy(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
