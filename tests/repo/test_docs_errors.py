"""docs/reference/errors.md has a section for every stable code, and none that is gone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import attrs

from agentx import AgentxError, ModelError
from agentx import _errors as errors

from ._pages import DOCS, code_in, first_cells, headings_of, section
from ._sources import name_of, sources

PAGE = DOCS / "reference" / "errors.md"
CLI_ONLY = {"bug"}
"""Printed by the command line for what is not agentx's own."""


@attrs.frozen
class Coded:
    name: str
    code: str
    where: str


def coded() -> Iterator[Coded]:
    """Yield every class of the repository that states a code, whether it can be imported here or not."""
    for file in sources():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield from (Coded(node.name, code, name_of(file)) for code in _codes(node))


def _codes(cls: ast.ClassDef) -> Iterator[str]:
    for item in cls.body:
        target = item.targets[0] if isinstance(item, ast.Assign) else getattr(item, "target", None)
        value = getattr(item, "value", None)
        text = value.value if isinstance(value, ast.Constant) else None
        if isinstance(target, ast.Name) and target.id == "code" and isinstance(text, str):
            yield text


def test_every_code_has_a_section() -> None:
    """The command line sends people to `errors.md#code`: it must be there."""
    codes = {one.code for one in coded()} | CLI_ONLY
    sections = {text for text in headings_of(PAGE) if re.fullmatch(r"[a-z]+(-[a-z]+)*", text)}
    assert sections == codes


def test_every_section_names_the_class() -> None:
    """A reader who has the name of a class finds its code."""
    public = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, AgentxError)]
    for cls in public:
        assert f"`{cls.__name__}`" in section(PAGE, cls.code), cls.__name__


def test_codes_are_distinct() -> None:
    """A code means one thing."""
    found = list(coded())
    for one in found:
        others = [other.where for other in found if other.code == one.code and other.name != one.name]
        assert not others, f"{one.code!r} of {one.name} is also in {others}"


def test_the_attributes_of_model_errors_are_documented() -> None:
    """What a caller may ask every failed model call."""
    attributes = list(vars(ModelError("x")))
    assert [code_in(cell) for cell in first_cells(section(PAGE, "model"))] == attributes


def test_the_tree_in_the_docstring_has_every_class() -> None:
    """The module draws the exception tree; it is complete."""
    names = {cls.__name__ for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, AgentxError)}
    assert names <= set(re.findall(r"\w+", errors.__doc__ or ""))
