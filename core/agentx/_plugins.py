"""The registry: from installed distributions, configuration and code to the layers of an agent."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pluggy

from ._config import Config, load_config
from ._errors import PluginError, PluginLoadError
from ._hookspecs import HOOKS, PROJECT, Layer
from ._lookup import provider
from ._members import Member, Refusal, Used, candidate_of, layer_of
from ._offers import collect, with_limits
from ._order import Arrangement, Candidate, Constraint, arrange
from ._plugin import Plugin, seal
from ._registration import Registration
from ._rows import Row, row_of_refusal, rows_of
from ._scan import Scan, scan
from ._services import service_constraints
from ._tools import Tool
from ._why import Reason, why, why_outside

logger = logging.getLogger(PROJECT)


@attrs.frozen
class Overrides:
    """What `agent.override` lays over an agent."""

    disable: tuple[str, ...] = ()
    use: tuple[Used, ...] = ()
    config: Mapping[str, Any] = attrs.field(factory=dict)
    outer: tuple[Mapping[str, Any], ...] = ()
    """Configurations of overrides around this one."""

    @property
    def key(self) -> Any:
        """Equal for overrides that lead to the same plugins."""
        return self.disable, self.use, repr([content for content in (*self.outer, self.config) if content])

    def merge(self, inner: Overrides) -> Overrides:
        """Return both as one; what the inner one says counts more."""
        outer = (*self.outer, self.config, *inner.outer)
        return Overrides(self.disable + inner.disable, self.use + inner.use, inner.config, outer)


NO_OVERRIDES = Overrides()


@attrs.frozen(eq=False)
class Stack:
    """The plugins of an agent, ready to be compiled. Never changes."""

    members: Mapping[str, Member]
    layers: Mapping[str, tuple[Layer, ...]]
    """By hook, outermost first."""
    arrangements: Mapping[str, Arrangement]
    rows: tuple[Row, ...]
    config: Config
    manager: pluggy.PluginManager = attrs.field(repr=False)
    installed: Scan = attrs.field(repr=False)

    @property
    def instances(self) -> Mapping[str, Any]:
        return {plugin_id: member.instance for plugin_id, member in self.members.items()}

    @property
    def tools(self) -> tuple[tuple[Tool, str], ...]:
        """The tools of plugins, each with the id of its owner."""
        return tuple([(tool, member.id) for member in self.members.values() for tool in member.tools])

    @property
    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        """The fields of every plugin; secret ones are left out."""
        return {
            plugin_id: {name: value.value for name, value in member.values.items() if not value.is_secret}
            for plugin_id, member in self.members.items()
        }

    @property
    def header(self) -> tuple[str, ...]:
        """`id distribution version` of every plugin, for the log of a session."""
        active = [row for row in self.rows if row.status == "enabled"]
        return tuple([" ".join(filter(None, (row.id, row.distribution, row.version))) for row in active])

    def provider(self, prefix: str) -> Any:
        """Return the provider of `prefix/model`, made with its settings; who asks closes it.

        Raises:
            UnknownProviderError: nobody offers it; the message names the extra to install.
            PluginLoadError: two distributions claim the prefix, or its import fails.
            ConfigError: its table in the configuration is wrong.
        """
        return provider(prefix, self.installed, self.config.models)

    def explain(self, hook: str) -> str:
        """Return who wraps whom in a hook, outermost first, and why in that order."""
        order = self.arrangements[hook].order
        if not order:
            return f"{hook}: no layers"
        lines = [f"{hook}: {' > '.join([*(one.label for one in order), 'core'])}"]
        for number, one in enumerate(order, 1):
            lines.append(f"{number:2}  {one.phase:8} {one.label}")
            lines += [f"      {reason}" for reason in why(self.arrangements[hook], one)]
        return "\n".join(lines)

    def why(self, plugin: str, other: str | None = None) -> tuple[tuple[str, Reason], ...]:
        """Return, by hook, why a plugin is at its place, or why it is outside (or inside) of another.

        Raises:
            PluginError: one of them is not active; the message says why.
        """
        for wanted in filter(None, (plugin, other)):
            if wanted not in self.members:
                known = next((row for row in self.rows if row.id == wanted), None)
                what = f"{known.status}: {known.reason}" if known else "neither installed nor used"
                raise PluginError(f"{wanted} has no place, it is {what}", plugin=wanted)
        found: list[tuple[str, Reason]] = []
        for hook, arrangement in self.arrangements.items():
            mine = [one for one in arrangement.order if one.plugin == plugin]
            if other is None:
                found += [(hook, reason) for one in mine for reason in why(arrangement, one)]
                continue
            theirs = [one for one in arrangement.order if one.plugin == other]
            pairs = [(one, another) for one in mine for another in theirs if one is not another]
            found += [(hook, reason) for pair in pairs for reason in why_outside(arrangement, *pair)]
        return tuple(found)


class Registry:
    """Loads the plugins of one agent. Making one does nothing; configuration and metadata are read at the first load.

    Args:
        name: the agent's, for `[agents.<name>]`.
        used: what is given in code, in the order of use.
        config: as `Agent(config=…)` takes it.
        autoload: in place of what is configured.
        limits: settings of `guard.limits`, which must be there then.
        command_line: settings `kind.name.field=value`.
        installed: in place of a scan of `sys.path`.
    """

    def __init__(
        self,
        name: str,
        used: Sequence[Used] = (),
        *,
        config: Path | str | Mapping[str, Any] | bool | None = None,
        autoload: str | None = None,
        limits: Mapping[str, Any] | None = None,
        command_line: Sequence[str] = (),
        installed: Scan | None = None,
    ) -> None:
        self.name = name
        self._used = used
        self._source = config
        self._autoload = autoload
        self._limits = limits
        self._command_line = command_line
        self._installed = installed
        self._made: list[Member] = []
        self._warned: set[Refusal] = set()

    @property
    def installed(self) -> Scan:
        if self._installed is None:
            self._installed = scan()
        return self._installed

    def config(self, overrides: Overrides = NO_OVERRIDES) -> Config:
        """Read the configuration.

        Raises:
            ConfigError: naming file, table and key.
        """
        code: list[tuple[str, Mapping[str, Any]]] = []
        if self._limits:
            code.append(("Agent(limits=…)", {"guard.limits": self._limits}))
        code += [("override(config=…)", content) for content in (*overrides.outer, overrides.config) if content]
        if overrides.disable:
            code.append(("override(disable=…)", {"plugins": {"disable": list(overrides.disable)}}))
        config = load_config(
            self._source, agent=self.name, autoload=self._autoload, code=code, command_line=self._command_line
        )
        return with_limits(config, "Agent(limits=…)") if self._limits else config

    def load(self, overrides: Overrides = NO_OVERRIDES) -> Stack:
        """Import, configure, check and order the plugins.

        Raises:
            PluginLoadError: a required plugin, a guard or something used in code failed (any, if strict): all at once.
            OrderError: constraints contradict each other.
            ConfigError: the configuration is wrong as a whole.
            PluginError: something used in code is no plugin, or is there twice.
        """
        registration = self._register(overrides)
        self._report(registration)
        members = registration.members
        for member in members.values():
            if isinstance(member.instance, Plugin):
                seal(member.instance)
        self._made += [member for member in members.values() if member not in self._made]
        layers, arrangements = _arranged(members.values(), registration.config)
        return Stack(
            members,
            layers,
            arrangements,
            rows_of(members.values(), registration.refused.values()),
            registration.config,
            registration.manager,
            self.installed,
        )

    def rows(self, overrides: Overrides = NO_OVERRIDES) -> tuple[Row, ...]:
        """Load everything and return the listing, whatever failed."""
        registration = self._register(overrides)
        return rows_of(registration.members.values(), registration.refused.values())

    def static_rows(self) -> tuple[Row, ...]:
        """Return the listing as far as it can be known without importing a plugin."""
        return static_rows(self.config(), self.installed, self._used)

    def _register(self, overrides: Overrides) -> Registration:
        config = self.config(overrides)
        offers = collect(config, self.installed, self._used, overrides.use)
        registration = Registration(config, offers, self._made)
        registration.run()
        return registration

    def _report(self, registration: Registration) -> None:
        """Raise for what must be there, warn once of the rest."""
        failed = [refusal for refusal in registration.refused.values() if refusal.is_wanted]
        fatal = [refusal for refusal in failed if _is_fatal(refusal, registration.config)]
        if fatal:
            told = "; ".join(_told(refusal) for refusal in fatal)
            subject = "a plugin" if len(fatal) == 1 else f"{len(fatal)} plugins"
            raise PluginLoadError(
                f"{subject} of agent {self.name!r} cannot be loaded: {told}",
                failures=[(refusal.id, refusal.reason) for refusal in fatal],
                plugin=fatal[0].id,
            ) from fatal[0].error
        for refusal in failed:
            if refusal not in self._warned:
                self._warned.add(refusal)
                logger.warning("plugin %s is left out (%s): %s", refusal.id, refusal.status, refusal.reason)


def _told(refusal: Any) -> str:
    """Return what a refusal says, naming its plugin once."""
    reason = str(refusal.reason)
    return reason if reason.startswith(f"{refusal.id}:") else f"{refusal.id}: {reason}"


def static_rows(config: Config, installed: Scan | None = None, used: Sequence[Used] = ()) -> tuple[Row, ...]:
    """Return a listing without importing a plugin: what would be loaded, and what not and why."""
    offers = collect(config, installed or scan(), used)
    rows = [row_of_refusal(refusal) for refusal in (*offers.refused.values(), *offers.awaited.values())]
    for offer in offers.wanted.values():
        found = offer.found
        distribution, version = (found.distribution, found.version) if found else ("", "")
        rows.append(Row(offer.id, "enabled", distribution=distribution, version=version, source=offer.source))
    return tuple(sorted(rows, key=lambda row: row.id))


def _is_fatal(refusal: Refusal, config: Config) -> bool:
    if config.strict.value or refusal.source == "code" or refusal.id.startswith("guard."):
        return True
    return config.is_required(refusal.id) is not None


def _arranged(
    members: Iterable[Member], config: Config
) -> tuple[Mapping[str, tuple[Layer, ...]], Mapping[str, Arrangement]]:
    members = list(members)
    layers, arrangements = {}, {}
    services = service_constraints(members)
    for hook in HOOKS:
        made: dict[Candidate, Layer] = {}
        for member in members:
            wishes: Sequence[Constraint] = services.get(member.id, ()) if hook in ("init", "session") else ()
            for name, one in member.implementations:
                if one.hook == hook:
                    candidate = candidate_of(member, name, one, wishes)
                    made[candidate] = layer_of(member, candidate, one)
        patterns = config.order[hook].value if hook in config.order else ()
        arrangements[hook] = arrange(hook, made, patterns)
        layers[hook] = tuple([made[candidate] for candidate in arrangements[hook].order])
    return layers, arrangements
