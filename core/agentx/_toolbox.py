"""The tools of an agent and of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ._errors import ToolError, ToolNameError
from ._messages import ToolSpec

if TYPE_CHECKING:
    from ._tools import Tool


class Toolbox:
    """The tools of one level, over those of the level above. Names are unique along the chain."""

    __slots__ = ("_all", "_own", "loaded", "parent", "version")

    def __init__(self, parent: Toolbox | None = None) -> None:
        self.parent = parent
        self.loaded: set[str] = set()
        self._own: dict[str, tuple[Tool, str]] = {}
        self._all: dict[str, Tool] | None = None
        self.version = 0
        """Grows with every change at this level."""

    @property
    def adds_nothing(self) -> bool:
        """Whether this level is the same as the one above."""
        return not self._own and not self.loaded

    def owner(self, name: str) -> str | None:
        if name in self._own:
            return self._own[name][1]
        return self.parent.owner(name) if self.parent else None

    def add(self, tool: Tool, owner: str) -> None:
        """Add a tool.

        Raises:
            ToolNameError: the name is taken; both owners are named.
        """
        taken = self.owner(tool.name)
        if taken is not None:
            if taken == owner and self.tools().get(tool.name) == tool:
                return
            fix = "rename one with @tool(name=…), or disable one of the plugins"
            raise ToolNameError(f"two tools are called {tool.name!r}: one of {taken}, one of {owner}: {fix}")
        self._own[tool.name] = (tool, owner)
        self._changed()

    def remove(self, name: str) -> None:
        """Remove a tool of this level.

        Raises:
            ToolError: it has none of that name.
        """
        if name not in self._own:
            raise ToolError(
                f"there is no tool {name!r} at this level to remove; there are {', '.join(self._own) or 'none'}"
            )
        del self._own[name]
        self._changed()

    def change(self, add: Sequence[Tool], remove: Sequence[str], owner: str) -> None:
        """Remove and add tools in one step: all of it happens or nothing."""
        before = dict(self._own)
        try:
            for name in remove:
                self.remove(name)
            for tool in add:
                self.add(tool, owner)
        except ToolError:
            self._own = before
            self._changed()
            raise

    def owned_by(self, owner: str) -> list[str]:
        return [name for name, (_, by) in self._own.items() if by == owner]

    def _changed(self) -> None:
        self._all = None
        self.version += 1

    def tools(self) -> Mapping[str, Tool]:
        """Return every tool by name, sorted; the same object until something changes."""
        if self.parent is not None and self.adds_nothing:
            return self.parent.tools()
        if self._all is None or self.parent is not None:
            chain = dict(self.parent.tools()) if self.parent else {}
            chain.update({name: tool for name, (tool, _) in self._own.items()})
            self._all = dict(sorted(chain.items()))
        return self._all

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return what a model is told, sorted by name so that the prompt's prefix stays the same."""
        return tuple([t.spec for t in self.tools().values() if not t.deferred or t.name in self.loaded])

    def load(self, names: Sequence[str]) -> None:
        self.loaded.update(names)
        self.version += 1

    def deferred(self) -> list[str]:
        return [name for name, tool in self.tools().items() if tool.deferred and name not in self.loaded]
