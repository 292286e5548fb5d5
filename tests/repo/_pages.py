"""The pages of the documentation, taken apart: headings, links, examples, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs
from markdown_it import MarkdownIt
from markdown_it.token import Token

REPO = Path(__file__).resolve().parents[2]
DOCS = REPO / "docs"
_parser = MarkdownIt("commonmark").enable("table")


@attrs.frozen
class Fence:
    """A fenced block. `title` is the file it stands for, `flags` are the other words behind its language."""

    page: Path
    line: int
    language: str
    title: str
    flags: frozenset[str]
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(REPO)}:{self.line}"


def pages() -> list[Path]:
    """Return every page that a reader may open."""
    found = [REPO / "README.md", *DOCS.rglob("*.md")]
    for folder in ("plugins", "contrib"):
        found += REPO.glob(f"{folder}/*/README.md")
    return sorted(found)


def name_of(page: Path) -> str:
    return page.relative_to(REPO).as_posix()


def tokens_of(page: Path) -> list[Token]:
    return _parser.parse(page.read_text(encoding="utf-8"))


def fences_of(page: Path) -> list[Fence]:
    return [_fence(page, token) for token in tokens_of(page) if token.type == "fence"]


def _fence(page: Path, token: Token) -> Fence:
    info = token.info.strip()
    title = re.search(r'title="([^"]+)"', info)
    words = re.sub(r'title="[^"]+"', "", info).split()
    line = token.map[0] + 1 if token.map else 0
    language = words[0] if words else ""
    return Fence(page, line, language, title[1] if title else "", frozenset(words[1:]), token.content)


def headings_of(page: Path) -> list[str]:
    """Return the texts of the headings, as they are written."""
    tokens = tokens_of(page)
    return [tokens[at + 1].content for at, token in enumerate(tokens) if token.type == "heading_open"]


def anchors_of(page: Path) -> set[str]:
    """Return what `#…` of a link to this page may be, as GitHub makes them of headings."""
    found: dict[str, int] = {}
    anchors = set()
    for heading in headings_of(page):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = found.get(plain, 0)
        anchors.add(f"{plain}-{again}" if again else plain)
        found[plain] = again + 1
    return anchors


def links_of(page: Path) -> Iterator[tuple[int, str]]:
    """Yield line and target of every link."""
    for token in tokens_of(page):
        for child in token.children or ():
            target = child.attrGet("href") if child.type == "link_open" else child.attrGet("src")
            if target:
                yield (token.map[0] + 1 if token.map else 0), str(target)


def section(page: Path, heading: str) -> str:
    """Return the text below a heading, up to the next one of its level or above."""
    lines = page.read_text(encoding="utf-8").splitlines()
    tokens = tokens_of(page)
    starts = [
        (token.map[0] if token.map else 0, int(token.tag[1]), tokens[at + 1].content)
        for at, token in enumerate(tokens)
        if token.type == "heading_open"
    ]
    for at, (line, level, text) in enumerate(starts):
        if text == heading:
            end = next((line for line, other, _ in starts[at + 1 :] if other <= level), len(lines))
            return "\n".join(lines[line + 1 : end])
    raise LookupError(f"{name_of(page)} has no heading {heading!r}")


def first_cells(text: str) -> list[str]:
    """Return the first cell of every row of every table in a text, without the rows of headers."""
    rows = [line.strip() for line in text.splitlines() if line.strip().startswith("|")]
    cells = [row.strip("|").split("|")[0].strip() for row in rows]
    return [cell for at, cell in enumerate(cells) if not _is_header(rows, at)]


def _is_header(rows: list[str], at: int) -> bool:
    return _is_rule(rows[at]) or (at + 1 < len(rows) and _is_rule(rows[at + 1]))


def _is_rule(row: str) -> bool:
    return re.fullmatch(r"[|\s:-]+", row) is not None


def code_in(cell: str) -> str:
    """Return the first piece of code of a cell."""
    found = re.search(r"`([^`]+)`", cell)
    return found[1] if found else ""
