"""agentx-model-cache in an agent: which answers are given again, to whom, and what is seen of it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import anyio
import attrs
import pytest

from agentx import (
    Agent,
    CallNext,
    ConfigError,
    FilePart,
    Message,
    ModelContext,
    ModelResponse,
    ModelSettings,
    OverloadedError,
    Plugin,
    StreamCutError,
    TextDeltaEvent,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    Usage,
    tool,
)
from agentx.builtin.retry import Retry
from agentx.testing import Cut, FakeClock, FaultyModel, FunctionModel, ScriptedModel, call, check_history
from agentx_guard_budget import Budget
from agentx_model_cache import Cache
from agentx_model_fallback import Fallback
from agentx_pytest import PluginConformance
from agentx_redact_pii import RedactPii

FIXED = ModelSettings(temperature=0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "answers.sqlite"


def model(*script: Any, **options: Any) -> ScriptedModel:
    return ScriptedModel(list(script), **{"name": "acme/model", **options})


def new_agent(first: Any, *plugins: Any, tools: Sequence[Any] = (), **options: Any) -> Agent[Any, Any]:
    options = {"config": False, "autoload": "none", "settings": FIXED, **options}
    return Agent(first, tools=tools, plugins=plugins, **options)


async def texts(agent: Agent[Any, Any], *inputs: str, **session: Any) -> list[str]:
    """Return the answers of turns that each have a session of their own."""
    found = []
    async with agent:
        for text in inputs:
            async with agent.session(**session) as one:
                found.append((await one.run(text)).text)
    return found


def stored_in(path: Path) -> bytes:
    """Return everything that is in the files of the cache."""
    return b"".join([file.read_bytes() for file in path.parent.iterdir()]) if path.parent.exists() else b""


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@tool
async def look(word: str) -> str:
    """Look a word up."""
    return f"{word} is a tree"


# What is given again


async def test_an_equal_request_has_the_answer_without_the_model(path: Path) -> None:
    asked = model("one")
    assert await texts(new_agent(asked, Cache(path=path)), "hi", "hi") == ["one", "one"]
    assert len(asked.requests) == 1


async def test_answers_outlive_the_agent(path: Path) -> None:
    assert await texts(new_agent(model("one"), Cache(path=path)), "hi") == ["one"]
    assert await texts(new_agent(model(), Cache(path=path)), "hi") == ["one"]


async def test_answers_outlive_the_process(path: Path) -> None:
    code = (
        "import sys\nfrom agentx import Agent, ModelSettings\nfrom agentx.testing import ScriptedModel\n"
        "from agentx_model_cache import Cache\nfrom pathlib import Path\n"
        "agent = Agent(ScriptedModel(sys.argv[2:], name='acme/model'), plugins=[Cache(path=Path(sys.argv[1]))],"
        " config=False, autoload='none', settings=ModelSettings(temperature=0.0))\n"
        "print(agent.run_sync('hi').text)"
    )
    said = [
        await anyio.run_process([sys.executable, "-c", code, str(path), *script]) for script in (["one"], ["two"], [])
    ]
    assert [one.stdout.decode().strip() for one in said] == ["one"] * 3


@pytest.mark.parametrize(
    "change",
    [
        {"instructions": "Be brief."},
        {"tools": [look]},
        {"settings": ModelSettings(temperature=0.0, max_tokens=9)},
        {"settings": ModelSettings(temperature=0.0, extra={"a": 1})},
        {"settings": ModelSettings(seed=1)},
        {"output": dict[str, int]},
        {"name": "other/model"},
        {"prompt": "hi!"},
        {"context": "it rains"},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_whatever_changes_the_answer_changes_the_key(path: Path, change: dict[str, Any]) -> None:
    class Adds(Plugin):
        id: ClassVar[str] = "memory.rain"

        async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
            ctx.add_context(change["context"])
            return await call_next()

    plugins = [Cache(path=path), *([Adds()] if "context" in change else [])]
    options = {name: value for name, value in change.items() if name in ("instructions", "tools", "settings", "output")}
    asked = model('{"a": 1}', name=change.get("name", "acme/model"))
    assert await texts(new_agent(model("one"), Cache(path=path)), "hi") == ["one"]
    assert await texts(new_agent(asked, *plugins, **options), change.get("prompt", "hi")) == ['{"a": 1}']


async def test_the_time_that_a_call_may_take_does_not(path: Path) -> None:
    assert await texts(new_agent(model("one"), Cache(path=path)), "hi") == ["one"]
    settings = attrs.evolve(FIXED, timeout=9.0)
    assert await texts(new_agent(model(), Cache(path=path), settings=settings), "hi") == ["one"]


class Served(ScriptedModel):
    endpoint = "http://127.0.0.1:1/v1"


async def test_models_of_one_name_on_two_servers_are_two(path: Path) -> None:
    assert await texts(new_agent(Served(["one"], name="acme/model"), Cache(path=path)), "hi") == ["one"]
    other = Served(["two"], name="acme/model")
    other.endpoint = "http://127.0.0.1:2/v1"
    assert await texts(new_agent(other, Cache(path=path)), "hi") == ["two"]


async def test_a_turn_with_tools_is_given_again_whole(path: Path) -> None:
    first = model(call("look", word="oak"), "A tree.")
    assert await texts(new_agent(first, Cache(path=path), tools=[look]), "oak?") == ["A tree."]
    assert await texts(new_agent(model(), Cache(path=path), tools=[look]), "oak?") == ["A tree."]


async def test_calls_of_a_kept_answer_get_new_ids_where_theirs_are_taken(path: Path) -> None:
    asks = ModelResponse((ToolCall("c1", "look", '{"word": "elm"}'),), "tool_use", Usage(1, 1))

    def seeded(call_id: str) -> list[Message]:
        asked = Message("assistant", (ToolCall(call_id, "look", '{"word": "oak"}'),))
        answered = Message("tool", (ToolResult(call_id, "look", (TextPart("a tree"),)),))
        return [Message("user", (TextPart("oak?"),)), asked, answered, Message("assistant", (TextPart("A tree."),))]

    async with new_agent(model(asks, "An elm."), Cache(path=path), tools=[look]) as agent:
        async with agent.session(history=seeded("other")) as session:
            await session.run("elm?")
    async with new_agent(model(), Cache(path=path), tools=[look]) as agent:
        async with agent.session(history=seeded("c1")) as session:
            result = await session.run("elm?")
            check_history(session.history)
            ids = [call.id for message in session.history for call in message.tool_calls]
    assert (result.text, ids) == ("An elm.", ["c1", "c1_2"])


async def test_signed_thinking_is_given_again_as_it_was(path: Path) -> None:
    parts = (ThinkingPart("hm", "S1", {"x": 1}, "acme"), TextPart("one", {"cites": [1]}, "acme"))
    answer = ModelResponse(parts, "end_turn", Usage(1, 1), model="acme/model", id="r1")
    await texts(new_agent(model(answer), Cache(path=path)), "hi")
    result = await new_agent(model(), Cache(path=path)).run("hi")
    assert result.messages[-1].parts == parts


async def test_a_streamed_answer_is_shown_when_it_is_given_again(path: Path) -> None:
    agent = new_agent(model("Hello you there"), Cache(path=path))
    shown: list[str] = []
    async with agent:
        for _ in range(2):
            async with agent.session() as session, session.stream("hi") as stream:
                async for event in stream:
                    if isinstance(event, TextDeltaEvent):
                        shown.append(event.text)
    assert shown == ["Hell", "o yo", "u th", "ere", "Hello you there"]


async def test_a_hit_costs_nothing_and_says_what_it_saved(path: Path) -> None:
    await texts(new_agent(model("one", usage=Usage(20, 5)), Cache(path=path), FakeClock()), "hi")
    clock = FakeClock()
    agent = new_agent(model(), Cache(path=path), clock, Budget(unknown_price="allow"))
    hits: list[dict[str, Any]] = []
    async with agent, agent.session() as session:
        clock.advance(90)
        session.on("plugin.model.cache.hit", lambda event: hits.append(dict(event.data)))
        result = await session.run("hi")
        assert [event.kind for event in session.events if event.kind == "model.attempt"] == []
    assert (result.usage.total_tokens, result.usage.requests, result.cost) == (0, 0, 0)
    (hit,) = hits
    assert (hit["model"], hit["age"], len(hit["key"])) == ("acme/model", 90.0, 16)
    assert (hit["saved"]["input_tokens"], hit["saved"]["output_tokens"]) == (20, 5)


# What is not


@pytest.mark.parametrize("settings", [ModelSettings(), ModelSettings(temperature=0.1), ModelSettings(top_p=0.1)])
async def test_a_model_that_may_answer_differently_is_asked_each_time(path: Path, settings: ModelSettings) -> None:
    agent = new_agent(model("one", "two"), Cache(path=path), settings=settings)
    assert await texts(agent, "hi", "hi") == ["one", "two"]
    assert stored_in(path) == b""


async def test_unless_the_user_wants_it(path: Path) -> None:
    agent = new_agent(model("one"), Cache(path=path, always=True), settings=ModelSettings(temperature=1.0))
    assert await texts(agent, "hi", "hi") == ["one", "one"]


@pytest.mark.parametrize("settings", [ModelSettings(temperature=0), ModelSettings(temperature=1.0, seed=0)])
async def test_a_temperature_of_zero_or_a_seed_is_enough(path: Path, settings: ModelSettings) -> None:
    assert await texts(new_agent(model("one"), Cache(path=path), settings=settings), "hi", "hi") == ["one", "one"]


@pytest.mark.parametrize("error", [OverloadedError("busy"), StreamCutError("cut")])
async def test_an_error_is_not_kept(path: Path, error: Exception) -> None:
    agent = new_agent(model(error, "two"), Cache(path=path))
    with pytest.raises(type(error)):
        await agent.run("hi")
    assert await texts(agent, "hi") == ["two"]


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "content_filter", "pause_turn", "context_window", "odd"])
async def test_an_answer_that_is_cut_or_refused_is_not_kept(path: Path, reason: str) -> None:
    asked = model(ModelResponse((TextPart("no"),), reason, Usage(1, 1)), "two", "three")
    agent = new_agent(asked, Cache(path=path))
    async with agent:
        await agent.run("hi")
        count = len(asked.requests)
        assert (await agent.run("hi")).text in ("two", "three")
    assert len(asked.requests) == count + 1


@pytest.mark.parametrize("text", ["", " \n"])
async def test_an_empty_answer_is_not_kept(path: Path, text: str) -> None:
    asked = model(ModelResponse((TextPart(text),), "end_turn", Usage(1, 0)), "two")
    assert await texts(new_agent(asked, Cache(path=path)), "hi", "hi") == [text, "two"]


async def test_what_a_url_leads_to_is_no_part_of_the_request(path: Path) -> None:
    agent = new_agent(model("one", "two"), Cache(path=path))
    async with agent:
        for expected in ("one", "two"):
            picture = FilePart("image/png", url="https://acme.example/now.png")
            assert (await agent.run([TextPart("what?"), picture])).text == expected


async def test_the_attempt_that_failed_is_not_kept_but_the_next_one_is(path: Path) -> None:
    first = FaultyModel(model("Hello dropped", "Hello you"), {1: Cut(1, StreamCutError)})
    agent = new_agent(first, Cache(path=path), Retry(), FakeClock())
    assert await texts(agent, "hi", "hi") == ["Hello you", "Hello you"]
    assert first.calls == 2


async def test_the_answer_of_a_stand_in_is_kept_as_its_own(path: Path) -> None:
    first = model(OverloadedError("busy"), OverloadedError("busy"), "back")
    stand_in = model("stand-in", name="acme/other")
    agent = new_agent(first, Fallback(models=[stand_in]), Cache(path=path))
    assert await texts(agent, "hi", "hi", "hi") == ["stand-in", "stand-in", "back"]
    assert len(stand_in.requests) == 1


class Shouts(Plugin):
    """Give every answer in capital letters."""

    id: ClassVar[str] = "memory.shouts"

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        response = await call_next()
        return attrs.evolve(response, parts=(TextPart(response.text.upper()),))


class Refuses(Plugin):
    """Refuse answers that have a word in them."""

    id: ClassVar[str] = "guard.words"
    phase: ClassVar[str | None] = "verify"

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        response = await call_next()
        if "bad" in response.text:
            ctx.stop("a bad word", status="refused")
        return response


async def test_an_answer_that_was_changed_on_its_way_out_is_not_kept(path: Path) -> None:
    assert await texts(new_agent(model("one", "two"), Shouts(), Cache(path=path)), "hi", "hi") == ["ONE", "TWO"]


async def test_an_answer_that_is_given_again_is_checked_again(path: Path) -> None:
    assert await texts(new_agent(model("a bad word"), Cache(path=path)), "hi") == ["a bad word"]
    result = await new_agent(model(), Refuses(), Cache(path=path)).run("hi")
    assert (result.status, result.by) == ("refused", "guard.words")


# Whose answers they are


async def users(agent: Agent[Any, Any], *turns: tuple[str | None, str]) -> list[str]:
    found = []
    async with agent:
        for user, text in turns:
            async with agent.session(user=user) as session:
                found.append((await session.run(text)).text)
    return found


async def test_all_users_share_answers_where_nothing_is_masked(path: Path) -> None:
    agent = new_agent(model("one"), Cache(path=path))
    assert await users(agent, ("ann", "hi"), ("bob", "hi"), (None, "hi")) == ["one"] * 3


@pytest.mark.parametrize(
    ("scope", "expected"), [("user", ["1", "2", "1", "3", "4"]), ("session", ["1", "2", "3", "4", "5"])]
)
async def test_answers_belong_to_a_user_or_a_session_where_that_is_asked(
    path: Path, scope: Any, expected: list[str]
) -> None:
    agent = new_agent(model("1", "2", "3", "4", "5"), Cache(path=path, scope=scope))
    turns = [("ann", "hi"), ("bob", "hi"), ("ann", "hi"), (None, "hi"), (None, "hi")]
    assert await users(agent, *turns) == expected


async def test_where_a_plugin_masks_answers_belong_to_a_user(path: Path) -> None:
    asked = model("Ann's [EMAIL_1] is fine.", "Bob's [EMAIL_1] is fine.", "Nobody's [EMAIL_1] is fine.")
    agent = new_agent(asked, RedactPii(), Cache(path=path))
    turns = [("ann", "Is ann@a.example ok?"), ("bob", "Is bob@b.example ok?"), ("ann", "Is me@c.example ok?")]
    expected = ["Ann's [EMAIL_1] is fine.", "Bob's [EMAIL_1] is fine.", "Ann's [EMAIL_1] is fine."]
    assert await users(agent, *turns, (None, "Is x@d.example ok?")) == [*expected, "Nobody's [EMAIL_1] is fine."]
    for secret in ("ann@a.example", "bob@b.example", "me@c.example", "x@d.example"):
        assert secret.encode() not in stored_in(path)


async def test_the_tools_of_an_answer_that_is_given_again_get_the_values_of_their_own_session(path: Path) -> None:
    sent: list[str] = []

    @tool
    async def mail(to: str) -> str:
        """Mail."""
        sent.append(to)
        return "sent"

    asked = model(call("mail", to="[EMAIL_1]"), "Done.")
    agent = new_agent(asked, RedactPii(), Cache(path=path), tools=[mail])
    turns = [("ann", "Mail first@a.example"), ("ann", "Mail second@a.example")]
    assert await users(agent, *turns) == ["Done.", "Done."]
    assert (sent, len(asked.requests)) == (["first@a.example", "second@a.example"], 2)


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_answer_in_which_something_was_masked_is_not_kept(path: Path, streamed: bool) -> None:
    said = "Write to eve@evil.example"
    asked = FunctionModel(lambda request: said, name="acme/model", delta_size=4 if streamed else 1000)
    agent = new_agent(asked, RedactPii(), Cache(path=path))
    turns = [("ann", "Whom?"), ("ann", "Whom?")]
    assert await users(agent, *turns) == ["Write to [EMAIL_1]"] * 2
    assert len(asked.requests) == 2


async def test_arguments_in_which_something_was_masked_are_not_kept(path: Path) -> None:
    asked = model(call("look", word="eve@evil.example"), "Done.")
    await users(new_agent(asked, RedactPii(), Cache(path=path), tools=[look]), ("ann", "Go"))
    assert b"eve@evil.example" not in stored_in(path)
    assert b'"name":"look"' not in stored_in(path)
    with pytest.raises(AssertionError, match="the script"):
        await users(new_agent(model(), RedactPii(), Cache(path=path), tools=[look]), ("ann", "Go"))


class Restore(Plugin):
    """Mask a name of the session in requests, and put it back into what the model says."""

    id: ClassVar[str] = "redact.name"

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        name = ctx.user or ""
        masked = [
            Message(message.role, tuple([TextPart(part.text.replace(name, "NAME")) for part in message.parts]))  # type: ignore[attr-defined]
            for message in ctx.request.messages
        ]
        ctx.request = attrs.evolve(ctx.request, messages=masked)

        class Unmask:
            def feed(self, delta: Any) -> Any:
                return [attrs.evolve(delta, text=delta.text.replace("NAME", name))]

            def finish(self) -> Any:
                return []

        ctx.transform_deltas(Unmask)
        return await call_next()


@pytest.mark.parametrize("scope", ["auto", "all"])
async def test_a_name_that_a_plugin_puts_back_into_an_answer_reaches_nobody_else(path: Path, scope: Any) -> None:
    asked = FunctionModel(lambda request: "Hello NAME!", name="acme/model", delta_size=100)
    agent = new_agent(asked, Restore(), Cache(path=path, scope=scope))
    assert await users(agent, ("ann", "I am ann"), ("bob", "I am bob")) == ["Hello ann!", "Hello bob!"]


# Time and size


async def test_an_answer_counts_for_its_time(path: Path) -> None:
    clock = FakeClock()
    agent = new_agent(model("one", "two"), Cache(path=path, ttl=60), clock)
    async with agent:
        for expected, seconds in (("one", 59), ("one", 2), ("two", 0)):
            assert (await agent.run("hi")).text == expected
            clock.advance(seconds)


async def test_what_was_not_used_for_the_longest_time_goes_first(path: Path) -> None:
    clock = FakeClock()
    long = "x" * 3000
    agent = new_agent(FunctionModel(lambda r: r.messages[-1].text + long), Cache(path=path, max_megabytes=0.009), clock)
    async with agent:
        for text in ("a", "b", "a", "c", "a"):
            clock.advance(100)
            await agent.run(text)
    with sqlite3.connect(path) as connection:
        bodies = [row[0] for row in connection.execute("SELECT body FROM entries ORDER BY used")]
    connection.close()
    assert [body.decode().partition('"text":"')[2][0] for body in bodies] == ["c", "a"]


async def test_an_answer_that_is_larger_than_all_may_be_is_not_kept(path: Path) -> None:
    asked = FunctionModel(lambda request: "x" * 3000)
    await texts(new_agent(asked, Cache(path=path, max_megabytes=0.001)), "hi", "hi")
    assert len(asked.requests) == 2


# Damage


def damage(path: Path, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


@pytest.mark.parametrize("wrong", ["digest", "json", "shape"])
async def test_a_damaged_entry_is_a_miss_with_a_warning(path: Path, wrong: str, caplog: Any) -> None:
    import hashlib

    await texts(new_agent(model("one"), Cache(path=path)), "hi")
    body = {"digest": b"x", "json": b"{", "shape": b'{"parts": 7}'}[wrong]
    digest = b"no" if wrong == "digest" else hashlib.sha256(body).digest()
    damage(path, "UPDATE entries SET body = ?, digest = ?", body, digest)
    asked = model("two")
    problems: list[str] = []
    async with new_agent(asked, Cache(path=path)) as agent:
        async with agent.session() as session:
            session.on("plugin.model.cache.problem", lambda event: problems.append(event.data["problem"]))
            assert (await session.run("hi")).text == "two"
        assert (await agent.run("hi")).text == "two"
    (problem,) = problems
    assert "removed" in problem
    assert f"model.cache: {problem}" in caplog.text


async def test_a_file_that_is_no_database_is_no_cache(path: Path, caplog: Any) -> None:
    write(path, b"this is not SQLite" * 1000)
    agent = new_agent(model("one", "two"), Cache(path=path))
    assert await texts(agent, "hi", "hi") == ["one", "two"]
    assert f"{path} cannot be used" in caplog.text
    assert "delete it, or set another path" in caplog.text


async def test_only_its_owner_may_read_the_file(path: Path) -> None:
    await texts(new_agent(model("one"), Cache(path=path)), "hi")
    assert (mode_of(path), mode_of(path.parent)) == (0o600, 0o700)


def test_several_processes_write_one_file(path: Path) -> None:
    code = (
        "import sys, anyio\nfrom agentx import Agent, ModelSettings\nfrom agentx.testing import EchoModel\n"
        "from agentx_model_cache import Cache\nfrom pathlib import Path\n"
        "async def main():\n"
        "    agent = Agent(EchoModel(), plugins=[Cache(path=Path(sys.argv[1]))], config=False, autoload='none',"
        " settings=ModelSettings(temperature=0.0))\n"
        "    async with agent:\n"
        "        for n in range(40):\n"
        "            assert (await agent.run(f'{n} {sys.argv[2]}')).text == f'{n} {sys.argv[2]}'\n"
        "            assert (await agent.run(f'{n}')).text == f'{n}'\n"
        "anyio.run(main)\n"
    )
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(path), name], env=environment, stderr=subprocess.PIPE)
        for name in ("a", "b", "c")
    ]
    errors = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], errors
    assert all(b"cannot be used" not in error for _, error in errors)
    connection = sqlite3.connect(path)
    (count,) = connection.execute("SELECT count(*) FROM entries").fetchone()
    connection.close()
    assert count == 4 * 40


async def test_twenty_sessions_at_once_use_one_file(path: Path) -> None:
    asked = FunctionModel(lambda request: request.messages[-1].text, delay=0.001)
    agent = new_agent(asked, Cache(path=path))
    found: list[str] = []

    async def ask(text: str) -> None:
        found.append((await agent.run(text)).text)

    async with agent:
        for _ in range(2):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(ask, str(number))
    assert sorted(found) == sorted([str(number) for number in range(20)] * 2)
    assert len(asked.requests) == 20


# Configuration


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ttl": 0}, "ttl is a number above 0, not 0"),
        ({"max_megabytes": -1}, "max_megabytes is a number above 0, not -1"),
        ({"scope": "team"}, "scope is one of auto, all, user, session, not 'team'"),
    ],
)
def test_a_wrong_field_is_an_error_that_names_it(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Cache(**fields)


async def test_everything_can_be_set_in_a_file(tmp_path: Path, path: Path) -> None:
    file = tmp_path / "agentx.toml"
    file.write_text(
        f'[plugins.model.cache]\nalways = true\nscope = "user"\nttl = 60\nmax_megabytes = 1\npath = "{path}"\n'
    )
    agent = Agent(model("one"), plugins=[Cache()], config=file, autoload="none")
    assert await users(agent, ("ann", "hi"), ("ann", "hi")) == ["one", "one"]


class TestCache(PluginConformance):
    short_circuits = ("model",)

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "answers.sqlite"

    def plugin(self) -> Cache:
        return Cache(always=True, path=self.path)
