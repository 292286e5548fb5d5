"""What all tests share: every async test runs on asyncio and on trio, without a mark on each."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> None:
    if collector.istestfunction(obj, name) and inspect.iscoroutinefunction(inspect.unwrap(obj)):
        pytest.mark.anyio(obj)


@pytest.fixture(scope="session")
def aimock_server() -> Iterator[Any]:
    from peers.aimock import running_aimock

    with running_aimock() as server:
        yield server


@pytest.fixture
def aimock(aimock_server: Any) -> Any:
    """aimock without fixtures or journal: `aimock.script(…)`, `aimock.url`, `aimock.requests`."""
    aimock_server.reset()
    return aimock_server


@pytest.fixture(scope="session")
def llama() -> Iterator[Any]:
    """llama.cpp's server with SmolLM2: `llama.url`."""
    from peers.llama import running_llama

    with running_llama() as server:
        yield server


hypothesis.settings.register_profile(
    "agentx", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("agentx")
