"""Fire every hook of a plugin once, to prove that each really runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import attrs

from agentx._errors import PluginError
from agentx._hookspecs import HOOKS
from agentx._plugin import Plugin

from ._scenario import Subject, build, play, told


@attrs.frozen
class Exercise:
    """What `exercise` saw."""

    plugin: str
    """The id."""
    hooks: Mapping[str, int]
    """How often each hook was entered, in the order of the hooks; 0 is one that never ran.

    Of several layers in one hook it is the one that was entered least.
    """
    status: str | None = None
    """How the turn ended; `None` if it raised."""
    error: str | None = None
    """What a hook, the opening, the turn or the closing raised."""
    failures: int = 0
    """How often the plugin failed without breaking the turn, as observers do."""

    @property
    def silent(self) -> tuple[str, ...]:
        """The hooks that never ran."""
        return tuple([hook for hook, count in self.hooks.items() if not count])

    @property
    def is_ok(self) -> bool:
        """Whether every hook ran and nothing failed."""
        return self.error is None and not self.silent and not self.failures


def exercise(
    plugin: Plugin[Any] | type[Plugin[Any]], *, companions: Sequence[Plugin[Any]] = (), backend: str = "asyncio"
) -> Exercise:
    """Run one turn with a model call, two tool calls and an answer, on a scripted model, with the plugin in an agent.

    Nothing outside of the process is asked, unless the plugin does so. Configuration is not read.

    Args:
        plugin: an instance, or a class that needs no settings.
        companions: plugins it needs.
        backend: of anyio.

    Raises:
        PluginError: it is no plugin.
    """
    made = plugin() if isinstance(plugin, type) and issubclass(plugin, Plugin) else plugin
    if not isinstance(made, Plugin):
        raise PluginError(f"{plugin!r} is neither a plugin nor a plugin class")
    return anyio.run(_exercise, Subject(make=lambda: made, companions=lambda: companions), backend=backend)


async def _exercise(subject: Subject) -> Exercise:
    plugin = subject.make()
    run = build(subject, plugin)
    await play(run, subject)
    counts: dict[str, list[int]] = {hook: [] for hook in HOOKS}
    for layer in run.watch.layers:
        counts[layer.hook].append(len([entry for entry in run.entries if entry.layer is layer]))
    return Exercise(
        plugin.id,
        {hook: min(found) for hook, found in counts.items() if found},
        run.result.status if run.result is not None else None,
        told(run.error) if run.error is not None else None,
        sum([count for owner, count in run.agent.failures.items() if owner in run.watch.plugins]),
    )
