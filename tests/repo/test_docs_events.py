"""docs/reference/events.md has every kind of event, its fields, and whether it is stored."""

from __future__ import annotations

import attrs
import pytest

from agentx import Event, UnknownEvent
from agentx._events import EVENTS

from ._pages import DOCS, code_in, first_cells, headings_of, section

PAGE = DOCS / "reference" / "events.md"
KINDS: dict[str, type[Event]] = {**EVENTS, UnknownEvent.kind: UnknownEvent}
COMMON = [field.name for field in attrs.fields(Event)]


def heading(cls: type[Event]) -> str:
    return f"{cls.kind} ●" if cls.stored else cls.kind


def test_every_kind_has_a_section() -> None:
    """The sections are the kinds, with a mark on those that are stored."""
    others = ["Events", "How to see them", "What every event has"]
    assert [text for text in headings_of(PAGE) if text not in others] and set(headings_of(PAGE)) == {
        *others,
        *(heading(cls) for cls in KINDS.values()),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_an_event_is_documented(kind: str) -> None:
    """Section and class have the same fields, in the same order."""
    cls = KINDS[kind]
    fields = [field.name for field in attrs.fields(cls) if field.name not in COMMON]
    assert [code_in(cell) for cell in first_cells(section(PAGE, heading(cls)))] == fields


def test_what_every_event_has_is_documented() -> None:
    """The fields of the base class have a section of their own."""
    assert [code_in(cell) for cell in first_cells(section(PAGE, "What every event has"))] == COMMON
