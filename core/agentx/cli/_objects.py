"""What a user names on the command line: `module:object`, `file.py:object`, a file of tools, a model."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from agentx._errors import AgentxError, ToolError
from agentx._models import Model
from agentx._scan import MODELS, failure_of, scan
from agentx._tools import Tool, tool, tools_of


class LoadError(AgentxError):
    """A module or an object that the command line names cannot be had."""

    code = "load"
    exit_code = 2


def split_spec(spec: str) -> tuple[str, str]:
    """Return module or file, and the name of the object in it, which may be empty.

    The colon of a Windows drive separates nothing.
    """
    if spec.endswith(".py"):
        return spec, ""
    module, _, name = spec.rpartition(":")
    return (module, name) if module else (name, "")


def load_module(where: str, spec: str) -> ModuleType:
    """Import a module, or a file as one. The working directory counts, as for `python -m`.

    Raises:
        LoadError: there is none, or it raises; the message says where.
    """
    folder = str(Path(where).resolve().parent) if where.endswith(".py") else str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return _module_of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except FileNotFoundError:
        raise LoadError(f"there is no file {where}") from None
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (where == missing or where.startswith(f"{missing}.")):
            raise LoadError(f"{spec}: there is no module {missing!r}, here or installed") from None
        name = Path(where).stem if where.endswith(".py") else where
        raise LoadError(f"{spec} cannot be loaded: {failure_of(error, name).reason}") from error


def _module_of_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise FileNotFoundError(file)
    spec = importlib.util.spec_from_file_location(file.stem, file.resolve())
    if spec is None or spec.loader is None:
        raise LoadError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file.resolve()):
        return known
    if known is None:  # a file must not take the place of a module that is in use
        sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def load_object(spec: str) -> Any:
    """Return what `module:object` or `file.py:object` means.

    Raises:
        LoadError: naming what is missing, with a suggestion.
    """
    where, path = split_spec(spec)
    found: Any = load_module(where, spec)
    for name in path.split(".") if path else ():
        try:
            found = getattr(found, name)
        except AttributeError:
            near = get_close_matches(name, dir(found), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise LoadError(f"{spec}: there is no {name!r} in {where}{hint}") from None
    return found


def load_tools(spec: str) -> Sequence[Tool]:
    """Return the tools of `module:function`, of a module, or of a file.

    Of a module these are all its `@tool`s; if it has none, its own public functions.

    Raises:
        LoadError: there is no such thing.
        ToolError: it is no tool and cannot become one.
    """
    found = load_object(spec)
    if isinstance(found, ModuleType):
        tools = list(_tools_of_module(found))
        if not tools:
            raise ToolError(f"{spec} has no @tool and no public function")
        return tools
    if isinstance(found, Tool):
        return [found]
    if isinstance(found, list | tuple):
        return [item if isinstance(item, Tool) else tool(item) for item in found]
    if not callable(found) or isinstance(found, type):
        methods = tools_of(found() if isinstance(found, type) else found)
        if not methods:
            raise ToolError(
                f"{spec} is neither a function, nor a @tool, nor a list of them, nor an object with @tool methods"
            )
        return methods
    return [tool(found)]


def _tools_of_module(module: ModuleType) -> Iterator[Tool]:
    values = [value for name, value in vars(module).items() if not name.startswith("_")]
    marked = [value for value in values if isinstance(value, Tool)]
    own = [value for value in marked if getattr(value.function, "__module__", None) == module.__name__]
    if marked:
        yield from own or marked
        return
    for value in values:
        if isinstance(value, type(_tools_of_module)) and value.__module__ == module.__name__:
            yield tool(value)


def load_model(spec: str) -> str | Model:
    """Return a model id as it is, or the model that `module:object` means: an object, a class or a function.

    Raises:
        LoadError: there is no such object.
        click.UsageError: it is no model.
    """
    if not _is_python(spec):
        return spec
    found = load_object(spec)
    if isinstance(found, type) or not callable(getattr(found, "respond", None)):
        if not callable(found):
            raise click.UsageError(f"{spec} is no model: a model has `async def respond(request, emit)`")
        try:
            found = found()
        except Exception as error:
            raise LoadError(f"{spec} cannot be called without arguments: {failure_of(error).reason}") from error
    if not callable(getattr(found, "respond", None)):
        raise click.UsageError(f"{spec} gave {found!r}, which has no `async def respond(request, emit)`")
    return found  # type: ignore[no-any-return]


def _is_python(spec: str) -> bool:
    """Tell `agentx.testing:EchoModel` and `models.py:echo` from `openai:gpt-5`, which means `openai/gpt-5`."""
    where, name = split_spec(spec)
    if not name or ("/" in where and not where.endswith(".py")):
        return False
    if where.endswith(".py") or "." in where:
        return True
    if scan().group(MODELS).get(where):
        return False
    return where.isidentifier() and (Path(f"{where}.py").is_file() or Path(where, "__init__.py").is_file())
