"""Who may write a session: its owner's lease, renewed while the owner lives."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread

from agentx._errors import SessionConflictError

logger = logging.getLogger("agentx")
Renew = Callable[[Sequence[tuple[str, int]]], None]


def owner_name() -> str:
    """Return a name that no other opening of a session has; it also says which process that is."""
    return f"{_machine()}/{os.getpid()}/{os.urandom(8).hex()}"


def check_lease(session_id: str, owner: str | None, expires: float | None) -> None:
    """Refuse a session that somebody has open.

    Raises:
        SessionConflictError: naming the process.
    """
    if owner is None or expires is None or expires <= time.time() or _has_died(owner):
        return
    machine, _, rest = owner.partition("/")
    name, pid = machine.partition("#")[0], rest.partition("/")[0]
    where = "this process" if machine == _machine() and pid == str(os.getpid()) else f"process {pid} on {name}"
    raise SessionConflictError(
        f"session {session_id!r} is open in {where}, which holds it for {expires - time.time():.0f} s more "
        "unless it renews that: close it there, or wait"
    )


def _machine() -> str:
    """Return what has process numbers of its own: this machine, or this container on it."""
    space = ""
    with suppress(OSError):
        space = str(Path("/proc/self/ns/pid").stat().st_ino)
    return f"{socket.gethostname().replace('/', '_')}#{space}"


def _has_died(owner: str) -> bool:
    """Return whether the owner is known to have died. Of another machine's processes nothing is known."""
    machine, pid, _ = owner.split("/") if owner.count("/") == 2 else ("", "", "")
    if machine != _machine() or not pid.isdigit() or sys.platform == "win32":  # there `kill` does what it says
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


class Renewal:
    """Renews the leases of open sessions, in a thread: an event loop may be busy, or wait for a model for long."""

    def __init__(self, renew: Renew, lease: float) -> None:
        self._renew = renew
        self._pause = lease / 3
        self._leases: dict[str, int] = {}
        self._condition = Condition()
        self._thread: Thread | None = None
        self._pid = 0

    def add(self, owner: str, key: int) -> None:
        with self._condition:
            self._leases[owner] = key
            if self._thread is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._thread = Thread(target=self._run, name="agentx leases", daemon=True)
                self._thread.start()

    def remove(self, owner: str) -> None:
        self._leases.pop(owner, None)

    def stop(self) -> None:
        """End the thread if nothing is open; the next session that opens starts another."""
        with self._condition:
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait(self._pause)
                if not self._leases:
                    self._thread = None
                    return
                leases = list(self._leases.items())
            try:
                self._renew(leases)
            except Exception as error:  # tried again before the lease is over
                logger.warning("the leases of %d sessions were not renewed: %s", len(leases), error)
