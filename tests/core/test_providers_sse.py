"""Server-sent events: the same events however the bytes are split, and those that the specification says."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentx import BadResponseError
from agentx.providers import SSEDecoder


def decode(*chunks: bytes) -> list[tuple[str, bytes]]:
    decoder = SSEDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def by_the_book(stream: bytes) -> list[tuple[str, bytes]]:
    """The specification's algorithm on the whole stream, one character after the other."""
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    lines, line, at = [], b"", 0
    while at < len(stream):
        if stream[at : at + 2] == b"\r\n":
            at += 1
        if stream[at : at + 1] in (b"\r", b"\n"):
            lines.append(line)
            line = b""
        else:
            line += stream[at : at + 1]
        at += 1
    events, name, data = [], b"", b""
    for line in lines:
        if not line:
            if data[:-1]:
                events.append((name.decode("utf-8", "replace"), data[:-1]))
            name, data = b"", b""
            continue
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if field == b"event":
            name = value
        elif field == b"data":
            data += value + b"\n"
    return events


PIECES = st.sampled_from(
    [
        b"data: ",
        b"data:",
        b"data",
        b"event: ping",
        b"event:",
        b": keep-alive",
        b"retry: 3",
        b"id: 7",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\r\n\r\n",
        b" ",
        b":",
        b"{}",
        "\u2028\u0085€".encode(),
        b"\xff\xe2\x82",
        b"\0",
        b"\xef\xbb\xbf",
        b"database: no",
    ]
)


@given(st.lists(PIECES, max_size=40).map(b"".join), st.lists(st.integers(0, 200), max_size=12))
def test_any_split_gives_the_events_that_the_specification_says(stream: bytes, places: list[int]) -> None:
    edges = [0, *sorted(min(place, len(stream)) for place in places), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(edges)]
    assert decode(*chunks) == by_the_book(stream)


def test_one_byte_at_a_time_is_a_split_like_any_other() -> None:
    stream = "\ufeff: hi\r\nevent: a\r\ndata: one\rdata: two\n\ndata: €\r\r".encode()
    assert decode(*[bytes([byte]) for byte in stream]) == [("a", b"one\ntwo"), ("", "€".encode())]


def test_keep_alives_and_fields_without_data_are_no_events() -> None:
    stream = b": ping\n\nretry: 3000\n\nevent: ping\ndata: \n\ndata: {}\n\n:\n\ndata:[DONE]\n\n"
    assert decode(stream) == [("", b"{}"), ("", b"[DONE]")]


def test_what_no_empty_line_follows_is_no_event() -> None:
    assert decode(b"data: whole\n\ndata: cut\n") == [("", b"whole")]


def test_a_name_counts_for_its_own_event_only() -> None:
    assert decode(b"event: a\n\nevent: b\ndata: 1\n\ndata: 2\n\n") == [("b", b"1"), ("", b"2")]


def test_separators_of_unicode_do_not_end_lines() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"
    assert decode(f"data: {text}\n\n".encode()) == [("", text.encode())]


def test_an_event_in_many_chunks_is_refused_once_it_is_too_large() -> None:
    decoder = SSEDecoder(max_event=1000)
    decoder.feed(b"data: ")
    with pytest.raises(BadResponseError, match="larger than 1000 bytes"):
        for _ in range(20):
            decoder.feed(b"x" * 100)


def test_lines_of_one_event_count_together() -> None:
    decoder = SSEDecoder(max_event=1000)
    with pytest.raises(BadResponseError, match="larger than 1000 bytes"):
        decoder.feed(b"data: xxxxxxxxxx\n" * 200)


def test_small_events_are_not_added_up() -> None:
    decoder = SSEDecoder(max_event=1000)
    assert len(decoder.feed(b"data: xxxxxxxxxx\n\n" * 500)) == 500
