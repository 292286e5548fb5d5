"""What tests say about plugins and the network, as environment variables while they run."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping

import pytest

ALLOW = "AGENTX_ALLOW_MODEL_REQUESTS"
AUTOLOAD = "AGENTX_AUTOLOAD"

_blocked = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Say which marks there are, and block the network."""
    config.addinivalue_line(
        "markers", "agentx_plugins(*ids): agents of this test load these installed plugins by themselves, and no others"
    )
    config.addinivalue_line("markers", "agentx_network: models of this test may use the network")
    config.stash[_blocked] = ALLOW not in os.environ
    os.environ.setdefault(ALLOW, "0")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the environment as it was."""
    if config.stash.get(_blocked, False):
        os.environ.pop(ALLOW, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Set the variables of a test's marks for as long as it runs, its fixtures included."""
    wanted = variables(item)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        return (yield)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def variables(item: pytest.Item) -> Mapping[str, str]:
    """Return the environment variables that a test's marks stand for."""
    found: dict[str, str] = {}
    if item.get_closest_marker("agentx_network") is not None:
        found[ALLOW] = "1"
    mark = item.get_closest_marker("agentx_plugins")
    if mark is None:
        return found
    found[AUTOLOAD] = "listed" if mark.args else "none"
    for plugin_id in mark.args:
        if not isinstance(plugin_id, str):
            raise pytest.UsageError(
                f"{item.nodeid}: agentx_plugins takes ids such as 'guard.budget', not {plugin_id!r}"
            )
        segment = "".join(["_" if char in ".#-" else char for char in plugin_id]).upper()
        found[f"AGENTX__{segment}__ENABLED"] = "true"
    return found
