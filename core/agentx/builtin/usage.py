"""observe.usage: tokens and requests of a session, by model."""

from __future__ import annotations

from typing import ClassVar

import attrs

from agentx import CallNext, Key, ModelContext, ModelResponse, Plugin, RunResult, TurnContext, Usage, reduced

NOTHING = Usage(requests=0)


@attrs.frozen
class ModelUsage:
    """What one model was used for. `failed` counts calls that gave no response."""

    model: str
    usage: Usage = NOTHING
    calls: int = 0
    failed: int = 0

    def plus(self, other: ModelUsage) -> ModelUsage:
        return ModelUsage(self.model, self.usage + other.usage, self.calls + other.calls, self.failed + other.failed)


def merge(old: tuple[ModelUsage, ...], new: tuple[ModelUsage, ...]) -> tuple[ModelUsage, ...]:
    """Return both by model, in the order in which the models were first used."""
    found = {item.model: item for item in old}
    for item in new:
        found[item.model] = found[item.model].plus(item) if item.model in found else item
    return tuple(found.values())


@attrs.frozen
class UsageState:
    models: tuple[ModelUsage, ...] = reduced(merge, default=())


_TURN = Key[list[ModelUsage]]("observe.usage")


class UsageObserver(Plugin[UsageState]):
    """Count tokens by the model that answered: `session.state.of(plugin).models`.

    `session.usage` and `RunResult.usage` have the sums without any plugin.
    """

    id: ClassVar = "observe.usage"

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult]) -> RunResult:
        used: list[ModelUsage] = []
        ctx.provide(_TURN, used)
        try:
            return await call_next()
        finally:
            if used:
                ctx.update(self, models=tuple(used))

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        used = ctx.get(_TURN)
        try:
            response = await call_next()
        except BaseException:
            used.append(ModelUsage(ctx.request.model, calls=1, failed=1))
            raise
        used.append(ModelUsage(response.model or ctx.request.model, response.usage or NOTHING, 1))
        return response
