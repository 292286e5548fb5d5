"""An answer that is data: what a model is asked for, and what becomes of its text.

Whatever the mode, the history and the events hold the answer as JSON text: a model that can be held to a schema
writes it as such, one that calls tools is given one more tool whose arguments are the answer, and any other is told.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Literal, TypeVar

import attrs
import msgspec

from ._codec import encode
from ._errors import OutputError, ToolSchemaError
from ._messages import (
    Delta,
    ModelRequest,
    ModelResponse,
    OutputFormat,
    Part,
    Report,
    TextDelta,
    TextPart,
    ToolArgsDelta,
    ToolCall,
    ToolSpec,
)
from ._models import Capabilities
from ._schema import strict_schema, without_nulls
from ._signature import Decode, read_annotation
from ._threads import clip

T = TypeVar("T")
Mode = Literal["auto", "native", "tool", "prompted"]
_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
ANSWER_TOOL = "final_answer"


@attrs.frozen
class Output(Generic[T]):
    """What an answer shall be, where a type alone does not say enough: `Agent(output=Output(Weather, retries=0))`.

    Args:
        type: a class (attrs, dataclass, TypedDict, msgspec.Struct, pydantic), any other annotation that JSON can
            express, or a JSON Schema, for which the answer is plain data.
        name: what the model is told it is called; default: the class's name.
        mode: `native` holds the model to the schema, `tool` gives it a tool to answer with, `prompted` only tells it.
            `auto` takes the first of these that the model says it can do, and tells a model that says nothing.
        retries: how often an answer that does not fit goes back to the model.
    """

    type: type[T] | Any
    name: str = ""
    mode: Mode = "auto"
    retries: int = 2

    def __attrs_post_init__(self) -> None:
        if self.mode not in typing.get_args(Mode):
            raise OutputError(f"Output(mode=…) is one of {', '.join(typing.get_args(Mode))}, not {self.mode!r}")
        if not isinstance(self.retries, int) or self.retries < 0:
            raise OutputError(f"Output(retries=…) is a whole number, 0 or more, not {self.retries!r}")


class OutputInvalid(ValueError):
    """An answer that is not what was asked for; the message is for the model."""


@attrs.frozen(eq=False, repr=False)
class OutputType:
    """A compiled `Output`."""

    format: OutputFormat
    mode: Mode
    retries: int
    _schema: Mapping[str, Any]
    _is_wrapped: bool
    _decode: Decode

    def read(self, response: ModelResponse) -> Any:
        """Return the answer that a response's text holds.

        Raises:
            OutputInvalid: there is none, or it does not fit.
        """
        value = _json_of(response)
        if self._is_wrapped and isinstance(value, dict) and list(value) == ["value"]:
            value = value["value"]
        try:
            return self._decode(msgspec.json.encode(value).decode())
        except Exception as error:
            problem = error
        try:  # a strict schema makes every field required and gives those that were not a null
            return self._decode(msgspec.json.encode(without_nulls(value, self._schema)).decode())
        except Exception:
            raise OutputInvalid(clip(str(problem), 500)) from problem

    def rejection(self, problem: OutputInvalid) -> str:
        """Return what the model is told about an answer that does not fit."""
        return f"Your answer is not a valid {self.format.name}: {problem}. Answer again, with the JSON alone."


def compile_output(asked: Any) -> OutputType:
    """Return what an `output=` means.

    Raises:
        OutputError: no JSON Schema can express it.
    """
    output = asked if isinstance(asked, Output) else Output(asked)
    if isinstance(output.type, Mapping):
        schema, decode = dict(output.type), _schema_decoder(output.type)
        name = output.name or str(schema.get("title") or "answer")
    else:
        name = output.name or getattr(output.type, "__name__", "") or "answer"
        try:
            schema, decode = read_annotation(output.type, f"output {name}")
        except ToolSchemaError as error:
            raise OutputError(str(error)) from error
    is_wrapped = schema.get("type") != "object"
    asked_schema = _wrapped(schema) if is_wrapped else schema
    strict = strict_schema(asked_schema)
    form = OutputFormat(_NAME.sub("_", name)[:64] or "answer", strict or asked_schema, strict is not None)
    return OutputType(form, output.mode, output.retries, schema, is_wrapped, decode)


def _wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that holds the value: providers take nothing else at the top."""
    schema = dict(schema)
    defs = schema.pop("$defs", None)
    outer = {"type": "object", "properties": {"value": schema}, "required": ["value"], "additionalProperties": False}
    return {**outer, "$defs": defs} if defs else outer


def _schema_decoder(schema: Mapping[str, Any]) -> Decode:
    try:
        import jsonschema
    except ImportError as error:
        raise OutputError(
            "an output given as JSON Schema needs the package jsonschema: pip install 'agentx-core[jsonschema]', "
            "or give a class"
        ) from error
    validator_class = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        validator_class.check_schema(dict(schema))
    except jsonschema.SchemaError as error:
        raise OutputError(f"the output's JSON Schema is not valid: {error.message}") from error
    validator = validator_class(dict(schema))

    def decode(text: str) -> Any:
        value = msgspec.json.decode(text)
        problem = jsonschema.exceptions.best_match(validator.iter_errors(value))
        if problem is not None:
            raise ValueError(f"{problem.message} - at `{problem.json_path}`")
        return value

    return decode


def _json_of(response: ModelResponse) -> Any:
    """Return the JSON value of an answer: all of its last text, else a fenced block, else the object in it."""
    text = response.text
    last = [part.text for part in response.parts if isinstance(part, TextPart)][-1]
    tries = [last, text, *[found.group(1) for found in _FENCED.finditer(text)]]
    start, end = text.find("{"), text.rfind("}")
    if 0 <= start < end:
        tries.append(text[start : end + 1])
    problem: Exception | None = None
    for candidate in tries:
        try:
            return msgspec.json.decode(candidate.strip())
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            problem = problem or error
    raise OutputInvalid(f"it is not JSON ({problem})")


# What goes on the wire


Emit = Callable[[Any], Awaitable[None]]


@attrs.frozen(eq=False, repr=False)
class Asked:
    """A request as a model gets it, and the way back of its answer."""

    request: ModelRequest
    answer_tool: str = ""

    def emit(self, inner: Emit) -> Emit:
        """Return what the model gives its deltas to; those of an answering call are shown as the text they become."""
        name = self.answer_tool
        if not name:
            return inner
        texts: dict[str, int] = {}
        count = 0

        async def emit(delta: Delta | Report) -> None:
            nonlocal count
            if isinstance(delta, ToolArgsDelta) and (delta.name == name or delta.call_id in texts):
                if delta.call_id not in texts:
                    texts[delta.call_id] = count
                    count += 1
                await inner(TextDelta(delta.text, texts[delta.call_id]))
                return
            if isinstance(delta, TextDelta):
                count = max(count, delta.index + 1)
            await inner(delta)

        return emit

    def answer(self, response: ModelResponse) -> ModelResponse:
        """Return the response with an answering call as the text of its arguments."""
        name = self.answer_tool
        if not name or not any(call.name == name for call in response.tool_calls):
            return response
        parts = tuple([_as_text(part) if _is_answer(part, name) else part for part in response.parts])
        others = any(isinstance(part, ToolCall) for part in parts)
        reason = "end_turn" if response.stop_reason == "tool_use" and not others else response.stop_reason
        return attrs.evolve(response, parts=parts, stop_reason=reason)


def _is_answer(part: Part, name: str) -> bool:
    return isinstance(part, ToolCall) and part.name == name


def _as_text(part: Any) -> TextPart:
    return TextPart(part.arguments)


def ask_for(output: OutputType, request: ModelRequest, capabilities: Capabilities) -> Asked:
    """Return the request in the form that the model can answer with data."""
    mode = output.mode
    if mode == "auto":
        mode = "native" if capabilities.json_schema else "tool" if capabilities.tools else "prompted"
    if mode == "native":
        return Asked(attrs.evolve(request, output=output.format))
    schema = encode(output.format.schema).decode()
    request = attrs.evolve(request, output=None)
    if mode == "prompted":
        text = f"Answer with one JSON value of this JSON Schema, and nothing else:\n{schema}"
        return Asked(attrs.evolve(request, context=(*request.context, text)))
    name = ANSWER_TOOL
    while any(tool.name == name for tool in request.tools):
        name += "_"
    tool = ToolSpec(name, f"Give the final answer: {output.format.name}.", output.format.schema)
    settings = request.settings
    if settings.tool_choice in (None, "auto", "none"):
        settings = attrs.evolve(settings, tool_choice="required")
    return Asked(attrs.evolve(request, tools=(*request.tools, tool), settings=settings), name)
