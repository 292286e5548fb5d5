"""Who may import whom: upward in one list, plugins only what is public."""

from __future__ import annotations

from pathlib import Path

import pytest

from ._sources import CORE, DISTRIBUTIONS, REPO, imports_of, name_of, sources

ORDER = (
    "_errors",
    "_messages",
    "_tokens",
    "_events",
    "_clock",
    "_codec",
    "_signature",
    "_threads",
    "_tools",
    "_toolbox",
    "_models",
    "_schema",
    "_output",
    "_hookspecs",
    "_plugin",
    "_order",
    "_why",
    "_scan",
    "_settings",
    "_convert",
    "_config",
    "_config_edit",
    "_configure",
    "_lookup",
    "_ledger",
    "_store",
    "_host",
    "_parallel",
    "_result",
    "_frames",
    "_recording",
    "_approval",
    "_unfinished",
    "_history",
    "_context",
    "_streaming",
    "_onion",
    "_members",
    "_offers",
    "_services",
    "_rows",
    "_registration",
    "_plugins",
    "_calls",
    "_loop",
    "_valid_history",
    "_turn",
    "_branch",
    "_stream",
    "_session",
    "_subagent",
    "_agent",
)
"""The modules of core; each imports only those above it."""
LATER = {
    ("_subagent", "_agent"): "a child's onions are compiled when its tool is called",
}
"""Imports inside of a function that go the other way, with the reason."""
FACES = ("builtin", "cli", "providers", "stores", "testing")
"""Packages that stand on core; nothing of core imports them."""


def modules() -> list[Path]:
    return sorted(file for file in CORE.glob("_*.py") if file.stem != "__init__")


def test_the_list_has_every_module() -> None:
    """A new module takes its place in the list."""
    assert {file.stem for file in modules()} == set(ORDER)


@pytest.mark.parametrize("file", modules(), ids=lambda file: file.stem)
def test_imports_inside_core_go_one_way(file: Path) -> None:
    """A module imports what stands above it; for annotations alone it may import anything."""
    place = ORDER.index(file.stem)
    wrong = []
    for one in imports_of(file):
        if one.typing_only or not one.module.startswith("agentx"):
            continue
        target = one.module.removeprefix("agentx").strip(".").partition(".")[0] or one.name
        if target in FACES or target not in ORDER:
            wrong.append(f"{name_of(file)}:{one.line} imports {one.module}")
        elif ORDER.index(target) >= place and (one.at_top or (file.stem, target) not in LATER):
            wrong.append(f"{name_of(file)}:{one.line} imports {target}, which stands below it")
    assert not wrong, "\n".join(wrong)


def test_the_exceptions_are_needed() -> None:
    """An exception that nothing uses any more is taken out."""
    for module, target in LATER:
        found = [one for one in imports_of(CORE / f"{module}.py") if one.module == f"agentx.{target}"]
        assert any(not one.typing_only for one in found), (module, target)


def outsiders() -> list[Path]:
    """Return the modules that stand on the public face: the built-in plugins and every distribution."""
    inside = [file for file in sources() if CORE / "builtin" in file.parents]
    return inside + [file for file in sources() if any(folder in file.parents for folder in DISTRIBUTIONS)]


def test_one_module_imports_httpx() -> None:
    """So that its successor is a change of one line."""
    found = {name_of(file) for file in sources() for one in imports_of(file) if one.module.startswith("httpx")}
    assert found == {"core/agentx/providers/_http.py"}


@pytest.mark.parametrize("file", outsiders(), ids=lambda file: name_of(file))
def test_plugins_import_only_public_names(file: Path) -> None:
    """What is in core's underscore modules may change; a plugin cannot have it."""
    import agentx
    from agentx import providers

    wrong = []
    for one in imports_of(file):
        if one.module.partition(".")[0] not in ("agentx", "agentx_pytest") or one.module.startswith("agentx.builtin"):
            continue
        public = {"agentx": agentx.__all__, "agentx.providers": providers.__all__}
        names = public.get(one.module)
        is_public = one.module in ("agentx.testing", "agentx_pytest") or names is not None
        if not is_public or (names is not None and one.name and one.name not in names):
            wrong.append(f"{name_of(file)}:{one.line} imports {one.module}{f'.{one.name}' if one.name else ''}")
    assert not wrong, "\n".join(wrong)


def test_plugins_do_not_reach_into_each_other() -> None:
    """A distribution imports another one's package only if it depends on it."""
    packages = {folder.name.replace("-", "_"): folder for folder in DISTRIBUTIONS}
    for file in outsiders():
        mine = next((folder for folder in DISTRIBUTIONS if folder in file.parents), None)
        for one in imports_of(file):
            other = packages.get(one.module.partition(".")[0])
            if other is None or other == mine:
                continue
            text = (mine / "pyproject.toml").read_text(encoding="utf-8") if mine else ""
            assert f'"{other.name}' in text, (
                f"{name_of(file)}:{one.line} imports {one.module} and does not depend on it"
            )


def test_builtin_plugins_are_ordinary() -> None:
    """Each is an entry point, so that it can be disabled or replaced like any other."""
    import tomllib

    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    offered = {value.partition(":")[0] for value in project["entry-points"]["agentx.plugins"].values()}
    modules = {f"agentx.builtin.{file.stem}" for file in (CORE / "builtin").glob("*.py") if file.stem != "__init__"}
    assert {module for module in modules if not module.rpartition(".")[2].startswith("_")} == offered
