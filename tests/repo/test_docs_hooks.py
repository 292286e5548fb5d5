"""docs/reference/hooks.md has every hook, every argument and every public member of the contexts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from agentx import Limit, Plugin, hookimpl
from agentx._context import CONTEXTS
from agentx._history import History
from agentx._hookspecs import HOOKS, Hooks
from agentx._ledger import Ledger
from agentx._order import PHASES

from ._pages import DOCS, code_in, first_cells, headings_of, section

PAGE = DOCS / "reference" / "hooks.md"


def documented(heading: str) -> dict[str, str]:
    """Return by name what the tables of a section document, as it is written: `get(key, default)` by `get`."""
    found = {}
    for cell in first_cells(section(PAGE, heading)):
        for code in re.findall(r"`([^`]+)`", cell):
            found[code.partition("(")[0]] = code
    return found


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def arguments_in(code: str) -> list[str]:
    inside = re.search(r"\((.*)\)", code)
    words = [word.strip().lstrip("*") for word in inside[1].split(",")] if inside else []
    return [word for word in words if word]


def public(cls: type) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if not name.startswith("_")}


def test_the_hooks_are_those_of_the_specification() -> None:
    """A hook that is added to the specification needs a section."""
    assert set(public(Hooks)) == set(HOOKS)
    assert set(HOOKS) <= set(headings_of(PAGE))


@pytest.mark.parametrize("hook", HOOKS)
def test_every_argument_of_a_hook_is_documented(hook: str) -> None:
    """Section and specification have the same arguments, and the specification explains them too."""
    spec = getattr(Hooks, hook)
    assert list(documented(hook)) == parameters(spec) == ["ctx", "call_next"]
    explained = re.findall(r"^\s+(\w+): ", inspect.getdoc(spec) or "", re.MULTILINE)
    assert explained == parameters(spec)
    summary = (inspect.getdoc(spec) or "").splitlines()[0]
    assert summary in section(PAGE, hook), "the section begins with the first sentence of the specification"


@pytest.mark.parametrize("hook", HOOKS)
def test_every_public_member_of_a_context_is_documented(hook: str) -> None:
    """Whatever a layer can use on its context has a row, with the names of its arguments."""
    cls = CONTEXTS[hook]
    compare(cls, documented(cls.__name__))


@pytest.mark.parametrize(("cls", "heading"), [(Ledger, "Ledger"), (History, "History")])
def test_what_a_context_gives_access_to_is_documented(cls: type, heading: str) -> None:
    """The ledger and the history are documented like the contexts."""
    compare(cls, documented(heading))


def compare(cls: type, found: dict[str, str]) -> None:
    members = public(cls)
    assert set(found) == set(members), f"{cls.__name__}: documented and public members differ"
    for name, value in members.items():
        if isinstance(value, property):
            assert found[name] == name
        else:
            assert arguments_in(found[name]) == parameters(value), f"{cls.__name__}.{name}"


def test_what_can_be_said_of_a_limit_is_documented() -> None:
    """Every argument of Limit has a row."""
    assert list(documented("Limit")) == [field.name for field in attrs.fields(Limit)]


def test_what_a_plugin_class_says_is_documented() -> None:
    """Every public attribute of Plugin has a row."""
    assert set(documented("What a plugin class says")) == set(public(Plugin))


def test_the_options_of_hookimpl_are_documented() -> None:
    """Every option of the decorator has a row."""
    options = [name for name in parameters(hookimpl) if name not in ("function", "unknown")]
    assert list(documented("hookimpl")) == options


def test_the_phases_are_documented_in_their_order() -> None:
    """The table has every phase, outermost first."""
    assert tuple(code_in(cell) for cell in first_cells(section(PAGE, "Phases"))) == PHASES
