"""Why a layer stands where it stands: the sentences of `agentx plugins why` and of `agent.explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs

from ._order import NO_POSITION, Arrangement, Candidate, Edge, Move, listed, place

ReasonKind = Literal["phase", "position", "constraint", "id"]


@attrs.frozen
class Reason:
    kind: ReasonKind
    text: str

    def __str__(self) -> str:
        return self.text


def why(arrangement: Arrangement, one: Candidate) -> tuple[Reason, ...]:
    """Return why a layer is at its place in its hook, the strongest reason first."""
    reasons = [Reason("phase", f"{one.label} is in phase {one.phase}{_chosen(one)}")]
    if one.used is not None:
        reasons.append(Reason("position", f"{one.label} is number {one.used + 1} in the order of use"))
    index = listed(one, arrangement.patterns)
    if index != NO_POSITION:
        pattern = arrangement.patterns[index]
        reasons.append(Reason("position", f"order.{arrangement.hook} lists it as {pattern!r}, number {index + 1}"))
    reasons += [_moved(move, one) for move in arrangement.moves if _took_part(move, one)]
    moved_by = [move.edge for move in arrangement.moves]
    for edge in arrangement.edges:
        if one in (edge.outer, edge.inner) and edge not in moved_by:
            reasons.append(Reason("constraint", f"{edge}: holds without a move"))
    reasons += [
        Reason("position", str(item)) for item in arrangement.reversals if one in (item.wanted_outer, item.wanted_inner)
    ]
    index = arrangement.order.index(one)
    if index + 1 < len(arrangement.order):
        reasons += why_outside(arrangement, one, arrangement.order[index + 1])
    return tuple(reasons)


def why_outside(arrangement: Arrangement, one: Candidate, other: Candidate) -> tuple[Reason, ...]:
    """Return why the outer one of two layers of a hook is outside the other."""
    outer, inner = sorted((one, other), key=arrangement.order.index)
    if outer.phase != inner.phase:
        text = f"phase {outer.phase} is outside phase {inner.phase}"
        return (Reason("phase", f"{text}: {outer.label}{_chosen(outer)}, {inner.label}{_chosen(inner)}"),)
    path = _path(arrangement.edges, outer, inner)
    if path:
        return tuple(Reason("constraint", str(edge)) for edge in path)
    if place(outer, arrangement.patterns) < place(inner, arrangement.patterns):
        return (_placed(arrangement, outer, inner),)
    moves = [move for move in arrangement.moves if _took_part(move, outer) or _took_part(move, inner)]
    return tuple(_moved(move, outer if _took_part(move, outer) else inner) for move in moves)


def _chosen(one: Candidate) -> str:
    return f" ({one.phase_by})" if one.phase_by else ""


def _took_part(move: Move, one: Candidate) -> bool:
    return one is move.edge.mover or one in move.carried


def _moved(move: Move, one: Candidate) -> Reason:
    direction = "outward" if move.edge.mover is move.edge.outer else "inward"
    if one is move.edge.mover:
        return Reason("constraint", f"{one.label} moved {direction}: {move.edge}")
    return Reason("constraint", f"{one.label} moved {direction} with {move.edge.mover.label}: {move.edge}")


def _path(edges: Sequence[Edge], outer: Candidate, inner: Candidate) -> list[Edge]:
    """Return the shortest chain of constraints from one layer in to another."""
    chains: list[list[Edge]] = [[edge] for edge in edges if edge.outer is outer]
    seen = {outer}
    for chain in chains:  # grows while it is read: breadth first
        end = chain[-1].inner
        if end is inner:
            return chain
        if end not in seen:
            seen.add(end)
            chains += [[*chain, edge] for edge in edges if edge.outer is end]
    return []


def _placed(arrangement: Arrangement, outer: Candidate, inner: Candidate) -> Reason:
    order = f"order.{arrangement.hook}"
    patterns = arrangement.patterns
    first, second = listed(outer, patterns), listed(inner, patterns)
    if first != second:
        if second == NO_POSITION:
            return Reason("position", f"{order} lists {patterns[first]!r}, and {inner.label} is not in it")
        return Reason("position", f"{order} lists {patterns[first]!r} before {patterns[second]!r}")
    if outer.used != inner.used:
        if inner.used is None:
            return Reason("position", f"{outer.label} is given in code, {inner.label} is not")
        return Reason("position", f"{outer.label} is used before {inner.label}")
    if outer.plugin == inner.plugin:
        return Reason("id", f"both are layers of {outer.plugin}, in the order of their names")
    return Reason("id", f"nothing but the order of ids puts {outer.plugin} outside {inner.plugin}")
