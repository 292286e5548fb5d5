"""The real models, in their processes, on this machine."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import anyio.lowlevel
import pytest

from agentx import (
    BadResponseError,
    ContextWindowError,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    ModelTimeoutError,
    TextDelta,
    TextPart,
    ToolCall,
    ToolResult,
)
from agentx_model_local import AutoModel, EngineError, GgufModel, NeedleModel, SmolLM2Model
from agentx_model_local._engine import is_installed
from agentx_model_local._weights import ALL, SMOLLM2

from .local_prompts import PROMPTS, TOOLS, score

pytestmark = [
    pytest.mark.weights,
    pytest.mark.skipif(
        not all(weights.is_here for weights in ALL), reason="the weights are absent: run `agentx models pull local`"
    ),
    pytest.mark.skipif(
        not (is_installed("needle_rs") and is_installed("xllamacpp")), reason="a runtime has no wheel for this platform"
    ),
]


def ask(text: str, *before: Message, tools: bool = False, **settings: Any) -> ModelRequest:
    said = Message("user", (TextPart(text),))
    return ModelRequest("local", [*before, said], tools=TOOLS if tools else (), settings=ModelSettings(**settings))


def calls(response: ModelResponse) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in response.tool_calls]


class Heard(list[str]):
    """Somebody who listens to the text."""

    async def __call__(self, delta: object) -> None:
        assert isinstance(delta, TextDelta)
        self.append(delta.text)


@asynccontextmanager
async def opened(model: Any) -> AsyncIterator[Any]:
    try:
        yield model
    finally:
        await model.aclose()


def processes() -> set[int]:
    """Return the child processes of this one that run a model."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            is_worker = b"_worker.py" in (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if is_worker and parent == os.getpid():
            found.add(int(folder.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


# --- local/auto


async def test_a_tool_is_called_and_its_result_is_the_answer() -> None:
    async with opened(AutoModel()) as model:
        request = ask("Weather in Oslo?", tools=True)
        response = await model.respond(request, Heard())
        assert calls(response) == [("weather", {"city": "Oslo"})]
        assert response.stop_reason == "tool_use"
        assert response.usage.input_tokens > 0

        (call,) = response.tool_calls
        result = ToolResult(call.id, call.name, (TextPart("-3 °C"),))
        messages = [*request.messages, response.message, Message("tool", (result,))]
        heard = Heard()
        answer = await model.respond(ModelRequest("local/auto", messages, tools=TOOLS), heard)
        assert answer.text == "".join(heard) == "-3 °C"


async def test_when_no_tool_is_wanted_text_is_written_token_by_token_and_says_what_it_is() -> None:
    heard = Heard()
    async with opened(AutoModel()) as model:
        response = await model.respond(ask("Write one sentence about tea.", tools=True, max_tokens=20), heard)
    text, note = response.parts
    assert not response.tool_calls
    assert len(heard) > 5
    assert "".join(heard) == text.text + note.text
    assert note.text.startswith("\n\n[local model: ")
    assert "makes up facts" in note.text
    assert response.usage.output_tokens > 5


async def test_the_note_is_said_once_in_a_conversation() -> None:
    async with opened(AutoModel()) as model:
        first = ask("Hello!", max_tokens=8)
        answer = await model.respond(first, Heard())
        second = await model.respond(ask("And you?", *first.messages, answer.message, max_tokens=8), Heard())
    assert len(answer.parts) == 2
    assert len(second.parts) == 1


async def test_a_choice_of_none_calls_no_tool() -> None:
    async with opened(AutoModel()) as model:
        response = await model.respond(ask("Weather in Oslo?", tools=True, tool_choice="none", max_tokens=3), Heard())
    assert not response.tool_calls
    assert response.stop_reason == "max_tokens"


async def test_a_named_tool_is_the_only_one_offered() -> None:
    async with opened(AutoModel()) as model:
        response = await model.respond(ask("Read notes.txt", tools=True, tool_choice="read_file"), Heard())
        assert calls(response) == [("read_file", {"path": "notes.txt"})]


async def test_a_demanded_call_that_cannot_be_made_is_an_error_and_not_a_guess() -> None:
    async with opened(NeedleModel()) as model:
        with pytest.raises(BadResponseError, match="tool_choice is 'add'"):
            await model.respond(ask("Tell me a joke.", tools=True, tool_choice="add"), Heard())


async def test_needle_alone_gives_nothing_where_no_tool_is_wanted() -> None:
    heard = Heard()
    async with opened(NeedleModel()) as model:
        response = await model.respond(ask("Tell me a joke.", tools=True), heard)
    assert response.parts == ()
    assert not heard


async def test_a_conversation_that_is_too_long_is_cut_until_it_fits_with_a_note() -> None:
    async with opened(SmolLM2Model()) as model:
        response = await model.respond(ask("\u2603\u0f40\U0001f9ff" * 3_000, max_tokens=3), Heard())
    assert "too long" in response.text


# --- settings of the text


async def test_text_ends_before_a_stop_sequence() -> None:
    async with opened(SmolLM2Model()) as model:
        whole = await model.respond(ask("Name a colour.", temperature=0.0, max_tokens=20), Heard())
        stop = whole.parts[0].text.split()[2]
        heard = Heard()
        cut = await model.respond(ask("Name a colour.", temperature=0.0, max_tokens=20, stop=(stop,)), heard)
    assert cut.stop_reason == "stop_sequence"
    assert cut.parts[0].text == whole.parts[0].text.split(stop)[0]
    assert "".join(heard).startswith(cut.parts[0].text)


async def test_a_seed_makes_text_repeatable() -> None:
    async with opened(SmolLM2Model()) as model:
        request = ask("Tell me about a cat.", temperature=1.0, seed=7, max_tokens=12)
        answers = [(await model.respond(request, Heard())).parts[0] for _ in range(2)]
    assert answers[0] == answers[1]


async def test_a_time_limit_is_an_error_of_its_own() -> None:
    async with opened(SmolLM2Model()) as model:
        with pytest.raises(ModelTimeoutError, match=r"0\.2 seconds"):
            await model.respond(ask("Tell a long story.", max_tokens=1_000, timeout=0.2), Heard())


# --- processes


async def cancelled_after_three_pieces(model: Any) -> Heard:
    """Ask for a long text and cancel it when it has begun; return what was heard."""
    heard = Heard()
    with anyio.CancelScope() as scope:

        async def stop_after_three(delta: object) -> None:
            await heard(delta)
            if len(heard) == 3:
                scope.cancel()
                await anyio.lowlevel.checkpoint()

        await model.respond(ask("Tell a long story.", max_tokens=1_500), stop_after_three)
    assert scope.cancelled_caught
    return heard


async def test_cancelling_stops_the_text_and_the_next_request_works() -> None:
    async with opened(SmolLM2Model()) as model:
        heard = await cancelled_after_three_pieces(model)
        response = await model.respond(ask("Hello!", max_tokens=3), Heard())
    assert len(heard) == 3
    assert response.parts[0].text


@needs_proc
async def test_a_cancelled_text_ends_in_the_loaded_model_itself() -> None:
    async with opened(SmolLM2Model()) as model:
        await model.respond(ask("Hello!", max_tokens=1), Heard())
        before = processes()
        await cancelled_after_three_pieces(model)
        assert processes() == before
        (pid,) = before
        assert not await is_working(pid)


async def is_working(pid: int) -> bool:
    """Whether a process uses processor time; both readings are taken after what was asked of it is over."""
    await anyio.sleep(0.3)
    before = used_ticks(pid)
    await anyio.sleep(0.3)
    return used_ticks(pid) - before > 5


def used_ticks(pid: int) -> int:
    return sum([int(value) for value in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]])


@needs_proc
async def test_cancelling_needle_ends_its_process_and_the_next_request_works() -> None:
    async with opened(NeedleModel()) as model:
        with anyio.move_on_after(0.6) as scope:
            await model.respond(ask("Is it raining in Seattle right now?", tools=True), Heard())
        assert scope.cancelled_caught
        assert not processes()
        assert calls(await model.respond(ask("Weather in Oslo?", tools=True), Heard()))


@needs_proc
async def test_closing_ends_the_processes() -> None:
    async with opened(AutoModel()) as model:
        await model.respond(ask("Hello!", max_tokens=1), Heard())
        assert len(processes()) == 1
    assert not processes()


async def test_the_event_loop_goes_on_while_a_model_works() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.02)
            ticks += 1

    async with opened(NeedleModel()) as model, anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        await model.respond(ask("Weather in Oslo?", tools=True), Heard())
        tasks.cancel_scope.cancel()
    assert ticks > 10


async def test_requests_at_once_are_answered_one_after_the_other() -> None:
    texts = [Heard() for _ in range(3)]
    answers: dict[int, ModelResponse] = {}

    async def run(index: int) -> None:
        answers[index] = await model.respond(ask(f"Count to {index}.", max_tokens=8), texts[index])

    async with opened(SmolLM2Model()) as model:
        async with anyio.create_task_group() as tasks:
            for index in range(3):
                tasks.start_soon(run, index)
    assert ["".join(heard) for heard in texts] == [answers[index].text for index in range(3)]


@needs_proc
async def test_a_process_that_dies_is_an_error_and_starts_again() -> None:
    async with opened(SmolLM2Model()) as model:

        async def end_it(delta: object) -> None:
            for pid in processes():
                os.kill(pid, signal.SIGKILL)

        with pytest.raises(EngineError, match=r"ended \(exit code -9\)"):
            await model.respond(ask("Tell a story.", max_tokens=50), end_it)
        assert (await model.respond(ask("Hello!", max_tokens=2), Heard())).parts[0].text


async def test_what_the_listener_raises_leaves_and_the_next_request_works() -> None:
    async def refuse(delta: object) -> None:
        raise ZeroDivisionError

    async with opened(SmolLM2Model()) as model:
        with pytest.raises(ZeroDivisionError):
            await model.respond(ask("Tell a long story.", max_tokens=500), refuse)
        assert (await model.respond(ask("Hello!", max_tokens=2), Heard())).parts[0].text


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_model_may_be_used_in_one_event_loop_after_another(backend: str) -> None:
    model = SmolLM2Model()

    async def use() -> str:
        async with opened(model):
            return str((await model.respond(ask("Hello!", max_tokens=2), Heard())).text)

    assert anyio.run(use, backend=backend)
    assert anyio.run(use, backend=backend)


# --- files of the user's


async def test_a_gguf_file_without_a_tool_template_chooses_under_a_grammar() -> None:
    async with opened(GgufModel("local/file", SMOLLM2.path)) as model:
        response = await model.respond(ask("Weather in Oslo?", tools=True, tool_choice="weather"), Heard())
    ((name, arguments),) = calls(response)
    assert name == "weather"
    assert set(arguments) == {"city"}


async def test_a_gguf_file_writes_without_notes() -> None:
    heard = Heard()
    async with opened(GgufModel("local/file", SMOLLM2.path)) as model:
        response = await model.respond(ask("Hello!", max_tokens=6), heard)
    assert response.text == "".join(heard)
    assert len(response.parts) == 1


async def test_a_conversation_too_long_for_a_gguf_file_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTX_LOCAL_CONTEXT", "512")
    async with opened(GgufModel("local/file", SMOLLM2.path)) as model:
        with pytest.raises(ContextWindowError, match="512"):
            await model.respond(ask("la " * 5_000), Heard())


TOOL_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nYou can call functions: <tools>{% for tool in tools %}{{ tool | tojson }}\n"
    '{% endfor %}</tools> Answer with <tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n'
    "{% endif %}{%- for message in messages %}{%- if message.role == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ message.content }}\n</tool_response><|im_end|>\n{%- else %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}{%- if message.tool_calls %}{%- for call in message.tool_calls %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{%- endfor %}{%- endif %}<|im_end|>\n{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def with_tool_template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """SmolLM2's file with another chat template in its header, one that knows tools."""
    path = tmp_path_factory.mktemp("gguf") / "tools.gguf"
    with SMOLLM2.path.open("rb") as source, path.open("wb") as target:
        rewrite_template(source, target, TOOL_TEMPLATE)
    yield path
    path.unlink()


def rewrite_template(source: BinaryIO, target: BinaryIO, template: str) -> None:
    head = source.read(24)
    _, tensors, entries = struct.unpack("<IQQ", head[4:])
    target.write(head)
    for _ in range(entries):
        key = read_text(source)
        kind = source.read(4)
        start = source.tell()
        skip_value(source, struct.unpack("<I", kind)[0])
        size = source.tell() - start
        source.seek(start)
        value = source.read(size)
        if key == b"tokenizer.chat_template":
            value = struct.pack("<Q", len(template.encode())) + template.encode()
        target.write(struct.pack("<Q", len(key)) + key + kind + value)
    for _ in range(tensors):
        name = read_text(source)
        dimensions = source.read(4)
        rest = source.read(8 * struct.unpack("<I", dimensions)[0] + 12)
        target.write(struct.pack("<Q", len(name)) + name + dimensions + rest)
    source.seek(-source.tell() % 32, 1)
    target.write(bytes(-target.tell() % 32))
    while chunk := source.read(1 << 20):
        target.write(chunk)


def read_text(source: BinaryIO) -> bytes:
    return source.read(struct.unpack("<Q", source.read(8))[0])


def skip_value(source: BinaryIO, kind: int) -> None:
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    if kind == 8:
        read_text(source)
    elif kind == 9:
        inner, count = struct.unpack("<IQ", source.read(12))
        for _ in range(count):
            skip_value(source, inner)
    else:
        source.seek(sizes[kind], 1)


async def test_a_gguf_file_with_a_tool_template_is_asked_through_it(with_tool_template: Path) -> None:
    before: list[Message] = []
    for city, degrees in (("Rome", "21 °C"), ("Lima", "18 °C"), ("Cairo", "30 °C")):
        call = ToolCall(city, "weather", json.dumps({"city": city}))
        before += [*ask(f"Weather in {city}?").messages, Message("assistant", (call,))]
        result = ToolResult(city, "weather", (TextPart(degrees),))
        before += [Message("tool", (result,)), Message("assistant", (TextPart(degrees),))]
    async with opened(GgufModel("local/tools", with_tool_template)) as model:
        response = await model.respond(ask("Weather in Oslo?", *before, tools=True, temperature=0.0), Heard())
    assert calls(response) == [("weather", {"city": "Oslo"})]
    assert response.stop_reason == "tool_use"


async def test_a_demanded_call_is_made_whatever_the_template(with_tool_template: Path) -> None:
    async with opened(GgufModel("local/tools", with_tool_template)) as model:
        response = await model.respond(ask("Weather in Oslo?", tools=True, tool_choice="weather"), Heard())
    assert [name for name, _ in calls(response)] == ["weather"]


# --- how good it is


def test_at_least_twenty_four_of_forty_prompts_are_exact() -> None:
    wrong: list[str] = []

    async def count() -> int:
        async with opened(AutoModel()) as model:
            return await score(model, lambda text, right: None if right else wrong.append(text))

    assert len(PROMPTS) == 40
    assert sum([tool is None for _, tool, _ in PROMPTS]) == 12
    exact = anyio.run(count)
    assert exact >= 24, f"{exact} of 40 exact; wrong: {wrong}"
