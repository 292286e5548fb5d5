"""What is sent to the Messages API, held against the official SDK's types by the server of the tests."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import attrs
import pytest

from agentx import (
    Agent,
    FilePart,
    Message,
    ModelContext,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    OutputFormat,
    RequestRejectedError,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    tool,
)
from agentx_model_anthropic import AnthropicModel
from peers.messages_api import Api, Body, call, detour, messages_api, says, text

ADD = ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
MUL = ToolSpec("mul", "", {"type": "object", "properties": {}})
HELLO = (Message("user", (TextPart("Hi"),)),)
OLD = "claude-haiku-4-5"


@pytest.fixture(autouse=True)
def requests_go_nowhere_but_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to Anthropic's address are allowed, because a detour takes them to a server on this machine."""
    monkeypatch.setenv("AGENTX_ALLOW_MODEL_REQUESTS", "1")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)


def ask(*parts: Any, **fields: Any) -> ModelRequest:
    settings = {name: fields.pop(name) for name in list(fields) if name in attrs.fields_dict(ModelSettings)}
    messages = (Message("user", parts),) if parts else HELLO
    return ModelRequest("anthropic/x", fields.pop("messages", messages), settings=ModelSettings(**settings), **fields)


async def nothing(delta: Any) -> None:
    pass


async def sent(request: ModelRequest, model: str = "claude-opus-5", *, own: bool = True, **settings: Any) -> Api:
    """Send a request; returns the server, which has the body and the headers of it.

    Args:
        own: the server is at Anthropic's address.
    """
    with messages_api(says(text("ok")), own=own) as api:
        async with detour(api.url) as client:
            where = {"client": client} if own else {"base_url": api.url}
            made = AnthropicModel(model, **{"api_key": "k", **where, **settings})
            await made.respond(request, nothing)
            await made.aclose()
        return api


async def body(request: ModelRequest, model: str = "claude-opus-5", **settings: Any) -> Body:
    return (await sent(request, model, **settings)).bodies[0]


async def refused(request: ModelRequest, model: str = "claude-opus-5", **settings: Any) -> str:
    """Return why a request is refused before anything is sent."""
    with messages_api(says(text("ok"))) as api:
        async with detour(api.url) as client:
            with pytest.raises(RequestRejectedError) as caught:
                await AnthropicModel(model, **{"api_key": "k", "client": client, **settings}).respond(request, nothing)
        assert api.bodies == []
        return str(caught.value)


# Settings


async def test_a_plain_request_holds_what_it_must_and_no_more() -> None:
    api = await sent(ask())
    mark = {"type": "ephemeral"}
    said = {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": mark}]}
    assert api.bodies == [{"model": "claude-opus-5", "max_tokens": 128_000, "messages": [said], "stream": True}]
    assert api.headers[0]["anthropic-version"] == "2026-10-21"
    assert api.headers[0]["x-api-key"] == "k"
    assert "anthropic-beta" not in api.headers[0]


async def test_settings_are_said_in_the_words_of_the_dialect() -> None:
    asked = ask(max_tokens=99, stop=("END",), service_tier="standard_only", extra={"metadata": {"user_id": "u"}})
    found = await body(asked)
    assert (found["max_tokens"], found["stop_sequences"], found["service_tier"]) == (99, ["END"], "standard_only")
    assert found["metadata"] == {"user_id": "u"}


async def test_a_temperature_is_said_in_the_version_of_the_api_that_still_has_it() -> None:
    api = await sent(ask(temperature=0.5, top_p=0.9), OLD)
    assert (api.bodies[0]["temperature"], api.bodies[0]["top_p"]) == (0.5, 0.9)
    assert api.headers[0]["anthropic-version"] == "2023-06-01"
    api = await sent(ask(extra={"top_k": 5}), OLD)
    assert api.headers[0]["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize("model", ["claude-opus-5", "claude-sonnet-5-5", "claude-opus-4-7", "claude-opus-9"])
async def test_a_temperature_is_refused_for_models_that_take_none(model: str) -> None:
    assert "cannot do temperature" in await refused(ask(temperature=0.5), model)


async def test_a_fixed_version_is_sent_and_refuses_what_it_does_not_have() -> None:
    api = await sent(ask(), OLD, version="2023-06-01")
    assert api.headers[0]["anthropic-version"] == "2023-06-01"
    assert "cannot do temperature" in await refused(ask(temperature=0.5), OLD, version="2026-10-21")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"seed": 1}, "cannot do seed"),
        ({"stop": ("",)}, "no stop text that is empty"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"tool_choice": "required"}, "no tools"),
        ({"reasoning_effort": "enormous"}, "knows the efforts none, low"),
        ({"temperature": float("nan")}, "temperature is nan"),
    ],
)
async def test_what_cannot_be_said_is_refused_before_anything_is_sent(settings: dict[str, Any], why: str) -> None:
    assert why in await refused(ask(**settings), OLD)


async def test_a_request_that_says_nothing_is_refused() -> None:
    assert "are empty" in await refused(ask(TextPart("  ")))


async def test_another_server_gets_the_old_version_and_a_temperature_for_any_model() -> None:
    api = await sent(ask(temperature=0), "some-model", own=False, api_key=None)
    assert api.headers[0]["anthropic-version"] == "2023-06-01"
    assert "x-api-key" not in api.headers[0]
    assert (api.bodies[0]["temperature"], api.bodies[0]["max_tokens"]) == (0, 8192)


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
async def test_a_base_url_may_end_with_the_version_or_not(path: str) -> None:
    with messages_api(says(text("ok"))) as api:
        model = AnthropicModel("m", base_url=f"{api.url}{path}")
        assert (await model.respond(ask(), nothing)).text == "ok"
        await model.aclose()


async def test_the_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with messages_api(says(text("ok"))) as api:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        model = AnthropicModel("m")
        assert (await model.respond(ask(), nothing)).text == "ok"
        await model.aclose()


async def test_betas_of_the_settings_and_of_a_request_are_one_header() -> None:
    api = await sent(ask(extra={"betas": ["b-2", "b-1"]}), betas=("b-1",), headers={"anthropic-beta": "b-0"})
    assert api.headers[0]["anthropic-beta"] == "b-0,b-1,b-2"


async def test_headers_of_the_user_are_sent_over_the_own() -> None:
    api = await sent(ask(), headers={"X-Api-Key": "other", "X-Trace": "1"})
    assert (api.headers[0]["x-api-key"], api.headers[0]["x-trace"]) == ("other", "1")


async def test_inner_fields_of_extra_are_joined_with_ours() -> None:
    found = await body(ask(reasoning_effort="low", extra={"output_config": {"effort": "max"}, "speed": "standard"}))
    assert (found["output_config"], found["speed"]) == ({"effort": "max"}, "standard")


# Thinking


@pytest.mark.parametrize("effort", ["low", "medium", "high", "xhigh", "max"])
async def test_newer_models_are_told_an_effort(effort: str) -> None:
    found = await body(ask(reasoning_effort=effort))
    assert (found["thinking"], found["output_config"]) == ({"type": "adaptive"}, {"effort": effort})


async def test_older_models_are_told_a_number_of_tokens() -> None:
    found = await body(ask(reasoning_effort="high"), OLD)
    assert found["thinking"] == {"type": "enabled", "budget_tokens": 24_576}
    assert "output_config" not in found
    found = await body(ask(reasoning_effort="high", max_tokens=4000), OLD)
    assert found["thinking"]["budget_tokens"] == 4000 - 1024
    assert (await body(ask(reasoning_effort="max"), "claude-opus-4-5"))["output_config"] == {"effort": "high"}


async def test_thinking_that_cannot_be_is_refused() -> None:
    assert "max_tokens of at least 2048" in await refused(ask(reasoning_effort="low", max_tokens=2000), OLD)
    forced = ask(reasoning_effort="low", tool_choice="required", tools=(ADD,))
    assert "leave out tool_choice or reasoning_effort" in await refused(forced, OLD)
    assert "always thinks" in await refused(ask(reasoning_effort="none"), "claude-opus-5-5")
    assert "does not reason" in await refused(ask(reasoning_effort="low"), "claude-3-5-haiku-latest")


async def test_thinking_is_turned_off_in_the_way_of_the_model() -> None:
    assert (await body(ask(reasoning_effort="none")))["thinking"] == {"type": "disabled"}
    assert (await body(ask(reasoning_effort="none"), "claude-sonnet-5-5"))["thinking"] == {"type": "between_tools"}


async def test_what_is_shown_of_the_thinking_is_a_setting() -> None:
    shown = {"thinking_display": "summarized"}
    assert (await body(ask(), **shown))["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert (await body(ask(reasoning_effort="low"), OLD, **shown))["thinking"]["display"] == "summarized"
    assert "thinking" not in await body(ask(), OLD, **shown)


async def test_models_that_bind_thinking_are_asked_to_leave_out_what_no_longer_fits() -> None:
    api = await sent(ask(), "claude-opus-5-5")
    assert api.bodies[0]["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    assert api.headers[0]["anthropic-beta"] == "thinking-binding-controls-2026-08-01"
    assert "thinking" not in await body(ask(), "claude-opus-5-5", thinking_mismatch="error")
    assert "thinking" not in await body(ask(), "claude-opus-5-5", own=False)


async def test_how_an_unknown_model_thinks_is_a_setting() -> None:
    found = await body(ask(reasoning_effort="low"), "m", own=False, thinking="adaptive")
    assert (found["thinking"], found["output_config"]) == ({"type": "adaptive"}, {"effort": "low"})
    found = await body(ask(reasoning_effort="low"), "m", own=False)
    assert found["thinking"] == {"type": "enabled", "budget_tokens": 2048}


# Tools


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": "mul"}, {"type": "tool", "name": "mul"}),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"parallel_tool_calls": True}, {"type": "auto", "disable_parallel_tool_use": False}),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            {"type": "any", "disable_parallel_tool_use": True},
        ),
    ],
)
async def test_tool_choice_is_said_in_the_words_of_the_dialect(settings: dict[str, Any], said: Any) -> None:
    found = await body(ask(tools=(ADD, MUL), **settings), cache="off")
    assert found.get("tool_choice") == said
    assert found["tools"] == [
        {"name": "add", "description": "Add two numbers.", "input_schema": ADD.schema},
        {"name": "mul", "input_schema": MUL.schema},
    ]


@pytest.mark.parametrize("model", ["claude-opus-5-5", "claude-sonnet-5-5", "claude-fable-5-1"])
async def test_models_that_cannot_be_made_to_call_a_tool_are_not_asked_to(model: str) -> None:
    forced = ask(tools=(ADD,), tool_choice="required")
    assert "cannot be made to call a tool" in await refused(forced, model)


async def test_without_tools_nothing_is_said_of_them() -> None:
    found = await body(ask(tool_choice="none", parallel_tool_calls=False))
    assert "tools" not in found
    assert "tool_choice" not in found


SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}


async def test_tools_of_the_server_stand_behind_those_of_the_agent() -> None:
    found = await body(ask(tools=(ADD,)), server_tools=(SEARCH,), cache="off")
    assert [one["name"] for one in found["tools"]] == ["add", "web_search"]
    found = await body(ask(extra={"tools": [SEARCH]}, parallel_tool_calls=False), cache="off")
    assert found["tools"] == [SEARCH]
    assert found["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


async def test_a_history_with_calls_needs_tools_even_where_none_may_run() -> None:
    """Such as the last answer at a limit."""
    asked = Message("assistant", (TextPart("I add."), *_calls("add")))
    result = Message("tool", (ToolResult("c-add", "add", (TextPart("3"),)),))
    found = await body(ask(messages=(*HELLO, asked, result)), cache="off")
    assert [one["name"] for one in found["tools"]] == ["add"]
    assert found["tool_choice"] == {"type": "none"}


def _calls(*names: str) -> list[Any]:
    return [ToolCall(f"c-{name}", name, "{}") for name in names]


# Files

PNG = FilePart("image/png", b"\x89PNG")


def based(kind: str, data: bytes) -> Body:
    return {"type": "base64", "media_type": kind, "data": b64encode(data).decode()}


def plain(data: str) -> Body:
    return {"type": "text", "media_type": "text/plain", "data": data}


URL = {"type": "url", "url": "https://a.example/x"}
PDF = FilePart("application/pdf", b"%PDF", name="a.pdf")
FILES = [
    (PNG, {"type": "image", "source": based("image/png", b"\x89PNG")}),
    (FilePart("image/jpg", b"x"), {"type": "image", "source": based("image/jpeg", b"x")}),
    (FilePart("image/gif", url=URL["url"]), {"type": "image", "source": URL}),
    (FilePart("image/png", file_id="f1"), {"type": "image", "source": {"type": "file", "file_id": "f1"}}),
    (PDF, {"type": "document", "title": "a.pdf", "source": based("application/pdf", b"%PDF")}),
    (FilePart("application/pdf", url=URL["url"]), {"type": "document", "source": URL}),
    (FilePart("text/csv", b"a,b"), {"type": "document", "source": plain("a,b")}),
    (FilePart("application/json; charset=utf-8", b"{}"), {"type": "document", "source": plain("{}")}),
    (FilePart("text/plain", file_id="f2"), {"type": "document", "source": {"type": "file", "file_id": "f2"}}),
]


@pytest.mark.parametrize(("part", "block"), FILES)
async def test_files_are_sent_by_bytes_by_url_and_by_id(part: FilePart, block: Body) -> None:
    api = await sent(ask(TextPart("Look"), part), cache="off")
    assert api.bodies[0]["messages"][0]["content"] == [{"type": "text", "text": "Look"}, block]
    assert ("anthropic-beta" in api.headers[0]) is (part.file_id is not None)


@pytest.mark.parametrize(("part", "block"), FILES)
async def test_results_of_tools_hold_files_too(part: FilePart, block: Body) -> None:
    asked = Message("assistant", tuple(_calls("look")))
    result = Message("tool", (ToolResult("c-look", "look", (TextPart("here"), part)),))
    look = ToolSpec("look", "", {"type": "object"})
    found = await body(ask(messages=(*HELLO, asked, result), tools=(look,)), cache="off")
    content = [{"type": "text", "text": "here"}, block]
    assert found["messages"][-1]["content"] == [{"type": "tool_result", "tool_use_id": "c-look", "content": content}]


@pytest.mark.parametrize(
    "part",
    [
        FilePart("audio/wav", b"x"),
        FilePart("video/mp4", file_id="f"),
        FilePart("image/svg+xml", b"<svg/>"),
        FilePart("application/zip", b"x"),
        FilePart("text/csv", url="https://a.example/x"),
        FilePart("image/png", file_id="f", provider="openai"),
    ],
)
async def test_a_file_that_cannot_be_read_is_refused(part: FilePart) -> None:
    assert part.media_type in await refused(ask(TextPart("Look"), part))


async def test_documents_are_cited_where_that_is_set() -> None:
    found = await body(ask(FilePart("text/plain", b"x"), PNG), citations=True)
    assert found["messages"][0]["content"][0]["citations"] == {"enabled": True}
    assert "citations" not in found["messages"][0]["content"][1]


# Structured output

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "description": "east"}, "tag": {"type": ["string", "null"]}},
    "required": ["x", "tag"],
    "additionalProperties": False,
}


async def test_a_schema_is_enforced_and_what_is_not_checked_is_said() -> None:
    found = await body(ask(output=OutputFormat("point", POINT)))
    schema = found["output_config"]["format"]["schema"]
    assert schema["properties"]["x"] == {"type": "integer", "description": "east (minimum: 0)"}
    assert POINT["properties"]["x"]["minimum"] == 0  # type: ignore[index]  # the caller's is left alone
    both = await body(ask(output=OutputFormat("point", POINT), reasoning_effort="low"))
    assert set(both["output_config"]) == {"effort", "format"}


TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "required": ["root"],
    "additionalProperties": False,
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
            "required": ["next"],
            "additionalProperties": False,
        }
    },
}
MANY = {**POINT, "properties": {f"p{n}": {"type": ["string", "null"]} for n in range(17)}}


@pytest.mark.parametrize(
    "output",
    [OutputFormat("tree", TREE), OutputFormat("many", MANY), OutputFormat("free", {"type": "object"}, strict=False)],
)
async def test_a_schema_that_cannot_be_enforced_is_told_at_the_end(output: OutputFormat) -> None:
    found = await body(ask(output=output))
    assert "output_config" not in found
    assert "fits this JSON Schema" in found["messages"][-1]["content"][-1]["text"]
    assert "cache_control" not in found["messages"][-1]["content"][-1]


async def test_models_that_cannot_be_held_to_a_schema_say_so() -> None:
    assert AnthropicModel("claude-3-5-haiku-latest").capabilities.json_schema is False
    assert AnthropicModel("claude-haiku-4-5").capabilities.json_schema is True
    assert AnthropicModel("m").capabilities.json_schema is None
    assert AnthropicModel("m", json_schema=True, tools=True).capabilities.json_schema is True
    asked = ask(output=OutputFormat("p", POINT))
    assert "cannot be held to a JSON Schema" in await refused(asked, "claude-3-5-haiku-latest")


# The cache of prompts


def marks(found: Body) -> list[str]:
    """Where a body is marked."""
    places = [("tools", found.get("tools", [])), ("system", found.get("system", []))]
    places += [(f"messages.{at}", message["content"]) for at, message in enumerate(found["messages"])]
    return [f"{name}.{at}" for name, blocks in places for at, block in enumerate(blocks) if "cache_control" in block]


class NextCall:
    """Adds something to each model call that is gone with it."""

    async def model(self, ctx: ModelContext, call_next: Any) -> ModelResponse:
        ctx.add_context(f"It is call {ctx.call_index}.")
        return await call_next()  # type: ignore[no-any-return]


async def test_what_stays_the_same_is_marked_and_the_rest_is_behind() -> None:
    """The request before ended where this one is marked for the second time: there it is read from."""

    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    calls = [says(call(f"c{n}", "add", a=n, b=2), stop="tool_use") for n in (1, 2)]
    with messages_api(*calls, says(text("7"))) as api:
        model = AnthropicModel("m", base_url=api.url)
        agent = Agent(model, instructions="Be brief.", tools=[add], autoload="none", config=False)
        agent.use(model=NextCall().model)
        assert (await agent.run("1 + 2 + 4?")).text == "7"
    first, second, third = api.bodies
    assert marks(first) == ["tools.0", "system.0", "messages.0.0"]
    assert marks(second) == ["tools.0", "system.0", "messages.0.0", "messages.2.0"]
    assert marks(third) == ["tools.0", "system.0", "messages.2.0", "messages.4.0"]
    assert [one["messages"][-1]["content"][-1]["text"] for one in api.bodies] == [f"It is call {n}." for n in range(3)]
    for earlier, later in ((first, second), (second, third)):
        stable = _unmarked(earlier)
        stable["messages"][-1]["content"].pop()
        again = _unmarked(later)
        assert (again["tools"], again["system"]) == (stable["tools"], stable["system"])
        assert again["messages"][: len(stable["messages"])] == stable["messages"]


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unmarked(item) for name, item in value.items() if name != "cache_control"}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value


async def test_the_cache_may_last_an_hour_or_not_be_used() -> None:
    found = await body(ask(instructions="x"), cache="1h")
    assert found["system"] == [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    assert marks(await body(ask(instructions="x", tools=(ADD,)), cache="off")) == []


async def test_marks_of_the_user_count() -> None:
    raw = {"input_schema": {"type": "object"}}
    marked = [{**raw, "name": f"t{n}", "cache_control": {"type": "ephemeral"}} for n in range(3)]
    found = await body(ask(instructions="x", tools=(ADD,), extra={"tools": [*marked, {**raw, "name": "last"}]}))
    assert len(marks(found)) == 4


async def test_tokens_read_from_the_cache_and_written_to_it_are_counted() -> None:
    used = {"input_tokens": 3, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 5}
    with messages_api(says(text("ok"), usage=used)) as api:
        agent = Agent(AnthropicModel("m", base_url=api.url), autoload="none", config=False)
        usage = (await agent.run("Hi")).usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (3, 40, 5)
    assert usage.total_tokens == 3 + 40 + 5 + 5
