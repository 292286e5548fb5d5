"""The parts of agentx-model-local that need neither weights nor a runtime."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from agentx import (
    FilePart,
    Message,
    ModelError,
    ModelNotFoundError,
    ModelRequest,
    ModelSettings,
    RequestRejectedError,
    TextDelta,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from agentx_model_local import (
    PROVIDER,
    AutoModel,
    GgufModel,
    NeedleModel,
    RuntimeMissingError,
    SmolLM2Model,
    WeightsCorruptError,
    WeightsMissingError,
)
from agentx_model_local._choosing import Call, Refusal, plain_schema, prepare, read_calls
from agentx_model_local._conversation import chat_of, fitted, note
from agentx_model_local._engine import require
from agentx_model_local._gguf import read_header
from agentx_model_local._grounding import grounded, numbers_in
from agentx_model_local._proposing import propose
from agentx_model_local._settings import threads
from agentx_model_local._worker import StopText

from .local_prompts import TOOLS


def user(*parts: Any) -> Message:
    return Message("user", tuple([TextPart(part) if isinstance(part, str) else part for part in parts]))


class Heard:
    """Somebody who listens to the deltas."""

    def __init__(self) -> None:
        self.deltas: list[object] = []

    async def __call__(self, delta: object) -> None:
        self.deltas.append(delta)

    @property
    def text(self) -> str:
        return "".join([delta.text for delta in self.deltas if isinstance(delta, TextDelta)])


def after_tool(*results: ToolResult) -> ModelRequest:
    calls = tuple([ToolCall(result.call_id, result.name) for result in results])
    return ModelRequest(
        "local/auto", [user("Weather?"), Message("assistant", calls), Message("tool", results)], tools=TOOLS
    )


# --- the provider


def test_the_entry_point_names_the_provider() -> None:
    (found,) = entry_points(group="agentx.models", name="local")
    assert found.load() is PROVIDER


def test_a_name_becomes_the_model_of_that_name() -> None:
    assert isinstance(PROVIDER.model("auto"), AutoModel)
    assert isinstance(PROVIDER.model("needle"), NeedleModel)
    assert isinstance(PROVIDER.model("smollm2"), SmolLM2Model)
    assert isinstance(PROVIDER.model("/models/some.gguf"), GgufModel)
    assert PROVIDER.model("~/some.GGUF").name == "local/~/some.GGUF"


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ModelNotFoundError, match=r"local/gpt.*local/auto, local/needle, local/smollm2.*\.gguf"):
        PROVIDER.model("gpt")


def test_listing_and_making_models_imports_no_runtime() -> None:
    code = (
        "import sys; from agentx_model_local import PROVIDER; PROVIDER.models(); PROVIDER.model('auto');"
        "sys.exit(bool({'needle_rs', 'xllamacpp'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_model_whose_weights_are_absent_is_listed_as_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTX_MODELS_DIR", str(tmp_path))
    listed = {info.id: info for info in PROVIDER.models()}
    assert set(listed) == {"local/auto", "local/needle", "local/smollm2"}
    assert not listed["local/smollm2"].ready
    assert listed["local/smollm2"].detail


# --- errors before work


async def test_absent_weights_are_an_error_that_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp", reason="xllamacpp has no wheel here", exc_type=ImportError)
    monkeypatch.setenv("AGENTX_MODELS_DIR", str(tmp_path))
    with pytest.raises(WeightsMissingError, match="agentx models pull local") as caught:
        await AutoModel().respond(ModelRequest("local/auto", [user("Hello")]), Heard())
    assert isinstance(caught.value, ModelError)
    assert not caught.value.retryable


async def test_damaged_weights_are_refused_by_their_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTX_MODELS_DIR", str(tmp_path))
    (tmp_path / "needle3.cact").write_bytes(b"not the weights")
    pytest.importorskip("needle_rs", reason="needle-rs has no wheel here", exc_type=ImportError)
    with pytest.raises(WeightsCorruptError, match=r"sha256 is .*agentx models pull local"):
        await NeedleModel().respond(ModelRequest("local/needle", [user("Weather in Oslo?")], tools=TOOLS), Heard())


def test_an_absent_runtime_is_an_error_that_names_package_and_platform() -> None:
    with pytest.raises(RuntimeMissingError, match=r"pip install no-such-runtime.*Python 3"):
        require("no_such_runtime", dict)


@pytest.mark.parametrize(
    ("model", "settings", "named"),
    [
        (AutoModel(), ModelSettings(reasoning_effort="high"), "reasoning_effort"),
        (AutoModel(), ModelSettings(service_tier="flex"), "service_tier"),
        (NeedleModel(), ModelSettings(stop=("x",)), "stop"),
        (NeedleModel(), ModelSettings(top_p=0.5), "top_p"),
        (AutoModel(), ModelSettings(tool_choice="fly"), "fly"),
        (AutoModel(), ModelSettings(max_tokens=0), "max_tokens"),
    ],
)
async def test_what_cannot_be_done_is_an_error_before_work(model: Any, settings: ModelSettings, named: str) -> None:
    with pytest.raises(RequestRejectedError, match=named):
        await model.respond(ModelRequest("m", [user("Hello")], tools=TOOLS, settings=settings), Heard())


async def test_a_demanded_call_without_tools_is_an_error() -> None:
    request = ModelRequest("m", [user("Hello")], settings=ModelSettings(tool_choice="required"))
    with pytest.raises(RequestRejectedError, match="no tools"):
        await SmolLM2Model().respond(request, Heard())


async def test_a_file_in_a_message_is_an_error() -> None:
    request = ModelRequest("m", [user("What is this?", FilePart("image/png", data=b"..."))])
    with pytest.raises(RequestRejectedError, match="text only"):
        await AutoModel().respond(request, Heard())


@pytest.mark.parametrize("value", ["many", "0", "-1", "1.5"])
def test_a_wrong_number_of_threads_names_the_variable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTX_LOCAL_THREADS", value)
    with pytest.raises(RequestRejectedError, match="AGENTX_LOCAL_THREADS"):
        threads()


def test_one_thread_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTX_LOCAL_THREADS", raising=False)
    assert threads() == 1


# --- after a tool


@pytest.mark.parametrize("model", [AutoModel(), NeedleModel(), SmolLM2Model()])
async def test_a_tool_result_is_the_answer_as_it_is(model: Any) -> None:
    heard = Heard()
    result = ToolResult("1", "weather", (TextPart("Oslo: -3 °C,\n  snow"),))
    response = await model.respond(after_tool(result), heard)
    assert response.text == heard.text == "Oslo: -3 °C,\n  snow"
    assert response.stop_reason == "end_turn"


async def test_several_results_stand_one_after_the_other_and_none_is_lost() -> None:
    results = (
        ToolResult("1", "weather", (TextPart("snow"),)),
        ToolResult("2", "weather", (TextPart("timed out"),), "error"),
        ToolResult("3", "weather"),
    )
    response = await AutoModel().respond(after_tool(*results), Heard())
    assert response.text == "snow\ntimed out\n(weather gave no text)"


# --- choosing


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("add 3 and 4.", [3, 4]),
        ("-5 + 20", [-5, 20]),
        ("1,200.50 plus 7", [1200.5, 7]),
        ("5-3", [5, 3]),
        ("twenty-five and three", [25, 3]),
        ("report_2024.json and v2", []),
        ("2024.csv on 12/30", []),
    ],
)
def test_numbers_are_found_in_digits_and_words_but_not_inside_names(text: str, numbers: list[float]) -> None:
    assert numbers_in(text) == numbers


def test_a_text_argument_gets_the_spelling_of_the_prompt() -> None:
    assert grounded("New York", "weather new york please") == "new york"
    assert grounded(["Oslo"], "OSLO?") == ["OSLO"]


@pytest.mark.parametrize("value", ["Berlin", "", 7, {"a": "x"}, 2.5])
def test_what_is_not_in_the_prompt_is_not_grounded(value: Any) -> None:
    with pytest.raises(LookupError):
        grounded(value, "Weather in Oslo at 25 degrees?")


def test_a_tool_that_needs_more_numbers_than_the_prompt_has_is_not_offered() -> None:
    assert [tool.name for tool in prepare("Weather in Oslo?", TOOLS, forced=False).tools] == ["read_file", "weather"]
    assert len(prepare("Add 1 and 2", TOOLS, forced=False).tools) == 3
    assert len(prepare("Weather in Oslo?", TOOLS, forced=True).tools) == 3


def test_a_long_prompt_is_cut_in_the_middle_with_a_note() -> None:
    asked = prepare("Weather in Oslo? " + "x" * 5_000 + " Or in Rome?", TOOLS, forced=False)
    assert len(asked.query) <= 1_000
    assert asked.query.startswith("Weather in Oslo?")
    assert asked.query.endswith("Or in Rome?")
    assert "1000 characters" in asked.notes[0]


def test_of_too_many_tools_those_that_fit_the_prompt_are_considered_with_a_note() -> None:
    many = tuple([ToolSpec(f"tool_{index}", "Does a thing. " * 10, {"type": "object"}) for index in range(60)])
    asked = prepare("Weather in Oslo?", (*many, TOOLS[2]), forced=False)
    assert "weather" in [tool.name for tool in asked.tools]
    assert len(asked.tools_json) < 5_000
    assert "of 61 tools" in asked.notes[0]


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ('[{"name":"fly","arguments":{}}]', "no such tool"),
        ('[{"name":"weather","arguments":{}}]', "without city"),
        ('[{"name":"weather","arguments":{"city":"Paris"}}]', "not in the prompt"),
        ('[{"name":"weather","arguments":{"city":5}}]', "is no string"),
        ('[{"name":"add","arguments":{"a":5,"b":6}}]', "not in the prompt"),
        ('[{"name":"add","arguments":{"a":5,"b":true}}]', "is no number"),
        ('[{"name":"wea', "not JSON"),
        ("[7]", "no such tool"),
    ],
)
def test_a_call_that_cannot_be_right_is_refused(payload: str, why: str) -> None:
    with pytest.raises(Refusal, match=why):
        read_calls(payload, prepare("Weather in Oslo at 5 or 7?", TOOLS, forced=True))


def test_a_believed_call_has_only_arguments_of_the_tool_and_is_made_once() -> None:
    payload = (
        '[{"name":"weather","arguments":{"city":"oslo","unit":"C"}},{"name":"weather","arguments":{"city":"Oslo"}}]'
    )
    assert read_calls(payload, prepare("Weather in Oslo?", TOOLS, forced=True)) == (Call("weather", {"city": "Oslo"}),)


def test_no_call_is_an_answer() -> None:
    asked = prepare("Hello", TOOLS, forced=True)
    assert read_calls("[]", asked) == read_calls(None, asked) == ()


@pytest.mark.parametrize(
    ("prompt", "calls"),
    [
        ("What is 4 plus 9?", [Call("add", {"a": 4, "b": 9})]),
        ("Add 1.5 and twenty", [Call("add", {"a": 1.5, "b": 20})]),
        ("Add 1, 2 and 3", []),
        ("print /var/log/app.log", [Call("read_file", {"path": "/var/log/app.log"})]),
        ("open ~/notes/idea.md.", [Call("read_file", {"path": "~/notes/idea.md"})]),
        ("show src/app.py, please", [Call("read_file", {"path": "src/app.py"})]),
        ("compare a.txt with b.txt", []),
        ("either and/or both", []),
        ("Weather in Oslo?", []),
    ],
)
def test_a_prompt_suggests_a_call_when_it_has_exactly_what_the_tool_needs(prompt: str, calls: list[Call]) -> None:
    assert list(propose(prepare(prompt, TOOLS, forced=False))) == calls


def test_an_enumeration_and_a_url_are_suggested_too() -> None:
    schema = {
        "type": "object",
        "properties": {"url": {"type": "string"}, "mode": {"enum": ["text", "html"], "type": "string"}},
        "required": ["url", "mode"],
    }
    asked = prepare("Get https://example.org/a?b=1 as html", (ToolSpec("fetch", "Get a page.", schema),), forced=False)
    assert propose(asked) == (Call("fetch", {"url": "https://example.org/a?b=1", "mode": "html"}),)


def test_a_schema_is_shown_without_references_optional_types_and_decoration() -> None:
    schema = {
        "type": "object",
        "title": "Args",
        "additionalProperties": False,
        "properties": {
            "unit": {"$ref": "#/$defs/Unit"},
            "day": {"anyOf": [{"type": "null"}, {"type": "integer"}], "default": None, "description": "Which  day"},
        },
        "required": ["unit"],
        "$defs": {"Unit": {"enum": ["C", "F"], "type": "string", "title": "Unit"}},
    }
    assert plain_schema(schema, schema["$defs"]) == {  # type: ignore[arg-type]  # a dict of mixed values
        "type": "object",
        "properties": {
            "unit": {"type": "string", "enum": ["C", "F"]},
            "day": {"type": "integer", "description": "Which day"},
        },
        "required": ["unit"],
    }


def test_a_schema_that_refers_to_itself_ends() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    assert json.dumps(plain_schema({"$ref": "#/$defs/Node"}, {"Node": node}))


# --- the conversation


def test_notes_are_not_shown_to_the_model_again() -> None:
    said = Message("assistant", (TextPart("Tea is a drink."), TextPart(note("it makes up facts"))))
    chat = chat_of(ModelRequest("m", [user("Tea?"), said, user("More?")]), "Be brief.")
    assert [message["content"] for message in chat] == ["Be brief.", "Tea?", "Tea is a drink.", "More?"]


def test_roles_alternate_and_added_context_comes_last() -> None:
    messages = [user("Tea?"), user("Or coffee?"), Message("assistant", (ToolCall("1", "look"),))]
    messages.append(Message("tool", (ToolResult("1", "look", (TextPart("found"),)),)))
    chat = chat_of(ModelRequest("m", messages, context=("It is Monday.",)), "Be brief.")
    assert [(message["role"], message["content"]) for message in chat] == [
        ("system", "Be brief."),
        ("user", "Tea?\nOr coffee?"),
        ("assistant", "found"),
        ("user", "It is Monday."),
    ]


def test_of_a_long_conversation_the_end_and_the_instructions_are_kept() -> None:
    messages = [
        user(f"message {index} " + "x" * 100) if index % 2 else Message("assistant", (TextPart("y" * 100),))
        for index in range(99)
    ]
    whole = chat_of(ModelRequest("m", messages), "Be brief.")
    cut = fitted(whole, 200)
    assert cut.is_cut
    assert cut.chat[0] == whole[0]
    assert cut.chat[-1] == whole[-1]
    assert sum([len(message["content"]) for message in cut.chat]) <= 600
    assert not fitted(whole, 10_000).is_cut


def test_one_message_that_is_too_long_is_cut_in_its_middle() -> None:
    cut = fitted(chat_of(ModelRequest("m", [user("start " + "x" * 9_000 + " end")]), "z" * 9_000), 200)
    assert cut.is_cut
    assert cut.chat[1]["content"].startswith("start")
    assert cut.chat[1]["content"].endswith("end")
    assert sum([len(message["content"]) for message in cut.chat]) <= 600


# --- stop sequences and files


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("text", "stops", "passed", "hit"),
    [
        ("one two three four", ["three"], "one two ", True),
        ("one two thr", ["three"], "one two thr", False),
        ("aaab", ["aab"], "a", True),
        ("x END y STOP", ["STOP", "END"], "x ", True),
        ("plain", [], "plain", False),
        ("plain", [""], "plain", False),
    ],
)
def test_text_passes_up_to_the_first_stop_sequence(
    text: str, stops: list[str], passed: str, hit: bool, size: int
) -> None:
    stop = StopText(stops)
    out = ""
    for start in range(0, len(text), size):
        if not stop.hit:
            out += stop.feed(text[start : start + size])
    if not stop.hit:
        out += stop.finish()
    assert (out, stop.hit) == (passed, hit)


def gguf(*entries: tuple[str, int, bytes]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries))
    return head + b"".join([_text(key) + struct.pack("<I", kind) + value for key, kind, value in entries])


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def test_a_header_tells_context_length_and_template(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    words = struct.pack("<IQ", 8, 2) + _text("a") + _text("b")
    numbers = struct.pack("<IQ", 4, 2) + struct.pack("<II", 1, 2)
    path.write_bytes(
        gguf(
            ("tokens", 9, words),
            ("types", 9, numbers),
            ("flag", 7, b"\1"),
            ("llama.context_length", 4, struct.pack("<I", 4096)),
            ("tokenizer.chat_template", 8, _text("{% if tools %}…")),
        )
    )
    header = read_header(path)
    assert header.context_length == 4096
    assert header.takes_tools


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\3\4 something else", gguf(("a", 77, b""))])
async def test_a_file_that_is_no_gguf_is_an_error_that_names_it(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    pytest.importorskip("xllamacpp", reason="xllamacpp has no wheel here", exc_type=ImportError)
    with pytest.raises(WeightsCorruptError, match=r"broken\.gguf is not a whole GGUF file"):
        await PROVIDER.model(str(path)).respond(ModelRequest("m", [user("Hello")]), Heard())


async def test_a_gguf_file_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="xllamacpp has no wheel here", exc_type=ImportError)
    with pytest.raises(WeightsMissingError, match=r"nowhere\.gguf"):
        await PROVIDER.model(str(tmp_path / "nowhere.gguf")).respond(ModelRequest("m", [user("Hello")]), Heard())


def test_the_worker_runs_alone_and_reports_what_it_cannot_load(tmp_path: Path) -> None:
    import agentx_model_local._worker as worker

    command = [
        sys.executable,
        "-P",
        str(worker.__file__),
        "llama",
        json.dumps({"path": str(tmp_path / "x"), "sha256": "0"}),
    ]
    ran = subprocess.run(command, capture_output=True, check=False, env=dict(os.environ))
    assert json.loads(ran.stdout)["error"].startswith("FileNotFoundError")
