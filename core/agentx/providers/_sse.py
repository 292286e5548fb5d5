"""Server-sent events, from bytes that may be split anywhere.

`httpx-sse` 0.4 was tried first, on the test of this module: it loses the first event behind a byte order mark, gathers
without a limit, and takes twice the time, because it makes text of everything. This one looks for whole lines in the
bytes and leaves the data as bytes, which is what the JSON decoder takes.
"""

from __future__ import annotations

import re

from agentx._errors import BadResponseError

MAX_EVENT = 64 * 1024 * 1024
"""Bytes of one event; images come inside of them."""
Event = tuple[str, bytes]
"""Name and data of one event. The name is empty where the server gave none."""
_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class SSEDecoder:
    """Takes the bytes of an event stream as they come and gives its events.

    Source: WHATWG HTML, server-sent events, "interpreting an event stream". Lines end with LF, CR or CRLF and nothing
    else; what no empty line follows is not an event. Events without data say nothing to a provider and are left out.
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._max = max_event
        self._rest = b""
        """What came after the last whole line, while it is short."""
        self._long: list[bytes] = []
        """More of it, not yet joined: a huge line comes in many chunks."""
        self._size = 0
        self._begun = False
        self._after_cr = False
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that `chunk` completes.

        Raises:
            BadResponseError: an event is larger than the limit.
        """
        if self._begun and not (self._rest or self._data or self._name or self._after_cr):
            event = _one_event(chunk)
            if event is not None and len(chunk) <= self._max:
                return [event]
        if not self._begun:
            chunk = self._without_mark(chunk)
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            lines = _LINE_END.split(chunk)
        else:
            lines = chunk.split(b"\n")
        last = lines.pop()
        if lines and self._rest:
            lines[0] = b"".join([self._rest, *self._long, lines[0]])
            self._rest, self._long, self._size = b"", [], sum(map(len, self._data))
        events = self._events(lines)
        if last:
            self._keep(last)
        return events

    def _events(self, lines: list[bytes]) -> list[Event]:
        events: list[Event] = []
        for line in lines:
            if line.startswith(b"data:"):
                data = line[6:] if line.startswith(b" ", 5) else line[5:]
                self._data.append(data)
                self._size += len(data)
                if self._size > self._max:
                    raise self._too_large()
            elif line:
                self._field(line)
            elif self._data:
                data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                if data:
                    events.append((self._name, data))
                self._name, self._data, self._size = "", [], 0
            else:
                self._name = ""
        return events

    def _field(self, line: bytes) -> None:
        """Read a line that is not plainly data; `id` and `retry` are for reconnecting, which no provider allows."""
        name, _, value = line.partition(b":")
        if name == b"event":
            self._name = value.removeprefix(b" ").decode("utf-8", "replace")
        elif name == b"data":
            self._data.append(b"")

    def _keep(self, piece: bytes) -> None:
        if self._rest:
            self._long.append(piece)
        else:
            self._rest = piece
        self._grow(len(piece))

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._max:
            raise self._too_large()

    def _too_large(self) -> BadResponseError:
        return BadResponseError(f"an event of the stream is larger than {self._max} bytes")

    def _without_mark(self, chunk: bytes) -> bytes:
        """Drop a byte order mark at the very beginning, however it is split."""
        chunk = self._rest + chunk
        self._rest = b""
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._rest = chunk
            return b""
        self._begun = True
        return chunk.removeprefix(_BOM)


def _one_event(chunk: bytes) -> Event | None:
    """Return the event of a chunk that is exactly one, which is how most servers send them; else nothing."""
    head, mark, tail = chunk.partition(b"data: ")
    end = len(tail) - 2
    if end <= 0 or not mark or tail.find(b"\n") != end or not tail.endswith(b"\n\n") or b"\r" in chunk:
        return None
    if not head:
        return "", tail[:end]
    if head.startswith(b"event: ") and head.find(b"\n") == len(head) - 1:
        return head[7:-1].decode("utf-8", "replace"), tail[:end]
    return None
