"""Fixtures for tests of agents and plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from agentx import Agent
    from agentx.testing import FakeClock, ScriptedModel


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedModel]]:
    """Make models that answer from a script: `scripted(["Hello."])`.

    Takes what `agentx.testing.ScriptedModel` takes. At the end of the test every script must have been used up.
    """
    from agentx.testing import ScriptedModel

    made: list[ScriptedModel] = []

    def make(script: Sequence[Any], **options: Any) -> ScriptedModel:
        made.append(ScriptedModel(script, **options))
        return made[-1]

    yield make
    for model in made:
        model.assert_finished()


@pytest.fixture
def agentx_agent(scripted: Callable[..., ScriptedModel]) -> Callable[..., Agent[Any, Any]]:
    """Make agents that read no configuration: `agentx_agent(["Hello."], plugins=[Budget()])`.

    Takes what `agentx.Agent` takes; a list in the place of the model is a script, as for `scripted`.
    """
    from agentx import Agent

    def make(model: Any, **options: Any) -> Agent[Any, Any]:
        options.setdefault("config", False)
        return Agent(scripted(model) if isinstance(model, list | tuple) else model, **options)

    return make


@pytest.fixture
def agentx_clock() -> FakeClock:
    """A `agentx.testing.FakeClock`, for `plugins=[…]`: plugins sleep on it without waiting."""
    from agentx.testing import FakeClock

    return FakeClock()
