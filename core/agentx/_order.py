"""The place of every layer: phases, the user's positions, constraints, and why.

One hook is arranged at a time. The order is (phase, user's position, id); then `before` and `after` move whoever
declared them, inside its phase. Nothing here depends on the order in which the candidates come.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Literal, NoReturn

import attrs

from ._errors import OrderError

PHASES = ("observe", "gate", "prepare", "redact", "verify", "route", "cache", "retry", "attempt")
"""From outermost to innermost."""
CALL_PHASES = frozenset(PHASES[PHASES.index("route") :])
"""Those that exist only around a call of a model or a tool."""
CALL_HOOKS = frozenset({"model", "tool"})

_PHASE_OF_KIND = {"observe": "observe", "redact": "redact"}
_PHASE_OF_ID = {
    "model.router": "route",
    "model.fallback": "route",
    "model.cache": "cache",
    "model.retry": "retry",
}
NO_POSITION = 1_000_000
"""Whoever has no position of the user's stands inside those who have one."""

Relation = Literal["before", "after"]


@attrs.frozen
class Constraint:
    """A wish of one plugin to stand before (outside) or after (inside) others.

    `target` is a plugin id (which means all its instances), an instance id, or `kind.*` (those of the same phase).
    """

    relation: Relation
    target: str
    by: str
    """Who declared it: a plugin's id, or the origin of a setting."""


@attrs.frozen
class Candidate:
    """One layer that wants a place in one hook's onion."""

    plugin: str
    phase: str
    name: str = ""
    """Tells two layers of one plugin in one hook apart."""
    phase_by: str = ""
    """Who chose the phase, in words for `agentx plugins why`."""
    used: int | None = None
    """The position of `.use`, if it was given in code."""
    constraints: tuple[Constraint, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.plugin}:{self.name}" if self.name else self.plugin


@attrs.frozen
class Edge:
    """A constraint between two layers of one phase."""

    outer: Candidate
    inner: Candidate
    mover: Candidate
    constraint: Constraint

    def __str__(self) -> str:
        rule = self.constraint
        other = self.inner if self.mover is self.outer else self.outer
        named = "" if rule.target == other.plugin else f" ({rule.relation} {rule.target})"
        return f"{self.mover.label} {rule.relation} {other.label}{named}, declared by {rule.by}"


@attrs.frozen
class Move:
    """What a constraint that did not hold has moved: the layer that declared it, and what had to come along."""

    edge: Edge
    carried: tuple[Candidate, ...]


@attrs.frozen
class Reversal:
    """Two positions of the user's that the phases turn around."""

    wanted_outer: Candidate
    wanted_inner: Candidate
    position: str

    def __str__(self) -> str:
        outer, inner = self.wanted_outer, self.wanted_inner
        return (
            f"{outer.label} comes before {inner.label} in {self.position}, but stands inside it: phase {outer.phase} "
            f"is inside phase {inner.phase}; phase = {inner.phase!r} for {outer.plugin} puts it outside"
        )


@attrs.frozen
class Arrangement:
    """The order of one hook, outermost first, and what it came from."""

    hook: str
    order: tuple[Candidate, ...]
    edges: tuple[Edge, ...]
    moves: tuple[Move, ...]
    reversals: tuple[Reversal, ...]
    patterns: tuple[str, ...]


def default_phase(plugin_id: str) -> str:
    """Return the phase of a plugin that states none.

    Raises:
        OrderError: for a guard. Refusing before any work and checking what will really happen are different places,
            so a guard says which of the two it does.
    """
    base = base_id(plugin_id)
    kind = base.partition(".")[0]
    if kind == "guard":
        raise OrderError(
            f"{plugin_id} states no phase: a guard says phase = 'gate' (refuse before any work) or 'verify' (see what "
            "will really happen)",
            plugin=plugin_id,
        )
    return _PHASE_OF_ID.get(base) or _PHASE_OF_KIND.get(kind, "prepare")


def base_id(plugin_id: str) -> str:
    """Return `guard.budget` of `guard.budget#tenant`."""
    return plugin_id.partition("#")[0]


def matches(pattern: str, plugin_id: str) -> bool:
    """Tell whether a plugin is meant by an id, an instance id or `kind.*`."""
    if pattern.endswith(".*"):
        return plugin_id.startswith(pattern[:-1])
    return pattern in (plugin_id, base_id(plugin_id))


def is_pattern(text: str) -> bool:
    return re.fullmatch(r"[a-z][a-z0-9_]*\.(\*|[a-z][a-z0-9_]*(#[a-z0-9][a-z0-9_-]*)?)", text) is not None


def arrange(hook: str, candidates: Iterable[Candidate], patterns: Sequence[str] = ()) -> Arrangement:
    """Return the order of a hook's layers.

    Args:
        patterns: `order.<hook>` of the configuration: who matches an earlier one stands outside, in its phase.

    Raises:
        OrderError: for a phase that the hook does not have, for constraints that contradict each other or the phases.
    """
    order = sorted(candidates, key=lambda one: place(one, patterns))
    for one in order:
        check_phase(hook, one)
    for one, other in pairwise(order):
        if one.label == other.label:
            raise OrderError(f"hook {hook} has {one.label} twice", plugin=one.plugin)
    edges = _edges(order)
    inside = _reach(order, edges)
    _refuse_cycles(hook, edges, inside)
    settled, moves = _settle(order, edges, inside)
    return Arrangement(hook, tuple(settled), edges, moves, _reversals(hook, order, patterns), tuple(patterns))


def place(one: Candidate, patterns: Sequence[str]) -> tuple[int, int, int, str, str]:
    """Return what layers are sorted by before any constraint moves one."""
    phase = PHASES.index(one.phase) if one.phase in PHASES else len(PHASES)
    used = NO_POSITION if one.used is None else one.used
    return phase, listed(one, patterns), used, one.plugin, one.name


def listed(one: Candidate, patterns: Sequence[str]) -> int:
    """Return the index of the first pattern that means this layer."""
    return next((index for index, pattern in enumerate(patterns) if matches(pattern, one.plugin)), NO_POSITION)


def check_phase(hook: str, one: Candidate) -> None:
    """Refuse a phase that does not exist, or not in this hook."""
    if one.phase not in PHASES:
        near = get_close_matches(one.phase, PHASES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"phases are {', '.join(PHASES)}"
        raise OrderError(f"{one.label} has the unknown phase {one.phase!r} in hook {hook}: {hint}", plugin=one.plugin)
    if one.phase in CALL_PHASES and hook not in CALL_HOOKS:
        raise OrderError(
            f"{one.label} has phase {one.phase!r} in hook {hook}, but phases from 'route' inward exist only in the "
            f"hooks model and tool: give this hook another with @hookimpl(phase='prepare')",
            plugin=one.plugin,
        )


def _edges(order: Sequence[Candidate]) -> tuple[Edge, ...]:
    edges = [edge for mover in order for rule in mover.constraints for edge in _edges_of(mover, rule, order)]
    against = [edge for edge in edges if _phase(edge.outer) > _phase(edge.inner)]
    if against:
        _refuse(
            "constraints contradict the phases (only the user's `phase` setting moves a plugin to another)", against
        )
    return tuple(edge for edge in edges if edge.outer.phase == edge.inner.phase)


def _edges_of(mover: Candidate, rule: Constraint, order: Sequence[Candidate]) -> Iterator[Edge]:
    for other in order:
        if not matches(rule.target, other.plugin) or _is_own(mover, rule, other):
            continue
        if rule.target.endswith(".*") and other.phase != mover.phase:
            continue  # `guard.*` is "the guards around me": a guard of another phase is no contradiction
        outer, inner = (mover, other) if rule.relation == "before" else (other, mover)
        yield Edge(outer, inner, mover, rule)


def _is_own(mover: Candidate, rule: Constraint, other: Candidate) -> bool:
    """Tell whether a plugin meets itself: two instances of one class that go before `guard.*` are no contradiction."""
    if other.plugin == mover.plugin:
        return True
    return base_id(other.plugin) == base_id(mover.plugin) and rule.target != other.plugin


def _phase(one: Candidate) -> int:
    return PHASES.index(one.phase)


def _reach(order: Sequence[Candidate], edges: Sequence[Edge]) -> Mapping[Candidate, frozenset[Candidate]]:
    """Return for each layer all those that constraints keep inside it, directly or through others."""
    direct: dict[Candidate, list[Candidate]] = {one: [] for one in order}
    for edge in edges:
        direct[edge.outer].append(edge.inner)
    inside: dict[Candidate, frozenset[Candidate]] = {}
    for one in order:
        seen: set[Candidate] = set()
        waiting = list(direct[one])
        while waiting:
            other = waiting.pop()
            if other not in seen:
                seen.add(other)
                waiting.extend(direct[other])
        inside[one] = frozenset(seen)
    return inside


def _refuse_cycles(hook: str, edges: Sequence[Edge], inside: Mapping[Candidate, frozenset[Candidate]]) -> None:
    cyclic = [edge for edge in edges if edge.outer in inside[edge.inner]]
    if cyclic:
        _refuse(f"constraints of hook {hook} contradict each other", cyclic)


def _refuse(what: str, edges: Sequence[Edge]) -> NoReturn:
    listed = "; ".join(dict.fromkeys(str(edge) for edge in edges))
    raise OrderError(f"{what}: {listed}", plugin=edges[0].mover.plugin)


def _settle(
    order: list[Candidate], edges: Sequence[Edge], inside: Mapping[Candidate, frozenset[Candidate]]
) -> tuple[list[Candidate], tuple[Move, ...]]:
    """Make every constraint hold.

    A move takes along what constraints tie to the mover, so it breaks no constraint that held: one pass is enough.
    """
    moves = []
    for edge in _movers_last(order, [edge for edge in edges if not _holds(order, edge)]):
        if not _holds(order, edge):
            order, move = _moved(order, edge, inside)
            moves.append(move)
    return order, tuple(moves)


def _holds(order: Sequence[Candidate], edge: Edge) -> bool:
    return order.index(edge.outer) < order.index(edge.inner)


def _movers_last(order: Sequence[Candidate], edges: Sequence[Edge]) -> list[Edge]:
    """Sort constraints so that a target finds its own place before somebody moves next to it."""
    result: list[Edge] = []
    visited: set[Candidate] = set()

    def visit(mover: Candidate) -> None:
        if mover in visited:
            return
        visited.add(mover)
        mine = [edge for edge in edges if edge.mover is mover]
        for edge in mine:
            visit(edge.inner if mover is edge.outer else edge.outer)
        result.extend(mine)

    for one in order:
        visit(one)
    return result


def _moved(
    order: list[Candidate], edge: Edge, inside: Mapping[Candidate, frozenset[Candidate]]
) -> tuple[list[Candidate], Move]:
    start, end = order.index(edge.inner), order.index(edge.outer) + 1
    between = order[start:end]
    if edge.mover is edge.outer:  # it goes outward, with what must stay outside it
        moving = [one for one in between if one is edge.outer or edge.outer in inside[one]]
    else:
        moving = [one for one in between if one is edge.inner or one in inside[edge.inner]]
    staying = [one for one in between if one not in moving]
    between = moving + staying if edge.mover is edge.outer else staying + moving
    carried = tuple(one for one in moving if one is not edge.mover)
    return order[:start] + between + order[end:], Move(edge, carried)


def _reversals(hook: str, order: Sequence[Candidate], patterns: Sequence[str]) -> tuple[Reversal, ...]:
    found = []
    for index, outer in enumerate(order):
        for inner in order[index + 1 :]:
            if outer.phase == inner.phase:
                continue
            if outer.used is not None and inner.used is not None and outer.used > inner.used:
                found.append(Reversal(inner, outer, "the order of use"))
            if listed(outer, patterns) > listed(inner, patterns) and listed(outer, patterns) != NO_POSITION:
                found.append(Reversal(inner, outer, f"order.{hook}"))
    return tuple(found)
