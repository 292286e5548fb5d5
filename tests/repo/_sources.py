"""The Python files of the repository, and what they import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import attrs

REPO = Path(__file__).resolve().parents[2]
CORE = REPO / "core" / "agentx"
DISTRIBUTIONS = sorted(
    file.parent for folder in ("plugins", "contrib") for file in REPO.glob(f"{folder}/*/pyproject.toml")
)
_PACKAGES = ("core/agentx/**/*.py", "core/agentx_pytest/**/*.py", "plugins/*/*/**/*.py", "contrib/*/*/**/*.py")


def sources() -> list[Path]:
    """Return every module that a distribution ships; templates that the command line fills in are none."""
    found = [file for pattern in _PACKAGES for file in REPO.glob(pattern)]
    return sorted(file for file in found if "templates" not in file.parts and not _is_made(file))


def _is_made(file: Path) -> bool:
    return any(
        part.startswith(".") or part in ("__pycache__", "build", "dist") for part in file.relative_to(REPO).parts
    )


def name_of(file: Path) -> str:
    return file.relative_to(REPO).as_posix()


@attrs.frozen
class Import:
    """One imported name. `module` is absolute; `name` is empty for `import module`."""

    module: str
    name: str
    line: int
    at_top: bool
    """Executed when the module is imported."""
    typing_only: bool


def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def imports_of(file: Path) -> list[Import]:
    """Return what a file imports, wherever in it."""
    return list(_imports(parse(file), package_of(file), at_top=True, typing_only=False))


def package_of(file: Path) -> str:
    """Return the dotted name of the package a module is in."""
    folder = file.parent
    parts = []
    while (folder / "__init__.py").exists():
        parts.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(parts))


def _imports(node: ast.AST, package: str, *, at_top: bool, typing_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        top = at_top and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing = typing_only or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, "", child.lineno, top and not typing, typing)
        elif isinstance(child, ast.ImportFrom):
            module = _absolute(child, package)
            for alias in child.names:
                yield Import(module, alias.name, child.lineno, top and not typing, typing)
        else:
            yield from _imports(child, package, at_top=top, typing_only=typing)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])
