"""The listing of `agentx plugins`: one row per plugin, whatever became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from ._configure import Value
from ._errors import OrderError
from ._members import Member, Refusal, Source, Status, main_candidate
from ._order import Candidate, arrange, place
from ._scan import Found


@attrs.frozen
class Row:
    """One plugin, as `agentx plugins --json` shows it."""

    id: str
    status: Status
    reason: str = ""
    position: int | None = None
    """From outermost to innermost; only of a plugin that is enabled."""
    phase: str | None = None
    distribution: str = ""
    version: str = ""
    hooks: tuple[str, ...] = ()
    source: Source = "entry"
    config: Mapping[str, Value] = attrs.field(factory=dict)
    tools: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data. Secrets are masked, and what JSON has no type for is text."""
        data = {field.name: getattr(self, field.name) for field in attrs.fields(Row)}
        data["hooks"], data["tools"] = list(self.hooks), list(self.tools)
        data["config"] = {name: {"value": _plain(value), "origin": value.origin} for name, value in self.config.items()}
        return data


def rows_of(members: Iterable[Member], refused: Iterable[Refusal]) -> tuple[Row, ...]:
    """Return the active plugins from outermost to innermost, then the others by id."""
    by_id = {member.id: member for member in members}
    rows = [
        _row_of(by_id[one.plugin], position, one.phase)
        for position, one in enumerate(_listed_order([main_candidate(member) for member in by_id.values()]), 1)
    ]
    return (*rows, *sorted((row_of_refusal(refusal) for refusal in refused), key=lambda row: row.id))


def _listed_order(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Order plugins as a whole. Each hook has its own order; this is the one that says most about all of them."""
    try:
        return arrange("model", candidates).order
    except OrderError:  # of plugins that never meet in one hook, or of some that `load` refuses
        return sorted(candidates, key=lambda one: place(one, ()))


def _row_of(member: Member, position: int, phase: str) -> Row:
    found = member.offer.found
    return Row(
        id=member.id,
        status="enabled",
        position=position,
        phase=phase,
        distribution=found.distribution if found else "",
        version=found.version if found else "",
        hooks=member.hooks,
        source=member.offer.source,
        config=member.values,
        tools=tuple(tool.name for tool in member.tools),
    )


def row_of_refusal(refusal: Refusal) -> Row:
    found = refusal.found or Found("", "", "", "", "", "")
    return Row(
        id=refusal.id,
        status=refusal.status,
        reason=refusal.reason,
        distribution=found.distribution,
        version=found.version,
        source=refusal.source,
    )


def _plain(value: Value) -> Any:
    if value.is_secret:
        return "***"
    if value.value is None or isinstance(value.value, bool | int | float | str):
        return value.value
    if isinstance(value.value, tuple | list | frozenset | set):
        return [str(item) for item in value.value]
    return str(value.value)
