"""SQLiteStore: sessions that outlive their process, in one file."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from agentx import (
    Agent,
    AgentxError,
    Approve,
    Limit,
    Plugin,
    SessionConflictError,
    TurnAborted,
    TurnContext,
    kind_of,
    reduced,
    tool,
)
from agentx.stores import SQLiteStore, export_session, import_session
from agentx.testing import ScriptedModel, call, check_history


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


ANSWERS: list[Any] = [[call("add", a=1, b=2)], "three"]


def agent_of(store: Any, *answers: Any, tools: Any = (add,)) -> Agent[Any, Any]:
    return Agent(ScriptedModel(list(answers)), tools=list(tools), store=store, config=False, autoload="none")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest.mark.parametrize("durability", ["step", "turn"])
async def test_a_session_goes_on_in_another_process(file: Path, durability: Any) -> None:
    async with agent_of(SQLiteStore(file, durability=durability), *ANSWERS).session("s", user="ann") as session:
        await session.run("1 + 2?")
        before, usage = list(session.history), session.usage
        events = list(session.events)
    async with agent_of(SQLiteStore(file), "again").session("s", user="ann") as session:
        assert list(session.history) == before
        assert session.usage == usage
        assert list(session.events) == events
        await session.run("more")
        check_history(list(session.history))
        assert [event.seq for event in session.events] == list(range(1, len(session.events) + 1))


async def test_a_store_is_named_by_its_url(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db?durability=turn"
    await agent_of(url, *ANSWERS).session("s").run("1 + 2?")
    async with agent_of(url, "x").session("s") as session:
        assert session.history[-1].text == "three"
    with pytest.raises(AgentxError, match="nosuch"):
        await agent_of("nosuch:///x", "x").run("hi")


def test_nobody_else_reads_the_file(file: Path) -> None:
    anyio.run(agent_of(SQLiteStore(file), "x").session("s").run, "hi")
    assert file.stat().st_mode & 0o077 == 0


async def test_text_of_any_kind_and_length_comes_back(file: Path) -> None:
    said = "NUL \0, a lone \ud800, Größe 🙂, " + "x" * 200_000
    async with agent_of(SQLiteStore(file), said).session("s") as session:
        await session.run(said)
        before = list(session.history)
    async with agent_of(SQLiteStore(file)).session("s") as session:
        assert list(session.history) == before
        assert before[0].text.startswith("NUL \ufffd, a lone \ufffd, Größe 🙂")


async def test_a_second_writer_of_a_session_is_refused_and_other_sessions_are_free(file: Path) -> None:
    async with agent_of(SQLiteStore(file), "x").session("s") as session:
        await session.run("hi")
        with pytest.raises(SessionConflictError, match="s"):
            await agent_of(SQLiteStore(file), "y").session("s").run("hi")
        assert (await agent_of(SQLiteStore(file), "z").session("other").run("hi")).text == "z"
    assert (await agent_of(SQLiteStore(file), "y").session("s").run("hi")).text == "y"


async def test_sessions_are_listed_and_deleted(file: Path) -> None:
    store = SQLiteStore(file)
    for key in ("a", "b"):
        await agent_of(store, "x").session(key, user="ann").run("hi")
    assert sorted([info.id for info in await store.sessions()]) == ["a", "b"]
    await store.delete("a")
    assert [info.id for info in await store.sessions()] == ["b"]
    await store.close()


async def test_a_limit_of_a_user_holds_across_sessions_and_processes(file: Path) -> None:
    async def guard(ctx: Any, call_next: Any) -> Any:
        ctx.ledger.limit(Limit("requests", 3, scope="user"))
        return await call_next()

    statuses = []
    for number in range(4):
        agent = agent_of(SQLiteStore(file), "x").use(guard)
        statuses.append((await agent.session(f"s{number}", user="ann").run("hi")).status)
    assert statuses == ["completed"] * 3 + ["limit"]


async def test_a_session_is_exported_and_imported_as_it_is(file: Path, tmp_path: Path) -> None:
    store = SQLiteStore(file)
    await agent_of(store, *ANSWERS).session("s").run("1 + 2?")
    lines = await export_session(store, "s")
    other = SQLiteStore(tmp_path / "other.db")
    await import_session(other, lines, "s")
    async with agent_of(other).session("s") as session:
        assert [message.role for message in session.history] == ["user", "assistant", "tool", "assistant"]
    await store.close()


async def test_a_file_of_a_newer_version_is_left_alone(file: Path) -> None:
    await agent_of(SQLiteStore(file), "x").session("s").run("hi")
    with sqlite3.connect(file) as connection:
        names = [row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")]
        version = connection.execute("pragma user_version").fetchone()[0]
        if version:
            connection.execute("pragma user_version = 999")
        else:
            meta = next(name for name in names if "meta" in name)
            connection.execute(f"update {meta} set value = '999'")  # a name of our own
    with pytest.raises(AgentxError, match="newer"):
        await agent_of(SQLiteStore(file), "y").session("s").run("hi")


async def test_an_approval_is_given_in_another_process(file: Path) -> None:
    paid: list[int] = []

    @tool(requires_approval=True)
    async def pay(euro: int) -> str:
        """Pay."""
        paid.append(euro)
        return "paid"

    result = await agent_of(SQLiteStore(file), [call("pay", euro=5)], tools=[pay]).session("s").run("pay")
    assert result.status == "paused"
    session = agent_of(SQLiteStore(file), "done", tools=[pay]).session("s")
    assert (await session.resume({result.pending[0]: Approve()})).text == "done"
    assert paid == [5]


@attrs.frozen
class Spending:
    spent: Decimal = reduced(lambda old, new: old + new, default=Decimal(0))  # noqa: RUF009  # makes a field
    names: tuple[str, ...] = ()
    seen: frozenset[int] = frozenset()


class Counts(Plugin[Spending]):
    id = "guard.counts"
    phase = "gate"

    async def turn(self, ctx: TurnContext, call_next: Any) -> Any:
        state = ctx.state.of(self)
        ctx.update(self, spent=Decimal("0.1"), names=(*state.names, "a"), seen=state.seen | {len(state.names)})
        return await call_next()


async def test_the_state_of_a_plugin_is_what_it_was_when_the_session_is_opened_again(file: Path) -> None:
    for turns in (1, 2, 3):
        plugin = Counts()
        async with agent_of(SQLiteStore(file), "x").use(plugin).session("s") as session:
            await session.run("hi")
            expected = Spending(Decimal("0.1") * turns, ("a",) * turns, frozenset(range(turns)))
            assert session.state.of(plugin) == expected


async def test_a_state_that_does_not_fit_any_more_names_its_plugin(file: Path) -> None:
    @attrs.frozen
    class Other:
        names: int = 0

    class Changed(Plugin[Other]):
        id = "guard.counts"
        phase = "gate"

        async def turn(self, ctx: TurnContext, call_next: Any) -> Any:
            ctx.state.of(self)
            return await call_next()

    await agent_of(SQLiteStore(file), "x").use(Counts()).session("s").run("hi")
    with pytest.raises(TurnAborted, match=r"guard\.counts: its stored state does not fit"):
        await agent_of(SQLiteStore(file), "x").use(Changed()).session("s").run("hi")


CHILD = """
    import os, sys, anyio
    from agentx import Agent, tool
    from agentx.stores import SQLiteStore
    from agentx.testing import ScriptedModel, call

    @tool
    async def once(n: int) -> str:
        "Do it once."
        with open(sys.argv[2], "a") as effects:
            effects.write(f"{n}\\n")
        return f"did {n}"

    async def main():
        script = [[call("once", n=1)], [call("once", n=2)], [call("once", n=3)], "done"]
        store = SQLiteStore(sys.argv[1])
        agent = Agent(ScriptedModel(script), tools=[once], store=store, config=False, autoload="none")
        async with agent.session("s") as session:
            session.on("*", lambda event: print(event.seq, flush=True))
            await session.run("go")

    anyio.run(main)
"""


def killed_after(told: int, file: Path, effects: Path) -> None:
    """Run the child, and kill it when it has told of so many events."""
    arguments = [sys.executable, "-c", textwrap.dedent(CHILD), str(file), str(effects)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= told:
                break
        os.kill(child.pid, signal.SIGKILL)


async def taken_up(file: Path, effects: Path) -> None:
    """Open the session again and bring its turn to an end."""

    @tool
    async def once(n: int) -> str:
        """Do it once."""
        with effects.open("a") as out:  # a line
            out.write(f"{n}\n")
        return f"did {n}"

    store = SQLiteStore(file, lease=0.2)
    async with agent_of(store, tools=[once]).session("s") as session:
        kinds = [kind_of(event) for event in session.events]
        assert [event.seq for event in session.events] == list(range(1, len(kinds) + 1))
        if "turn.end" not in kinds and "user.input" in kinds:
            script: list[Any] = [[call("once", n=n)] for n in (1, 2, 3)][kinds.count("model.end") :]
            result = await session.resume(model=ScriptedModel([*script, "done"]))
            assert result.text == "done"
            check_history(list(session.history))
    await store.close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("told", range(2, 22))
def test_a_process_that_is_killed_loses_no_session_and_repeats_no_effect(
    tmp_path: Path, told: int, backend: str
) -> None:
    file, effects = tmp_path / "sessions.db", tmp_path / "effects"
    killed_after(told, file, effects)
    anyio.run(taken_up, file, effects, backend=backend)
    done = effects.read_text().split() if effects.exists() else []
    assert len(done) == len(set(done))
