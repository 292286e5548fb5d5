"""Find what installed distributions offer, and import one of them.

The folders of `sys.path` are read directly, because `importlib.metadata` alone costs more than the rest of an import
of agentx. What is found is what `importlib.metadata.entry_points()` finds: the first distribution of a name on the path
counts, the others do not. One thing is better defined here: of several metadata folders of one name in one place,
importlib takes whichever the file system lists first, and may pick an empty left-over.
"""

# pathlib would make this scan three times slower
# ruff: noqa: PTH110, PTH113, PTH118, PTH119, PTH120, PTH123, PTH208

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from types import TracebackType
from typing import Any, Literal

import attrs

PLUGINS, MODELS, STORES, COMMANDS = GROUPS = ("agentx.plugins", "agentx.models", "agentx.stores", "agentx.commands")
ID = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
"""What a plugin id is."""

_VALUE = re.compile(r"(?P<module>[\w.]+)\s*(:\s*(?P<attr>[\w.]+)\s*)?(\[.*\]\s*)?")


@attrs.frozen
class Found:
    """An entry point of an installed distribution; nothing of it has been imported."""

    group: str
    name: str
    """For a plugin its id, for a model provider its prefix."""
    value: str
    distribution: str
    version: str
    location: str
    """The folder of the distribution's metadata."""

    @property
    def described(self) -> str:
        return f"{self.distribution} {self.version} ({self.location})"


@attrs.frozen
class Problem:
    """Metadata that cannot be used. `claims` are the entry points it concerns."""

    kind: Literal["conflict", "invalid", "broken"]
    name: str
    """The entry point's, or that of the distribution if its metadata is broken as a whole."""
    reason: str
    claims: tuple[Found, ...]


@attrs.frozen
class Scan:
    """All entry points of agentx's groups, sorted, and what is wrong with the others."""

    found: tuple[Found, ...] = ()
    problems: tuple[Problem, ...] = ()

    def group(self, group: str) -> Mapping[str, Found]:
        return {one.name: one for one in self.found if one.group == group}

    def problem(self, group: str, name: str) -> Problem | None:
        """Return why `name` cannot be used although somebody offers it."""
        for problem in self.problems:
            if problem.name == name and any(claim.group == group for claim in problem.claims):
                return problem
        return None


@attrs.frozen
class Failure:
    """Why an import failed."""

    reason: str
    """One line with the type, the message and the place."""
    where: str = ""
    """`file:line` in the plugin, where there is one."""
    missing_module: str = ""
    error: BaseException | None = attrs.field(default=None, repr=False)


@attrs.frozen
class Loaded:
    found: Found
    value: Any = None
    failure: Failure | None = None


@attrs.frozen
class _Metadata:
    distribution: str
    version: str
    location: str
    text: bytes


def scan(paths: Sequence[str] | None = None) -> Scan:
    """Return what the distributions on `paths` offer, by default on `sys.path`. Imports none of them.

    Two distributions that claim one name are a problem whatever the order of the path, and neither is found.
    """
    paths = [os.fspath(path) for path in (sys.path if paths is None else paths)]
    read = _read_by_importlib if _needs_importlib(paths) else _read_folders
    claims: list[Found] = []
    problems: list[Problem] = []
    for metadata in read(paths):
        try:
            claims += list(_entry_points(metadata))
        except ValueError as error:
            nothing = Found("", metadata.distribution, "", metadata.distribution, metadata.version, metadata.location)
            problems.append(Problem("broken", metadata.distribution, f"broken metadata: {error}", (nothing,)))
    found, refused = _without_conflicts(claims)
    return Scan(found, tuple(sorted([*problems, *refused], key=lambda one: (one.name, one.reason))))


def load(found: Found) -> Loaded:
    """Import what an entry point names. Whatever goes wrong is returned, except Ctrl-C."""
    match = _VALUE.fullmatch(found.value)
    if match is None:
        return Loaded(found, failure=Failure(f"the entry point {found.value!r} is not 'module' or 'module:name'"))
    module = match["module"]
    try:
        value = importlib.import_module(module)
        for name in filter(None, (match["attr"] or "").split(".")):
            value = getattr(value, name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, and what pytest.skip() raises
        return Loaded(found, failure=failure_of(error, module, os.path.dirname(found.location)))
    return Loaded(found, value)


def failure_of(error: BaseException, module: str = "", base: str = "") -> Failure:
    """Describe in one line what was raised and where in the plugin.

    Args:
        module: the plugin's; the innermost frame of its top-level package is the place.
        base: a folder that is left out in front of the place.
    """
    where = _place(error, module.partition(".")[0])
    if base and where.startswith(base + os.sep):
        where = where[len(base) + 1 :]
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    said = f": {_one_line(str(error))}" if str(error) else ""
    what = f"no module named {missing!r}" if missing else f"{type(error).__name__}{said}"
    return Failure(f"{what} ({where})" if where else what, where, missing, error)


def editable_location(found: Found) -> str | None:
    """Return the folder a distribution is installed from in editable mode, if it is. Reads one file."""
    import json
    from urllib.parse import unquote, urlsplit

    try:
        with open(f"{found.location}/direct_url.json", encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError):
        return None
    if not data.get("dir_info", {}).get("editable"):
        return None
    return unquote(urlsplit(data.get("url", "")).path) or None


def _needs_importlib(paths: Iterable[str]) -> bool:
    """Tell whether metadata may come from something else than folders.

    Path hooks, which editable installs add, find modules and no metadata; so do finders without `find_distributions`.
    """
    for finder in sys.meta_path:
        if finder is PathFinder or not hasattr(finder, "find_distributions"):
            continue
        backport = getattr(finder, "__name__", type(finder).__name__) == "MetadataPathFinder"
        if not (backport and finder.__module__.split(".")[-1] == "importlib_metadata"):  # reads the same folders
            return True
    return any(path.lower().endswith(".egg") or os.path.isfile(path) for path in paths)


def _read_by_importlib(paths: Sequence[str]) -> Iterator[_Metadata]:
    from importlib.metadata import distributions

    seen = set()
    for distribution in distributions(path=list(paths)):
        name = _normalized(distribution._normalized_name)  # type: ignore[attr-defined]  # what importlib goes by
        if name in seen:
            continue
        seen.add(name)
        text = distribution.read_text("entry_points.txt") or ""
        if "agentx." in text:
            place = getattr(distribution, "_path", None) or distribution.locate_file("")
            yield _Metadata(name, distribution.version, str(place), text.encode())


def _read_folders(paths: Iterable[str]) -> Iterator[_Metadata]:
    seen = set()
    for path in dict.fromkeys(paths):
        for name, folders in _metadata_folders(path or ".").items():
            if name in seen:
                continue
            folder = folders[0] if len(folders) == 1 else max(folders, key=_worth)
            text = _entry_points_text(folder)
            if text is None and not _has_metadata(folder):
                continue  # what an uninstallation left behind must not hide the distribution of that name
            seen.add(name)
            if text and b"agentx." in text:
                yield _Metadata(*_name_and_version(folder), folder, text)


def _metadata_folders(path: str) -> Mapping[str, list[str]]:
    """Return the metadata folders in `path` by normalised name of their distribution."""
    folders: dict[str, list[str]] = {}
    try:
        children = os.listdir(path)
    except OSError:  # not there, or not a folder: importlib passes over it too
        return folders
    for child in children:
        low = child.lower()
        if low.endswith((".dist-info", ".egg-info")):
            name = _normalized(low.rpartition(".")[0].partition("-")[0])
            folders.setdefault(name, []).append(os.path.join(path, child))
    return folders


def _entry_points_text(folder: str) -> bytes | None:
    try:
        with open(f"{folder}/entry_points.txt", "rb") as file:
            return file.read()
    except OSError:
        return None


def _has_metadata(folder: str) -> bool:
    return any(os.path.exists(f"{folder}/{name}") for name in ("METADATA", "PKG-INFO")) or os.path.isfile(folder)


def _worth(folder: str) -> tuple[bool, bool, Any, str]:
    """Rank the metadata of one name in one place: complete before broken, dist-info before egg-info, newest first."""
    from packaging.version import InvalidVersion, Version

    try:
        version = Version(_name_and_version(folder)[1])
    except InvalidVersion:
        version = Version("0")
    return _has_metadata(folder), folder.lower().endswith(".dist-info"), version, folder


def _name_and_version(folder: str) -> tuple[str, str]:
    """Return both from the folder's name, or from the metadata where an egg-info does not say its version."""
    name, _, rest = os.path.basename(folder).rpartition(".")[0].partition("-")
    version = rest.partition("-")[0]  # an egg-info may go on with the Python version
    if version:
        return _normalized(name), version
    headers: dict[str, str] = {}
    for file_name in ("METADATA", "PKG-INFO"):
        if os.path.exists(f"{folder}/{file_name}"):
            with open(f"{folder}/{file_name}", encoding="utf-8", errors="replace") as file:
                for line in file:
                    if not line.strip():
                        break
                    key, _, value = line.partition(":")
                    headers.setdefault(key.lower(), value.strip())
    return _normalized(headers.get("name", name)), headers.get("version", "")


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _entry_points(metadata: _Metadata) -> Iterator[Found]:
    """Read the lines as importlib does. configparser would take a colon for a separator and lower names."""
    group = ""
    for line in map(str.strip, metadata.text.decode().splitlines()):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
            continue
        if group not in GROUPS:
            continue
        name, separator, value = (piece.strip() for piece in line.partition("="))
        if not separator:
            raise ValueError(f"entry_points.txt has the line {line!r} in [{group}], which is not 'name = value'")
        yield Found(group, name, value, metadata.distribution, metadata.version, metadata.location)


def _without_conflicts(claims: Iterable[Found]) -> tuple[tuple[Found, ...], list[Problem]]:
    by_name: dict[tuple[str, str], list[Found]] = {}
    for claim in sorted(set(claims), key=lambda one: (one.group, one.name, one.distribution, one.value)):
        by_name.setdefault((claim.group, claim.name), []).append(claim)
    found, problems = [], []
    for (group, name), claimants in by_name.items():
        if group == PLUGINS and not ID.fullmatch(name):
            reason = f"{name!r} is no plugin id: 'kind.name' in lower case letters, digits and underscores"
            problems.append(Problem("invalid", name, reason, tuple(claimants)))
        elif len(claimants) > 1:
            who = " and ".join(dict.fromkeys(claim.described for claim in claimants))
            verb = "claim" if " and " in who else "names two objects for"
            reason = f"{who} {verb} the name {name!r} of {group}: uninstall one of them"
            problems.append(Problem("conflict", name, reason, tuple(claimants)))
        else:
            found.append(claimants[0])
    return tuple(found), problems


def _place(error: BaseException, package: str) -> str:
    """Return `file:line` of the innermost frame in `package`, else of the innermost that is not ours or importlib's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    place = fallback = ""
    frame: TracebackType | None = error.__traceback__
    while frame is not None:
        code, names = frame.tb_frame.f_code, frame.tb_frame.f_globals
        if not code.co_filename.startswith("<frozen") and names.get("__package__") not in (__package__, "importlib"):
            fallback = f"{code.co_filename}:{frame.tb_lineno}"
            if names.get("__name__", "").partition(".")[0] == package:
                place = fallback
        frame = frame.tb_next
    return place or fallback


def _one_line(text: str) -> str:
    return " ".join(text.split())
