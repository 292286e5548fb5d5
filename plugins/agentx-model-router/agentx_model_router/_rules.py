"""Rules: which model a call goes to, and under which conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import attrs

from agentx import ConfigError, Model

from ._call import Call


def _is_model(rule: Rule, field: attrs.Attribute[Any], value: Any) -> None:
    if not callable(getattr(value, "respond", None)) and not (isinstance(value, str) and value.strip()):
        raise ConfigError(f"model.router: a rule has {field.name}={value!r}, which is no model: write 'provider/model'")


def _is_count(rule: Rule, field: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ConfigError(f"model.router: a rule has {field.name}={value!r}, which is no whole number of 0 or more")


@attrs.frozen(kw_only=True)
class Rule:
    """Use a model for calls that meet all conditions; without any it meets them all."""

    use: str | Model = attrs.field(validator=_is_model)
    after_tool: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    """One of these tools was just called; `*` stands for anything."""
    min_tokens: int | None = attrs.field(default=None, validator=_is_count)
    """The request has at least about so many tokens."""
    max_tokens: int | None = attrs.field(default=None, validator=_is_count)
    min_step: int | None = attrs.field(default=None, validator=_is_count)
    """The step has at least this number in its turn; the first is 1."""
    max_step: int | None = attrs.field(default=None, validator=_is_count)
    users: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    """The session belongs to one of them; `*` stands for anything."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    """`run(metadata=…)` has these values; of a list, one of them."""

    def __attrs_post_init__(self) -> None:
        for what in ("tokens", "step"):
            least, most = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if least is not None and most is not None and least > most:
                raise ConfigError(f"model.router: a rule has min_{what}={least} and max_{what}={most}; nothing is both")

    @property
    def asks_size(self) -> bool:
        return self.min_tokens is not None or self.max_tokens is not None

    @property
    def reason(self) -> str:
        """Return the conditions in words; empty if there are none."""
        return ", ".join(self._conditions())

    def _conditions(self) -> Iterator[str]:
        if self.after_tool:
            yield f"after tool {' or '.join(self.after_tool)}"
        for what in ("tokens", "step"):
            least, most = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if least is not None or most is not None:
                yield f"{what} {'' if least is None else least}..{'' if most is None else most}"
        if self.users:
            yield f"user {' or '.join(self.users)}"
        yield from [f"metadata {name}={value!r}" for name, value in self.metadata.items()]

    def meets(self, call: Call, tokens: int) -> bool:
        """Return whether a call of about so many tokens meets all conditions."""
        return (
            (not self.after_tool or any(_is_like(name, self.after_tool) for name in call.tools))
            and _is_within(tokens, self.min_tokens, self.max_tokens)
            and _is_within(call.step, self.min_step, self.max_step)
            and (not self.users or (call.user is not None and _is_like(call.user, self.users)))
            and all(_is_one_of(call.metadata.get(name), value) for name, value in self.metadata.items())
        )


def _is_like(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_within(value: int, least: int | None, most: int | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _is_one_of(found: Any, wanted: Any) -> bool:
    return found in wanted if isinstance(wanted, list | tuple | frozenset | set) else found == wanted
