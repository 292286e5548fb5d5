"""Bodies by key, in one SQLite file that several processes may share.

SQLite and not a library of caches: diskcache, the known one, pickles unless told otherwise and had its last release in
2023. A write is a transaction, so nobody sees half an entry; what a reader gets is checked against its digest.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

_PATIENCE = 5.0
"""Seconds to wait for another process that writes."""
_FRESH = 60.0
"""Seconds; an entry that was used so lately is not marked as used again."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY, stored REAL NOT NULL, used REAL NOT NULL, size INTEGER NOT NULL,
    digest BLOB NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS by_use ON entries (used, size);
"""


class ShelfError(Exception):
    """The file, or an entry of it, cannot be used; the message says why."""


@attrs.frozen
class Found:
    body: bytes
    age: float
    """Seconds since it was put there."""


class Shelf:
    """Where bodies stand. Its methods block, and may be called from any thread.

    Args:
        path: the file; made when something is first put or looked for.
        ttl: seconds for which a body counts; `None` for ever.
        max_bytes: of all bodies together; those that were not used for the longest time go first.
    """

    def __init__(self, path: Path, ttl: float | None, max_bytes: int) -> None:
        self._path = path
        self._ttl = ttl
        self._max_bytes = max_bytes
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def find(self, key: str, now: float) -> Found | None:
        """Return what stands under a key, if it is not too old.

        Raises:
            ShelfError: it is damaged, and was taken away; or the file cannot be read.
        """
        with self._opened() as connection:
            row = connection.execute("SELECT stored, used, digest, body FROM entries WHERE key = ?", (key,)).fetchone()
            if row is None or self._is_old(row[0], now):
                return None
            stored, used, digest, body = row
            if hashlib.sha256(body).digest() != digest:
                connection.execute("DELETE FROM entries WHERE key = ?", (key,))
                raise ShelfError(f"an entry of {self._path} is damaged and was removed")
            if now - used > _FRESH:
                connection.execute("UPDATE entries SET used = ? WHERE key = ?", (now, key))
            return Found(body, max(0.0, now - stored))

    def put(self, key: str, body: bytes, now: float) -> None:
        """Put a body under a key, and take away what is too old or too much.

        Raises:
            ShelfError: the file cannot be written.
        """
        if len(body) > self._max_bytes:
            return
        row = (key, now, now, len(body), hashlib.sha256(body).digest(), body)
        with self._opened() as connection, _transaction(connection):
            connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)
            if self._ttl is not None:
                connection.execute("DELETE FROM entries WHERE stored <= ?", (now - self._ttl,))
            self._shrink(connection, key)

    def remove(self, key: str) -> None:
        with self._opened() as connection:
            connection.execute("DELETE FROM entries WHERE key = ?", (key,))

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _is_old(self, stored: float, now: float) -> bool:
        return self._ttl is not None and stored <= now - self._ttl

    def _shrink(self, connection: sqlite3.Connection, newest: str) -> None:
        (total,) = connection.execute("SELECT sum(size) FROM entries").fetchone()
        excess = total - self._max_bytes
        if excess <= 0:
            return
        for key, size in connection.execute("SELECT key, size FROM entries ORDER BY used").fetchall():
            if excess > 0 and key != newest:
                connection.execute("DELETE FROM entries WHERE key = ?", (key,))
                excess -= size

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock:
                self._connection = self._connection or self._open()
                yield self._connection
        except (sqlite3.Error, OSError) as error:
            raise ShelfError(f"{self._path} cannot be used ({error}): delete it, or set another path") from error

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))  # it holds conversations: for its owner only
        connection = sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
