"""llmock judges the client: waits ignored, retries that cannot help, cut streams that are taken for answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentx import Agent, ContextWindowError, ModelError
from agentx.builtin.retry import Retry
from agentx.providers import Timeouts
from agentx_model_openai import OpenAIModel

from ._openai import both_apis, streamed_or_not

QUICK = Timeouts(first_byte=5, idle=0.5)


def agent(llmock: Any, api: Any, *, stream: bool = True) -> Agent:
    model = OpenAIModel("gpt-4o", base_url=llmock.base_url("openai"), api=api, stream=stream, timeouts=QUICK)
    return Agent(model, plugins=[Retry(base_delay=0.02)], autoload="none", config=False)


@both_apis
@streamed_or_not
async def test_a_limit_and_an_outage_are_waited_for(llmock: Any, api: str, stream: bool) -> None:
    llmock.rate_limit(times=1, retry_after=0.3).fail(503, times=1).reply("Hello")
    result = await agent(llmock, api, stream=stream).run("hi")
    assert result.text == "Hello"
    assert len(llmock.requests) == 3
    llmock.assert_resilient(strict=True)


@both_apis
@pytest.mark.parametrize(
    "fault",
    [
        lambda llmock: llmock.truncate(after_chunks=2),
        lambda llmock: llmock.disconnect(after_chunks=2),
        lambda llmock: llmock.stall(after_chunks=2, seconds=3),
    ],
    ids=["truncated", "disconnected", "stalled"],
)
async def test_a_stream_that_breaks_is_asked_for_again(llmock: Any, api: str, fault: Callable[[Any], Any]) -> None:
    fault(llmock.reply("The whole of a longer answer", times=2))
    result = await agent(llmock, api).run("hi")
    assert result.text == "The whole of a longer answer"
    assert len(llmock.requests) == 2
    llmock.assert_resilient()


@both_apis
async def test_a_broken_chunk_is_no_answer(llmock: Any, api: str) -> None:
    llmock.reply("The whole of a longer answer").corrupt(after_chunks=2)
    with pytest.raises(ModelError):
        await agent(llmock, api).run("hi")
    llmock.assert_resilient()


@both_apis
@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_what_cannot_succeed_is_asked_once(llmock: Any, api: str, status: int) -> None:
    llmock.fail(status)
    with pytest.raises(ModelError) as caught:
        await agent(llmock, api).run("hi")
    assert caught.value.status == status
    assert len(llmock.requests) == 1
    llmock.assert_resilient()


@both_apis
async def test_a_context_that_is_full_is_said_so(llmock: Any, api: str) -> None:
    llmock.context_overflow()
    with pytest.raises(ContextWindowError):
        await agent(llmock, api).run("hi")
    llmock.assert_resilient()


@both_apis
async def test_an_outage_that_lasts_is_given_up_on(llmock: Any, api: str) -> None:
    llmock.outage()
    with pytest.raises(ModelError) as caught:
        await agent(llmock, api).run("hi")
    assert caught.value.status == 503
    assert 2 <= len(llmock.requests) <= 10
    llmock.assert_resilient()


@both_apis
async def test_a_tool_is_called_and_its_result_sent(llmock: Any, api: str) -> None:
    llmock.call_tool("now").reply("noon")

    def now() -> str:
        """Tell the time."""
        return "noon"

    model = OpenAIModel("gpt-4o", base_url=llmock.base_url("openai"), api=api)  # type: ignore[arg-type]
    result = await Agent(model, tools=[now], autoload="none", config=False).run("time?")
    assert result.text == "noon"
    assert len(llmock.requests) == 2
