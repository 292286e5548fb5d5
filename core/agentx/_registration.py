"""Load what is offered, and register it. Whatever fails leaves nothing behind but the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pluggy

from ._config import Config, allows, requirement
from ._errors import AgentxError
from ._hookspecs import API, API_RANGE, PROJECT, Hooks, Implementation
from ._members import Member, Offer, Refusal, Status, member_of
from ._offers import Offers
from ._order import base_id, matches
from ._scan import failure_of, load
from ._services import missing_service
from ._settings import Settings

_marker = pluggy.HookimplMarker(PROJECT)


class _Adapter:
    """What pluggy sees of a plugin: one plain function for each hook it has."""

    def __init__(self, implementations: Iterable[tuple[str, Implementation]]) -> None:
        for _, one in implementations:
            setattr(self, one.hook, _hookimpl(one))


def _hookimpl(one: Implementation) -> Callable[[Any, Any], Any]:
    def call(ctx: Any, call_next: Any) -> Any:
        return one.fn(ctx, call_next)

    return _marker(specname=one.hook)(call)


class Registration:
    """Registers the plugins of one stack: `members` are in, `refused` are out."""

    def __init__(self, config: Config, offers: Offers, made: Sequence[Member]) -> None:
        self.config = config
        self.members: dict[str, Member] = {}
        self.refused: dict[str, Refusal] = dict(offers.refused)
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(Hooks)
        self._offers = offers
        self._disabled = {refusal.id for refusal in offers.refused.values() if refusal.status == "disabled"}
        self._made = made
        self._brought: dict[str, list[Offer]] = {}
        """By id what presets bring."""

    def run(self) -> None:
        for plugin_id in self._disabled:
            self.manager.set_blocked(plugin_id)
        for offer in self._offers.wanted.values():
            self._add(offer)
        self._add_what_presets_bring()
        for plugin_id, refusal in self._offers.awaited.items():
            if plugin_id not in self.members:
                self.refused.setdefault(plugin_id, refusal)
        self._check_each_against_the_others()
        self.config.check_environment({*self._offers.known, *self._brought, *self.members})
        self.manager.check_pending()
        self.members = dict(sorted(self.members.items()))

    # One plugin

    def _add(self, offer: Offer) -> None:
        """Load, check and register one plugin, or refuse it."""
        self._remove(offer.id)
        if offer.value is None and offer.found is not None:
            loaded = load(offer.found)
            if loaded.failure is not None:
                self._refuse(offer, "failed", loaded.failure.reason, loaded.failure.error)
                return
            offer = attrs.evolve(offer, value=loaded.value)
        reason = self._incompatible(offer)
        if reason:
            self._refuse(offer, "incompatible", reason)
            return
        try:
            member = self._member(offer)
            self.manager.register(_Adapter(member.implementations), offer.id)
        except (AgentxError, pluggy.PluginValidationError) as error:
            self._refuse(offer, "failed", str(error), error)
        except (Exception, SystemExit) as error:  # whatever the plugin's own code raises while it is made
            base = str(Path(offer.found.location).parent) if offer.found else ""
            self._refuse(offer, "failed", failure_of(error, _module_of(offer.value), base).reason, error)
        else:
            self.members[offer.id] = member

    def _member(self, offer: Offer) -> Member:
        """Make a plugin, or take what was made of the same before: an override keeps what it does not change."""
        settings = self._settings(offer)
        for member in self._made:
            old = member.offer
            if (old.id, old.source, member.settings) == (offer.id, offer.source, settings) and old.value is offer.value:
                return attrs.evolve(member, offer=offer)
        above_code: Settings = self.config.from_code.get(offer.id, {})
        return member_of(offer, settings, above_code)

    def _settings(self, offer: Offer) -> Settings:
        if offer.source != "preset":
            return self._offers.settings.get(offer.id, {})
        return self.config.settings({*self._offers.known, offer.id}).get(offer.id, {})

    def _incompatible(self, offer: Offer) -> str | None:
        api = getattr(offer.value, "api", API)
        if isinstance(api, int) and api not in API_RANGE:
            served = f"{API_RANGE.start}" if len(API_RANGE) == 1 else f"{API_RANGE.start} to {API_RANGE.stop - 1}"
            return f"written for api {api} of the hook contract, this agentx-core serves {served}"
        for required in self.config.require:
            if required.id == offer.id and required.specifier:
                version = offer.found.version if offer.found else ""
                if not version or not allows(required.specifier, version):
                    what = f"version {version} is installed" if version else "its version is unknown"
                    return f"{what}, {required.specifier} is required by {required.origin}"
        return None

    def _refuse(self, offer: Offer, status: Status, reason: str, error: BaseException | None = None) -> None:
        self._remove(offer.id)
        self.refused[offer.id] = Refusal(offer.id, status, reason, offer.source, offer.found, error=error)

    def _remove(self, plugin_id: str) -> None:
        self.refused.pop(plugin_id, None)
        if self.members.pop(plugin_id, None) is not None:
            self.manager.unregister(name=plugin_id)

    # Presets

    def _add_what_presets_bring(self) -> None:
        """Add the plugins of presets, and of presets that presets bring.

        They take the place of what is installed, and whoever is given in code takes theirs.
        """
        waiting = sorted(self.members)
        while waiting:
            brought = sorted({offer.id for preset in waiting for offer in self._bring(self.members.get(preset))})
            waiting = []
            for plugin_id in brought:
                offer = self._chosen(plugin_id)
                if offer is not None:
                    self._add(offer)
                    waiting += [plugin_id] if plugin_id in self.members else []

    def _bring(self, preset: Member | None) -> list[Offer]:
        """Note what a preset brings; one that is brought again in the same way changes nothing."""
        new = []
        for child in preset.children if preset else ():
            assert preset is not None
            offer = Offer(child.id, "preset", child, preset.offer.found, by=preset.id)
            known = self._brought.setdefault(child.id, [])
            if not any(_is_same(one, offer) for one in known):
                known.append(offer)
                new.append(offer)
        return new

    def _chosen(self, plugin_id: str) -> Offer | None:
        """Return what a preset brings under an id, if that is what counts."""
        offers = self._brought[plugin_id]
        there = self._offers.wanted.get(plugin_id) or self._offers.refused.get(plugin_id)
        if there is not None and (there.source == "code" or plugin_id in self._disabled):
            return None
        blocked = self.config.is_disabled(plugin_id)
        if blocked is not None:
            reason = f"disabled by {blocked.origin}"
            self.refused[plugin_id] = Refusal(plugin_id, "disabled", reason, "preset", is_wanted=False)
            return None
        if len(offers) > 1:
            who = " and ".join(sorted({offer.by for offer in offers}))
            self._refuse(
                offers[0], "conflict", f"{who} bring it with different settings: use it in code, or disable one"
            )
            return None
        return offers[0]

    # Each against the others

    def _check_each_against_the_others(self) -> None:
        """Take out who does not get along with the rest, until everybody does."""
        self._take_out(self._conflicting())
        while self._take_out(self._lacking()):
            pass

    def _take_out(self, found: Mapping[str, tuple[Status, str]]) -> bool:
        for plugin_id, (status, reason) in found.items():
            self._refuse(self.members[plugin_id].offer, status, reason)
        return bool(found)

    def _conflicting(self) -> dict[str, tuple[Status, str]]:
        found: dict[str, tuple[Status, str]] = {}
        for member in self.members.values():
            for unwanted in member.names("conflicts"):
                others = [other for other in self.members if base_id(other) != base_id(member.id)]
                there = sorted(other for other in others if matches(unwanted, other))
                if there:
                    found[member.id] = ("conflict", f"conflicts with {', '.join(there)}: disable one of them")
        return found

    def _lacking(self) -> dict[str, tuple[Status, str]]:
        found: dict[str, tuple[Status, str]] = {}
        for member in sorted(self.members.values(), key=lambda member: member.id):
            reason = self._unmet(member) or missing_service(member, self.members.values(), self.refused.values())
            if reason:
                found[member.id] = ("failed", reason)
        return found

    def _unmet(self, member: Member) -> str | None:
        """Return which plugin is not active without which this one cannot be."""
        if member.offer.by and member.offer.by not in self.members:
            return f"its preset {member.offer.by} is left out"
        for text in member.names("requires"):
            wanted, specifier = requirement(text, f"{member.id}: requires")
            there = [other for plugin_id, other in self.members.items() if matches(wanted, plugin_id)]
            if not there:
                refusal = self.refused.get(wanted)
                why = f"{refusal.status}: {refusal.reason}" if refusal else "not installed"
                return f"requires {wanted}, which is {why}"
            version = there[0].offer.found.version if there[0].offer.found else ""
            if specifier and version and not allows(specifier, version):
                return f"requires {text}, and version {version} is active"
        return None


def _module_of(value: Any) -> str:
    return value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))


def _is_same(one: Offer, other: Offer) -> bool:
    """Tell whether two presets mean the same plugin with the same settings."""
    if one.value is other.value:
        return True
    if isinstance(one.value, type) or type(one.value) is not type(other.value):
        return False
    fields = [field.name for field in attrs.fields(type(one.value))]
    return all(getattr(one.value, name) == getattr(other.value, name) for name in fields)
