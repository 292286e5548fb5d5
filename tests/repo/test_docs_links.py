"""Links between pages lead somewhere, and every page can be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from ._pages import DOCS, REPO, anchors_of, links_of, name_of, pages


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """A link within the repository names a file that is there, and a heading of it."""
    wrong = [
        f"{name_of(page)}:{line}: {target}" for line, target in links_of(page) if not leads_somewhere(page, target)
    ]
    assert not wrong, "\n".join(wrong)


def leads_somewhere(page: Path, target: str) -> bool:
    if target.startswith(("http://", "https://", "mailto:")):
        return True
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists() or REPO not in file.parents:
        return False
    return not anchor or file.suffix != ".md" or anchor in anchors_of(file)


def test_every_page_can_be_reached_from_the_index() -> None:
    """docs/index.md leads to each page of the documentation, directly or through another."""
    seen: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        waiting += [
            (page.parent / target.partition("#")[0]).resolve() for _, target in links_of(page) if "://" not in target
        ]
    apart = {page for page in DOCS.rglob("*.md") if "changelog.d" not in page.parts} - seen
    assert not apart, sorted(name_of(page) for page in apart)
