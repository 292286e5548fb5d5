"""Write the files of a new plugin or a new application, from the templates beside this module."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from agentx._errors import AgentxError
from agentx._scan import ID

from ._exits import Exit
from ._screen import out, print_json, styled

HOOKS_OF_KIND: Mapping[str, Sequence[str]] = {
    "observe": ("turn", "model", "tool"),
    "guard": ("turn", "tool"),
    "memory": ("session", "turn"),
    "tools": ("init",),
}
_SIGNATURES = {
    "init": ("AgentContext", "None", "the agent opens", "the agent closes"),
    "session": ("SessionContext", "None", "the session opens", "the session closes"),
    "turn": ("TurnContext", "RunResult", "the turn begins", "the turn has ended"),
    "model": ("ModelContext", "ModelResponse", "before the model is called", "the model has answered"),
    "tool": ("ToolContext", "ToolResult", "before the tool runs", "the tool has run"),
}
"""By hook: its context, its result, and what is the case above and below `call_next`."""


class ScaffoldError(AgentxError):
    """Files cannot be written where they should."""

    code = "scaffold"
    exit_code = Exit.USAGE


def plugin_package(
    plugin: str, folder: Path | None, hooks: Sequence[str]
) -> tuple[Path, Sequence[Path], Sequence[str]]:
    """Write a plugin's package; return its folder, its files, and what to do next.

    Raises:
        ScaffoldError: the id is none, or something is there already.
    """
    if not ID.fullmatch(plugin):
        raise ScaffoldError(f"{plugin!r} is no plugin id such as 'guard.words': kind.name, in lower case")
    kind, _, name = plugin.partition(".")
    distribution = f"agentx-{kind}-{name}".replace("_", "-")
    package = distribution.replace("-", "_")
    hooks = tuple(hook for hook in _SIGNATURES if hook in (hooks or HOOKS_OF_KIND.get(kind, ("turn", "model"))))
    class_name = "".join([word.capitalize() for word in name.split("_")])
    if keyword.iskeyword(class_name) or class_name in ("Plugin", *(one[0] for one in _SIGNATURES.values())):
        class_name += "Plugin"
    values = {
        "id": plugin,
        "distribution": distribution,
        "package": package,
        "class_name": class_name,
        "summary": f"Say here in one sentence what {plugin} does.",
        "phase": '    phase: ClassVar = "gate"\n' if kind == "guard" else "",
        "imports": ", ".join(_imports(hooks)),
        "hooks": "\n".join([_hook(hook) for hook in hooks]),
    }
    files = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{package}/__init__.py": "package.py",
        f"tests/test_{kind}_{name}.py": "test.py",
    }
    root = folder or Path(distribution)
    written = [*_write(root, "plugin", files, values), _touch(root / package / "py.typed")]
    return root, written, [f"cd {root}", "pip install -e '.[test]'", "pytest", f"agentx plugins check {plugin}"]


def application(name: str, folder: Path | None) -> tuple[Path, Sequence[Path], Sequence[str]]:
    """Write a small application; return its folder, its files, and what to do next.

    Raises:
        ScaffoldError: the name is none, or something is there already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise ScaffoldError(f"{name!r} is no name for an application: lower case letters, digits, '-' and '_'")
    root = folder or Path(name)
    files = {
        "agent.py": "agent.py",
        "tools.py": "tools.py",
        "agentx.toml": "agentx.toml",
        "test_agent.py": "test_agent.py",
    }
    written = _write(root, "application", files, {"name": name})
    return root, written, [f"cd {root}", "agentx chat -t tools.py", "python agent.py 'Is it late?'", "pytest"]


def _write(root: Path, kind: str, files: Mapping[str, str], values: Mapping[str, str]) -> list[Path]:
    there = [str(root / target) for target in files if (root / target).exists()]
    if there:
        raise ScaffoldError(f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} there already")
    templates = resources.files(__package__) / "templates" / kind
    written = []
    for target, template in files.items():
        text = Template((templates / f"{template}.tmpl").read_text(encoding="utf-8")).substitute(values)
        path = root / target
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ScaffoldError(f"{path} cannot be written: {error.strerror}") from error
        written.append(path)
    return written


def _touch(path: Path) -> Path:
    path.touch()
    return path


def _imports(hooks: Sequence[str]) -> list[str]:
    names = {"Plugin"}
    for hook in hooks:
        context, result, _, _ = _SIGNATURES[hook]
        names |= {"CallNext", context, *({result} - {"None"})}
    return sorted(names)


def _hook(hook: str) -> str:
    context, result, before, after = _SIGNATURES[hook]
    gets, gives = ("", "") if result == "None" else ("result = ", "\n        return result")
    return (
        f"\n    async def {hook}(self, ctx: {context}, call_next: CallNext[{result}]) -> {result}:\n"
        f"        # {before}\n        {gets}await call_next()\n        # {after}{gives}"
    )


def show_written(root: Path, files: Sequence[Path], steps: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"folder": str(root), "files": [str(path) for path in files]})
        return
    for path in files:
        out().print(styled(f"wrote {path}"), soft_wrap=True)
    out().print(styled("\nnext:", "bold"))
    for step in steps:
        out().print(styled(f"  {step}"), soft_wrap=True)
