"""Histories on their way to the Messages API and back: what is signed or opaque stays as it is, and none is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentx import (
    Agent,
    FilePart,
    HistoryAdapted,
    Message,
    ModelRequest,
    ModelSettings,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    encode,
    from_plain,
    tool,
)
from agentx.builtin.limits import LimitsGuard
from agentx.testing import ScriptedModel, check_history
from agentx_model_anthropic import AnthropicModel
from peers.messages_api import (
    Api,
    Body,
    call,
    detour,
    events,
    found,
    messages_api,
    page,
    redacted,
    says,
    searches,
    text,
    thought,
)
from peers.wire import named, reply, sse

F = ToolSpec("f", "", {"type": "object"})
CALLER = {"type": "code_execution_20260120", "tool_id": "s1"}


@pytest.fixture(autouse=True)
def requests_go_nowhere_but_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to Anthropic's address are allowed, because a detour takes them to a server on this machine."""
    monkeypatch.setenv("AGENTX_ALLOW_MODEL_REQUESTS", "1")


def agent_on(api: Api, client: Any = None, **options: Any) -> Agent[Any, str]:
    where = {"client": client} if client is not None else {"base_url": api.url}
    model = AnthropicModel("claude-opus-5", api_key="k", cache="off", **where)
    return Agent(model, autoload="none", config=False, **options)


@tool
def f() -> str:
    """Return one."""
    return "1"


def user(*parts: Part | str) -> Message:
    return Message("user", tuple([TextPart(part) if isinstance(part, str) else part for part in parts]))


def answer(*parts: Part | str) -> Message:
    return Message("assistant", user(*parts).parts)


def result(*ids: str) -> Message:
    return Message("tool", tuple([ToolResult(id, "f", (TextPart("1"),)) for id in ids]))


async def wire(*messages: Message, own: bool = False, **fields: Any) -> tuple[list[Body], tuple[str, ...]]:
    """Return the messages as they were sent, and what was told to have stayed behind."""
    told: list[str] = []

    async def emit(delta: Any) -> None:
        told.extend(getattr(delta, "dropped", ()))

    with messages_api(says(text("ok")), own=own) as api:
        model = AnthropicModel("m", base_url=api.url, cache="off")
        await model.respond(ModelRequest("anthropic/m", messages, tools=(F,), **fields), emit)
        await model.aclose()
        return api.bodies[0]["messages"], tuple(told)


# Thinking (G09)

THOUGHTS = [thought("", "S1"), redacted("D"), thought("t2 – ü", "S2"), text("ok"), call("c1", "f")]


async def test_signed_and_redacted_thinking_comes_back_as_it_was_also_from_a_stored_history() -> None:
    script = [says(*THOUGHTS, stop="tool_use"), says(text("done")), says(text("again"))]
    with messages_api(*script) as api:
        async with detour(api.url) as client:
            async with agent_on(api, client, tools=[f]) as agent, agent.session() as session:
                assert (await session.run("go")).text == "done"
                stored = from_plain(json.loads(encode(tuple(session.history))), tuple[Message, ...])
            async with agent_on(api, client, tools=[f]) as agent, agent.session(history=stored) as session:
                assert (await session.run("more")).text == "again"
    assert api.refusals == []
    for sent in api.bodies[1:]:
        assert sent["messages"][1] == {"role": "assistant", "content": THOUGHTS}
        assert sent["messages"][2]["content"][0]["type"] == "tool_result"


async def test_thinking_without_a_signature_goes_back_only_to_a_server_that_makes_none() -> None:
    messages, told = await wire(user("a"), answer(ThinkingPart("hm", provider="anthropic"), "b"), user("c"))
    assert messages[1]["content"][0] == thought("hm", "")
    assert told == ()
    with messages_api(says(text("ok"))) as api:
        async with detour(api.url) as client:
            history = (user("a"), answer(ThinkingPart("hm", provider="anthropic"), "b"))
            async with agent_on(api, client) as agent, agent.session(history=history) as session:
                told_events: list[HistoryAdapted] = []
                session.on("history.adapted", told_events.append)
                await session.run("c")
    assert api.bodies[0]["messages"][1]["content"] == [text("b")]
    assert [event.dropped for event in told_events] == [("reasoning of anthropic",)]


async def test_what_belongs_to_another_provider_stays_behind_and_is_told() -> None:
    foreign = answer(
        ThinkingPart("hm", "SIG", None, "openai"),
        OpaquePart("openai", {"type": "item"}),
        TextPart("b", {"annotations": [1]}, "openai"),
        ToolCall("c1", "f", "{}", {"signature": "x"}, "google"),
    )
    messages, told = await wire(user("a"), foreign, result("c1"))
    assert messages[1]["content"] == [text("b"), call("c1", "f")]
    assert told == ("reasoning of openai", "item of openai")


async def test_thinking_that_nothing_follows_is_left_out() -> None:
    cut = answer(ThinkingPart("hm", "S", None, "anthropic"))
    messages, told = await wire(user("a"), cut, user("b"))
    assert messages == [{"role": "user", "content": [text("a"), text("b")]}]
    assert told == ("reasoning without an answer",)


# Paused answers and tools of the server (G11)


async def test_a_paused_answer_is_sent_back_unchanged_until_it_is_whole() -> None:
    paused = says(text("searching"), searches("s1", "x"), stop="pause_turn", usage={"output_tokens": 5})
    whole = says(found("s1", page("https://a.example")), text("42"), usage={"output_tokens": 7})
    with messages_api(paused, whole, says(text("sure"))) as api:
        async with agent_on(api) as agent, agent.session() as session:
            first = await session.run("What?")
            assert (first.status, first.usage.output_tokens) == ("completed", 12)
            assert first.text.endswith("42")
            await session.run("Sure?")
    assert api.refusals == []
    one, two, three = api.bodies
    assert two == {**one, "messages": [*one["messages"], {"role": "assistant", "content": paused["content"]}]}
    assert three["messages"][1]["content"] == [*paused["content"], *whole["content"]]


async def test_what_is_said_for_one_call_does_not_come_between_a_pause_and_its_rest() -> None:
    paused = answer(OpaquePart("anthropic", searches("s1", "x")))
    messages, _ = await wire(user("a"), paused, context=("Now.",))
    assert messages == [
        {"role": "user", "content": [text("a"), text("Now.")]},
        {"role": "assistant", "content": [searches("s1", "x")]},
    ]


async def test_a_pause_without_end_ends_at_the_limit() -> None:
    with messages_api(says(text("searching"), searches("s1", "x"), stop="pause_turn")) as api:
        done = await agent_on(api, plugins=[LimitsGuard(requests=3)]).run("What?")
    assert (done.status, len(api.bodies)) == ("limit", 3)


async def test_a_search_that_was_cut_is_left_out_once_something_follows_it() -> None:
    cut = answer("I search", OpaquePart("anthropic", searches("s1", "x")))
    messages, told = await wire(user("a"), cut, user("b"))
    assert messages[1]["content"] == [text("I search")]
    assert told == ("an unfinished web_search",)


async def test_a_result_whose_search_was_trimmed_away_is_left_out() -> None:
    rest = answer(OpaquePart("anthropic", found("s1")), "42")
    messages, told = await wire(user("a"), rest, user("b"))
    assert messages[1]["content"] == [text("42")]
    assert told == ("a web_search_tool_result without its call",)


async def test_calls_made_by_the_servers_code_keep_their_caller_and_their_sandbox() -> None:
    code = {"type": "server_tool_use", "id": "s1", "name": "code_execution", "input": {"code": "f()"}}
    ran = {"type": "code_execution_result", "stdout": "1", "stderr": "", "return_code": 0, "content": []}
    over = {"type": "code_execution_tool_result", "tool_use_id": "s1", "content": ran}
    box = {"id": "box-1", "expires_at": "2030-01-01T00:00:00Z"}
    script = [
        says(code, {**call("c1", "f"), "caller": CALLER}, stop="tool_use", container=box),
        says(over, text("done"), container=box),
        says(text("bye")),
    ]
    with messages_api(*script) as api:
        async with agent_on(api, tools=[f]) as agent, agent.session() as session:
            assert (await session.run("go")).text == "done"
            await session.run("bye")
    assert api.refusals == []
    assert [body.get("container") for body in api.bodies] == [None, "box-1", None]
    assert api.bodies[1]["messages"][1]["content"] == [code, {**call("c1", "f"), "caller": CALLER}]


async def test_citations_are_kept_and_sent_back() -> None:
    cited = {
        "type": "char_location",
        "cited_text": "42",
        "document_index": 0,
        "document_title": None,
        "start_char_index": 0,
        "end_char_index": 2,
        "file_id": None,
    }
    with messages_api(says(text("It is 42.", citations=[cited])), says(text("ok"))) as api:
        async with agent_on(api) as agent, agent.session() as session:
            done = await session.run([FilePart("text/plain", b"42"), TextPart("What?")])
            part = done.messages[-1].parts[0]
            assert isinstance(part, TextPart)
            assert part.data == {"citations": [cited]}
            await session.run("Sure?")
    assert api.bodies[1]["messages"][1]["content"] == [text("It is 42.", citations=[cited])]


# Calls and results (G05, G10)


@pytest.mark.parametrize("raw", ["[1,2]", '"x"', "7", '{"a":1', '{"a":NaN}', '{"a":"' + "x" * 200_000])
async def test_a_call_whose_arguments_are_no_object_is_replayed_with_one(raw: str) -> None:
    ran: list[int] = []

    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        ran.append(a)
        return a + b

    bad = says(call("c1", "add"), stop="tool_use")

    def streamed(body: Body) -> Any:
        if len(body["messages"]) > 1:
            return says(text("done"))
        said = events(bad)
        said[2]["delta"]["partial_json"] = raw
        return sse(*named(*said))

    with messages_api(streamed) as api:
        assert (await agent_on(api, tools=[add]).run("go")).text == "done"
    assert (ran, api.refusals) == ([], [])
    assert api.bodies[1]["messages"][1]["content"][0]["input"] == {}
    told = api.bodies[1]["messages"][2]["content"][0]
    assert told["is_error"]
    assert len(json.dumps(told)) < 2000


@pytest.mark.parametrize("stop", ["max_tokens", "refusal", "of_tomorrow"])
async def test_no_call_of_a_response_that_was_cut_runs(stop: str) -> None:
    ran: list[str] = []

    @tool
    def write(path: str = "") -> str:
        """Write."""
        ran.append(path)
        return "ok"

    message = {**says(call("c1", "write"), call("c2", "write", path="a")), "stop_reason": stop}
    with messages_api(reply(200, {}, message), says(text("ok"))) as api:
        async with agent_on(api, tools=[write]) as agent, agent.session() as session:
            done = await session.run("go")
            assert done.status == ("refused" if stop == "refusal" else "truncated")
            check_history(session.history)
            assert (await session.run("and now?")).text == "ok"
    assert (ran, api.refusals) == ([], [])


async def test_results_are_in_one_message_before_what_the_user_says() -> None:
    asked = answer(ToolCall("c1", "f", "{}"), ToolCall("c2", "f", "{}"))
    messages, _ = await wire(user("a"), asked, result("c2", "c1"), user("b"))
    assert [block.get("tool_use_id", block.get("text")) for block in messages[2]["content"]] == ["c1", "c2", "b"]


async def test_a_result_says_whether_it_is_an_error_and_never_says_nothing_then() -> None:
    asked = answer(ToolCall("c1", "f", "{}"), ToolCall("c2", "f", "{}"), ToolCall("c3", "f", "{}"))
    results = (
        ToolResult("c1", "f", (), "ok"),
        ToolResult("c2", "f", (TextPart(" "),), "denied"),
        ToolResult("c3", "f", (TextPart("no"),), "error"),
    )
    messages, _ = await wire(user("a"), asked, Message("tool", results))
    assert messages[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "c1"},
        {"type": "tool_result", "tool_use_id": "c2", "content": [text("denied")], "is_error": True},
        {"type": "tool_result", "tool_use_id": "c3", "content": [text("no")], "is_error": True},
    ]


async def test_ids_and_names_that_the_api_refuses_are_replaced_on_the_wire() -> None:
    messages, _ = await wire(
        user("a"),
        answer(ToolCall("call:1/x", "f", "{}")),
        result("call:1/x"),
        answer(ToolCall("call:1/x", "my.f", "{}")),
        result("call:1/x"),
    )
    ids = [block["id"] for message in messages for block in message["content"] if block["type"] == "tool_use"]
    assert ids == ["call_1_x", "call_1_x_2"]
    assert messages[4]["content"][0]["tool_use_id"] == "call_1_x_2"


# Forms of a conversation


async def test_messages_of_one_side_are_joined_and_blank_ones_left_out() -> None:
    messages, _ = await wire(user("a", " "), user("b"), answer("\n"), answer("c"), answer("d  "))
    assert messages == [
        {"role": "user", "content": [text("a"), text("b")]},
        {"role": "assistant", "content": [text("c"), text("d")]},
    ]


async def test_a_conversation_whose_beginning_was_trimmed_begins_with_the_user() -> None:
    messages, _ = await wire(answer("b"), user("c"))
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]


async def test_a_file_that_a_model_made_is_named_where_it_cannot_be_shown() -> None:
    messages, _ = await wire(user("a"), answer(FilePart("image/png", b"x", name="cat.png")), user("b"))
    assert messages[1]["content"] == [text("[file cat.png (image/png)]")]


async def test_what_is_said_for_one_call_is_the_last_thing_said() -> None:
    messages, _ = await wire(user("a"), answer("b"), user("c"), context=("d", " ", "e"))
    assert messages[-1] == {"role": "user", "content": [text("c"), text("d"), text("e")]}


async def test_another_model_may_answer_in_between_and_thinking_returns_to_its_owner() -> None:
    script = [says(thought("hm", "S"), text("a")), says(text("c"))]
    with messages_api(*script) as api:
        async with detour(api.url) as client:
            async with agent_on(api, client) as agent, agent.session() as session:
                await session.run("1")
                await session.run("2", model=ScriptedModel(["b"]))
                await session.run("3", settings=ModelSettings(max_tokens=50))
    assert api.refusals == []
    sent = api.bodies[1]["messages"]
    assert [message["content"] for message in sent if message["role"] == "assistant"] == [
        [thought("hm", "S"), text("a")],
        [text("b")],
    ]
