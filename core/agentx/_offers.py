"""Which plugins an agent should have: what is given in code, what is installed, what the configuration says to both.

Nothing is imported here, so this is also all that `agentx plugins --static` needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from ._config import Config, Entry, refuse_disabling_required
from ._configure import reserved_settings
from ._errors import ConfigError
from ._members import Offer, Refusal, Status, Used, offer_of
from ._order import base_id
from ._scan import PLUGINS, Found, Scan
from ._settings import Settings, suggestion


@attrs.frozen
class Offers:
    """What was decided before anything is imported."""

    wanted: Mapping[str, Offer]
    refused: Mapping[str, Refusal]
    settings: Mapping[str, Settings]
    known: frozenset[str]
    """Every id that is installed, used or required."""
    awaited: Mapping[str, Refusal]
    """Plugins that are not installed or not loaded by themselves; a preset may still bring them."""


def collect(config: Config, installed: Scan, used: Sequence[Used], laid_over: Sequence[Used] = ()) -> Offers:
    """Decide about every plugin that is installed, used or configured.

    Args:
        laid_over: what `agent.override` uses: it takes the place of what has the same id.

    Raises:
        ConfigError: a required plugin is disabled, or a variable of the environment could mean two plugins.
        PluginError: something used in code is no plugin, or is there twice.
    """
    code = _given_in_code(used, laid_over)
    entries = installed.group(PLUGINS)
    unusable = [problem for problem in installed.problems if problem.kind != "broken"]
    problems = {problem.name: problem for problem in unusable if problem.claims[0].group == PLUGINS}
    known = frozenset({*entries, *problems, *code, *(entry.id for entry in config.require)})
    settings = config.settings(known)
    choice = _Choice(config, installed, settings)
    for offer in code.values():
        choice.consider(choice.with_entry(offer))
    for plugin_id, found in entries.items():
        if plugin_id not in code:
            choice.consider(Offer(plugin_id, "entry" if config.autoload.value == "all" else "config", found=found))
    for plugin_id in sorted({*problems, *_named(config, settings)} - {*entries, *code}):
        choice.consider(choice.configured(plugin_id, code))
    choice.report_broken_metadata()
    return Offers(choice.wanted, choice.refused, settings, known, choice.awaited)


def _given_in_code(used: Sequence[Used], laid_over: Sequence[Used]) -> dict[str, Offer]:
    code: dict[str, Offer] = {}
    for index, item in enumerate(used):
        offer = offer_of(item, index, code)
        code[offer.id] = offer
    later: dict[str, Offer] = {}
    for index, item in enumerate(laid_over, len(used)):
        offer = offer_of(item, index, later, code)
        later[offer.id] = offer
    return {**code, **later}


def _named(config: Config, settings: Mapping[str, Settings]) -> Iterable[str]:
    return [*settings, *(entry.id for entry in (*config.require, *config.presets))]


class _Choice:
    """The decisions, one plugin after the other."""

    def __init__(self, config: Config, installed: Scan, settings: Mapping[str, Settings]) -> None:
        self.config = config
        self.installed = installed
        self.settings = settings
        self.wanted: dict[str, Offer] = {}
        self.refused: dict[str, Refusal] = {}
        self.awaited: dict[str, Refusal] = {}

    def consider(self, offer: Offer) -> None:
        refusal = self._disabled(offer)
        if refusal is not None:
            self.refused[offer.id] = refusal
        elif not self._is_loaded(offer):
            self.awaited[offer.id] = self._not_loaded(offer)
        elif offer.value is not None or offer.found is not None:
            self.wanted[offer.id] = offer
        else:
            refusal = self._without_entry(offer)
            (self.awaited if refusal.status == "missing" else self.refused)[offer.id] = refusal

    def with_entry(self, offer: Offer) -> Offer:
        """Add the distribution that something given in code comes from, where that is plain."""
        found = self.installed.group(PLUGINS).get(base_id(offer.id))
        if found is None or (offer.value is not None and not _is_from(offer.value, found)):
            return offer
        return attrs.evolve(offer, found=found)

    def configured(self, plugin_id: str, code: Mapping[str, Offer]) -> Offer:
        """Return a plugin that only the configuration names: an instance of another one, or one that is not there."""
        base = code.get(base_id(plugin_id))
        if "#" in plugin_id and base is not None and isinstance(base.value, type):
            return Offer(plugin_id, "config", base.value, base.found)
        return Offer(plugin_id, "config", found=self.installed.group(PLUGINS).get(base_id(plugin_id)))

    def report_broken_metadata(self) -> None:
        for problem in self.installed.problems:
            if problem.kind == "broken":
                wanted = self.config.autoload.value == "all"
                self.refused[problem.name] = Refusal(
                    problem.name, "failed", problem.reason, found=problem.claims[0], is_wanted=wanted
                )

    def _disabled(self, offer: Offer) -> Refusal | None:
        """Return who disables a plugin, or what is wrong with the settings that may say so."""
        disabled = self.config.is_disabled(offer.id)
        if disabled is not None:
            return _not_wanted(offer, f"disabled by {disabled.origin}")
        try:
            reserved = reserved_settings(offer.id, self.settings.get(offer.id, {}))
        except ConfigError as error:
            return Refusal(offer.id, "failed", str(error), offer.source, offer.found, error=error)
        if reserved.enabled is not False:
            return None
        origin = reserved.origins["enabled"]
        required = self.config.is_required(offer.id)
        if required is not None:
            raise ConfigError(f"{offer.id} is required by {required.origin} and disabled by {origin}: take out one")
        return _not_wanted(offer, f"disabled by {origin}")

    def _is_loaded(self, offer: Offer) -> bool:
        if offer.source == "code" or self.config.is_required(offer.id) is not None:
            return True
        if self.config.autoload.value == "listed":
            return offer.id in self.settings or any(entry.id == offer.id for entry in self.config.presets)
        return bool(self.config.autoload.value == "all")

    def _not_loaded(self, offer: Offer) -> Refusal:
        if offer.found is None:
            return attrs.evolve(self._without_entry(offer), is_wanted=False)
        setting = self.config.autoload
        return _not_wanted(offer, f"not loaded: autoload is {setting.value!r} ({setting.origin})")

    def _without_entry(self, offer: Offer) -> Refusal:
        """Say why a plugin that is asked for by its id is not there."""
        problem = self.installed.problem(PLUGINS, base_id(offer.id))
        if problem is None:
            return Refusal(offer.id, "missing", self._missing(offer.id), offer.source)
        claim = problem.claims[0] if len(problem.claims) == 1 else None
        status: Status = "conflict" if problem.kind == "conflict" else "failed"
        return Refusal(offer.id, status, problem.reason, offer.source, claim)

    def _missing(self, plugin_id: str) -> str:
        """Say who names a plugin that is not installed."""
        required = self.config.is_required(plugin_id)
        origins = [setting.origin for setting in self.settings.get(plugin_id, {}).values()]
        origins += [entry.origin for entry in self.config.presets if entry.id == plugin_id]
        who = f"required by {required.origin}" if required else f"named in {origins[0] if origins else 'code'}"
        hint = suggestion(plugin_id, self.installed.group(PLUGINS))
        return f"not installed, {who}{hint if 'did you mean' in hint else ''}"


def _not_wanted(offer: Offer, reason: str) -> Refusal:
    return Refusal(offer.id, "disabled", reason, offer.source, offer.found, is_wanted=False)


def _is_from(value: object, found: Found) -> bool:
    module = str(getattr(value, "__module__", ""))
    return module.partition(".")[0] == found.value.partition(":")[0].partition(".")[0].strip()


def with_limits(config: Config, origin: str) -> Config:
    """Return a configuration that requires `guard.limits`, because the application has set limits."""
    require = (*config.require, Entry("guard.limits", origin))
    refuse_disabling_required(require, config.disable)
    return attrs.evolve(config, require=require)
