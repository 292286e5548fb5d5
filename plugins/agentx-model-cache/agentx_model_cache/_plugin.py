"""`model.cache`: give the answer to an equal request again."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import anyio.to_thread
import attrs
from platformdirs import user_cache_path

from agentx import (
    SYSTEM_CLOCK,
    AgentContext,
    CallNext,
    Clock,
    CodecError,
    ConfigError,
    Key,
    ModelContext,
    ModelResponse,
    Plugin,
    hookimpl,
)

from ._notes import Candidate, Notes, Recorder
from ._request import body_of, given_again, is_answer, is_complete, is_repeatable, key_of, response_of
from ._shelf import Found, Shelf, ShelfError

T = TypeVar("T")
logger = logging.getLogger("agentx")
WEEK = 7 * 24 * 3600.0
SCOPES = ("auto", "all", "user", "session")


def _is_positive(plugin: Cache, field: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ConfigError(f"model.cache: {field.name} is a number above 0, not {value}")


def _is_scope(plugin: Cache, field: attrs.Attribute[Any], value: str) -> None:
    if value not in SCOPES:
        raise ConfigError(f"model.cache: {field.name} is one of {', '.join(SCOPES)}, not {value!r}")


@attrs.frozen
class _Open:
    """What belongs to one opening of an agent."""

    shelf: Shelf
    notes: Notes


class Cache(Plugin):
    """Keep whole answers on disk, and give them again for requests that are equal in everything.

    Answers are looked up inside of the layers that check, and kept by a layer outside of all others: what was changed
    or refused on its way out is not kept, and what is given again is checked again.
    """

    id: ClassVar[str] = "model.cache"

    always: bool = False
    """Also for requests that allow the model to answer differently each time: no temperature of 0 and no seed."""
    scope: Literal["auto", "all", "user", "session"] = attrs.field(default="auto", validator=_is_scope)
    """Who shares answers. `auto`: all, or those of one user where a plugin masks."""
    ttl: float | None = attrs.field(default=WEEK, validator=_is_positive)
    """Seconds for which an answer counts; in code `None` for ever."""
    max_megabytes: float = attrs.field(default=256.0, validator=_is_positive)
    """Of all answers together; those that were not used for the longest time go first."""
    path: Path | None = None
    """The file; by default one in the user's cache folder, for all programs."""

    @property
    def _key(self) -> Key[_Open]:
        return Key(f"model.cache {id(self)}")  # of this very instance: a sub-agent may have its own

    @hookimpl(phase="prepare")
    async def init(self, ctx: AgentContext, call_next: CallNext[None]) -> None:
        path = self.path or user_cache_path("agentx") / "answers.sqlite"
        opened = _Open(Shelf(path, self.ttl, int(self.max_megabytes * 2**20)), Notes())
        ctx.provide(self._key, opened)
        try:
            await call_next()
        finally:
            with ctx.shield(5):
                await anyio.to_thread.run_sync(opened.shelf.close)

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        request, opened = ctx.request, ctx.get(self._key)
        if not (self.always or is_repeatable(request)) or not is_complete(request):
            return await call_next()
        key = key_of(request, ctx.resolve_model(request.model), self._scope(ctx))
        kept = await self._kept(ctx, opened.shelf, key)
        if kept is not None:
            return kept
        recorders: list[Recorder] = []

        def record() -> Recorder:
            recorders.append(Recorder())
            return recorders[-1]

        ctx.transform_deltas(record)
        response = await call_next()
        if is_answer(response) and any(recorder.has(response) for recorder in recorders):
            opened.notes.add(_place(ctx), Candidate(key, response))
        return response

    @hookimpl(hook="model", phase="observe")
    async def keep(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        """Keep an answer that nobody changed. Outside of all others, for it must have passed everybody."""
        opened, place = ctx.get(self._key), _place(ctx)
        if not opened.notes.begin(place):
            return await call_next()
        try:
            response = await call_next()
        finally:
            candidates = opened.notes.end(place)
        key = next((candidate.key for candidate in candidates if candidate.response == response), None)
        if key is not None:
            body, now = body_of(response), ctx.get(Clock, SYSTEM_CLOCK).time()
            await self._on(ctx, lambda: opened.shelf.put(key, body, now))
        return response

    def _scope(self, ctx: ModelContext) -> tuple[str, ...]:
        """Return whose answers these are.

        A mask means something else in every session, and what a masked request says is one user's. A sub-agent's
        requests may be masked by the layers of whoever called it.
        """
        scope = self.scope
        if scope == "auto":
            scope = "user" if ctx.path or _is_masked(ctx) else "all"
        if scope == "all":
            return ()
        return ("user", ctx.user) if scope == "user" and ctx.user is not None else ("session", ctx.session_id)

    async def _kept(self, ctx: ModelContext, shelf: Shelf, key: str) -> ModelResponse | None:
        """Return the kept answer for a key, if there is a sound one."""
        now = ctx.get(Clock, SYSTEM_CLOCK).time()
        found: Found | None = await self._on(ctx, lambda: shelf.find(key, now))
        if found is None:
            return None
        try:
            response = response_of(found.body)
        except CodecError as error:
            self._warn(ctx, f"an entry cannot be read and was removed: {error}")
            await self._on(ctx, lambda: shelf.remove(key))
            return None
        saved = attrs.asdict(response.usage) if response.usage is not None else None
        usd = str(response.cost) if response.cost is not None else None
        ctx.emit("hit", model=ctx.request.model, key=key[:16], age=found.age, saved=saved, saved_usd=usd)
        return given_again(response, ctx.request)

    async def _on(self, ctx: ModelContext, act: Callable[[], T]) -> T | None:
        """Return what `act` returns, from a thread; a shelf that cannot be used is as good as an empty one."""
        try:
            return await anyio.to_thread.run_sync(act)
        except ShelfError as error:
            self._warn(ctx, str(error))
            return None

    def _warn(self, ctx: ModelContext, problem: str) -> None:
        logger.warning("model.cache: %s", problem)
        ctx.emit("problem", problem=problem)


def _place(ctx: ModelContext) -> tuple[str, str, int]:
    return ctx.session_id, ctx.turn_id, ctx.call_index


def _is_masked(ctx: ModelContext) -> bool:
    return any(row.status == "enabled" and row.phase == "redact" for row in ctx.agent.plugins)
