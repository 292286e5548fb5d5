"""Who provides what another plugin needs, found before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._context import key_name
from ._members import Member, Refusal
from ._order import Constraint, base_id
from ._scan import load


def missing_service(member: Member, others: Iterable[Member], refused: Iterable[Refusal]) -> str | None:
    """Return what is wrong if nobody provides what a plugin needs; it names a disabled plugin that could.

    Such a plugin is imported to find that out: only here, where the load fails anyway.
    """
    provided = {key for other in others for key in other.trait("provides")}
    for key in member.trait("needs"):
        if key not in provided:
            could = [refusal.id for refusal in refused if _could_provide(refusal, key)]
            fix = f"enable {' or '.join(could)}, which provides it" if could else "install or use a plugin that does"
            return f"needs {key_name(key)}, which no active plugin provides: {fix}"
    return None


def _could_provide(refusal: Refusal, key: Any) -> bool:
    if refusal.status != "disabled" or refusal.found is None:
        return False
    return key in getattr(load(refusal.found).value, "provides", ())


def service_constraints(members: Sequence[Member]) -> Mapping[str, Sequence[Constraint]]:
    """Return by plugin the constraints that put those who provide what it needs outside of it."""
    found: dict[str, list[Constraint]] = {}
    for member in members:
        for key in member.trait("needs"):
            if key in member.trait("provides"):
                continue  # it may wrap what another one provides
            for other in members:
                if key in other.trait("provides") and base_id(other.id) != base_id(member.id):
                    rule = Constraint("after", other.id, f"{member.id} (needs {key_name(key)})")
                    found.setdefault(member.id, []).append(rule)
    return found
