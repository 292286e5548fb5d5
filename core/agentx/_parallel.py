"""Run calls side by side, all or none.

On asyncio a task group of anyio makes a scope, an event and a handle for every task, which costs more than the calls
of a step themselves. What they need is less: the first failure cancels the others, a cancellation reaches all of them
through their shields and no further, and nobody leaves before all are done.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from ._host import in_trio, is_cancellation

if TYPE_CHECKING:
    import asyncio

Call = Callable[[], Coroutine[Any, Any, None]]


async def run_all(calls: Sequence[Call], most: int) -> None:
    """Run calls side by side, at most `most` at once, and wait for all.

    Raises:
        BaseExceptionGroup: some raised; the others were cancelled.
    """
    if len(calls) > most:
        limiter = anyio.Semaphore(most)
        calls = [_limited(limiter, call) for call in calls]
    if in_trio():
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(call)
        return
    await _Batch().run(calls)


def _limited(limiter: anyio.Semaphore, call: Call) -> Call:
    async def run() -> None:
        async with limiter:
            await call()

    return run


class _Batch:
    """Calls in tasks of asyncio, each in a cancel scope of its own."""

    def __init__(self) -> None:
        self._scopes: list[anyio.CancelScope] = []
        self._errors: list[BaseException] = []
        self._left = 0
        self._done: asyncio.Future[None] | None = None

    async def run(self, calls: Sequence[Call]) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        deadline = anyio.current_effective_deadline()
        self._left = len(calls)
        self._done = loop.create_future()
        tasks = []
        for call in calls:
            scope = anyio.CancelScope(deadline=deadline)
            self._scopes.append(scope)
            tasks.append(loop.create_task(self._run(call, scope)))
        try:
            await self._done
        except BaseException:
            self._cancel()
            await self._wait(loop)
            raise
        if self._errors:
            raise BaseExceptionGroup("calls of one step", self._errors)

    async def _run(self, call: Call, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await call()
        except BaseException as error:
            if not is_cancellation(error):
                self._errors.append(error)
            self._cancel()
        finally:
            self._left -= 1
            if not self._left and self._done is not None and not self._done.done():
                self._done.set_result(None)

    def _cancel(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the rest although this task is being cancelled, again and again if need be."""
        with anyio.CancelScope(shield=True):
            while self._left:
                self._done = loop.create_future()
                try:
                    await self._done
                except BaseException as error:
                    if not is_cancellation(error):
                        raise
