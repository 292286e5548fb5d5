"""A server that speaks OpenAI's two interfaces and, unlike every mock, reads the conversation it is sent.

A history that OpenAI would refuse is answered with 400, and so is a body that its SDK does not know. What it says is
scripted once and told in the form that is asked for: Chat or Responses, streamed or whole.

    with OpenAIFake([Said(calls=[("c1", "add", '{"a": 1}')]), Said("It is 1.")]) as server:
        model = OpenAIModel("gpt-test", api_key="sk-test", base_url=server.url)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from openai.types.chat.completion_create_params import CompletionCreateParams
from openai.types.responses.response_create_params import ResponseCreateParams

from .oracle import check_sent
from .wire import Answer, Request, WireServer, data, named, reply, sse

ID = "resp_1"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@attrs.frozen
class Said:
    """One answer, whichever interface it is asked for through."""

    text: str = ""
    calls: Sequence[tuple[str, str, str]] = ()
    """`(id, name, arguments)`."""
    thoughts: Sequence[Mapping[str, Any]] = ()
    """Items of reasoning, before everything else; only Responses has them."""
    refusal: str = ""
    stop: str = ""
    """`length`, `content_filter`; by itself `stop`, or `tool_calls` if there are any."""
    usage: tuple[int, int, int, int] = (10, 5, 0, 0)
    """Input (cached included), output (reasoning included), cached, reasoning."""
    pieces: int = 3
    """Characters of a delta."""


class OpenAIFake(WireServer):
    """Answers the n-th request with the n-th `Said`, or another `Answer`; the last one again and again."""

    def __init__(self, script: Sequence[Said | Answer | Callable[[Any], Said]], *, oracle: bool = True) -> None:
        self._said = script
        self._oracle = oracle
        super().__init__(self._answer)

    def _answer(self, request: Request) -> Answer:
        body = request.json
        is_chat = request.path.partition("?")[0].endswith("/chat/completions")
        problem = self._problem(body, is_chat)
        if problem:
            error = {"message": problem, "type": "invalid_request_error", "param": None, "code": None}
            return reply(400, {"x-request-id": "req_1"}, {"error": error})
        said = self._said[min(len(self.requests) - 1, len(self._said) - 1)]
        if isinstance(said, Answer):
            return said
        if callable(said):
            said = said(body)
        if is_chat:
            return sse(*data(*chat_chunks(said), "[DONE]")) if body.get("stream") else reply(200, body=chat_body(said))
        return sse(*named(*response_events(said))) if body.get("stream") else reply(200, body=response_body(said))

    def _problem(self, body: Any, is_chat: bool) -> str:
        try:
            if self._oracle:
                check_sent(body, CompletionCreateParams if is_chat else ResponseCreateParams)
        except ValueError as error:
            return f"the SDK does not know this: {error}"
        problems = chat_problems(body) if is_chat else responses_problems(body)
        return next(problems, "")


# What OpenAI refuses


def chat_problems(body: Mapping[str, Any]) -> Iterator[str]:
    messages = body["messages"]
    if not messages:
        yield "[] is too short - 'messages'"
    waiting: list[str] = []
    for number, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] not in waiting:
                yield f"messages[{number}]: a message of role 'tool' must follow a message with its tool_calls"
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield f"messages[{number}]: these tool_call_ids have no response messages: {', '.join(waiting)}"
        if role == "assistant":
            calls = message.get("tool_calls") or []
            if message.get("content") in (None, []) and not calls and not message.get("refusal"):
                yield f"messages[{number}]: content is null and there is no tool call"
            waiting = [call["id"] for call in calls]
            for call in calls:
                yield from _call_problem(call["function"]["name"], call["function"]["arguments"], number)
    if waiting:
        yield f"these tool_call_ids have no response messages: {', '.join(waiting)}"


def responses_problems(body: Mapping[str, Any]) -> Iterator[str]:
    items = body["input"]
    if not items:
        yield "input is empty"
    open_calls: list[str] = []
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        following = items[number + 1] if number + 1 < len(items) else {}
        if kind == "reasoning":
            if not body.get("store", True) and not item.get("encrypted_content"):
                yield f"Item with id '{item['id']}' not found. Items are not persisted when store is set to false."
            if following.get("type") not in ("reasoning", "function_call") and following.get("role") != "assistant":
                yield f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
        elif kind == "function_call":
            open_calls.append(item["call_id"])
            yield from _call_problem(item["name"], item["arguments"], number)
            if "id" in item and items[number - 1].get("type") not in ("reasoning", "function_call"):
                yield f"Item '{item['id']}' of type 'function_call' was provided without its required 'reasoning' item"
        elif kind == "function_call_output":
            if item["call_id"] not in open_calls:
                yield f"No tool call found for function call output with call_id {item['call_id']}."
            else:
                open_calls.remove(item["call_id"])
        elif open_calls and item.get("role") == "user":
            yield f"No tool output found for function call {open_calls[0]}."
    if open_calls:
        yield f"No tool output found for function call {open_calls[0]}."


def _call_problem(name: str, arguments: str, number: int) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield f"[{number}]: the name {name!r} does not match '^[a-zA-Z0-9_-]+$'"
    try:
        value = json.loads(arguments)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        yield f"[{number}]: arguments are no JSON object: {arguments!r}"


# What it says


def _usage_of_chat(said: Said) -> dict[str, Any]:
    given, output, cached, reasoning = said.usage
    return {
        "prompt_tokens": given,
        "completion_tokens": output,
        "total_tokens": given + output,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def _finish(said: Said) -> str:
    return said.stop or ("tool_calls" if said.calls else "stop")


def chat_body(said: Said) -> dict[str, Any]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in said.calls
    ]
    message = {"role": "assistant", "content": said.text or None, "refusal": said.refusal or None}
    message.update({"tool_calls": calls} if calls else {})
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-test-1",
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(said), "logprobs": None}],
        "usage": _usage_of_chat(said),
    }


def chat_chunks(said: Said) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "refusal": None}]
    deltas += [{"content": piece} for piece in _pieces(said.text, said.pieces)]
    deltas += [{"refusal": piece} for piece in _pieces(said.refusal, said.pieces)]
    for index, (call_id, name, arguments) in enumerate(said.calls):
        begin = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [begin]})
        for piece in _pieces(arguments, said.pieces):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-test-1"}
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(said)}]})
    return [*chunks, {**head, "choices": [], "usage": _usage_of_chat(said)}]


def _items(said: Said) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = [dict(thought) for thought in said.thoughts]
    content: list[dict[str, Any]] = []
    if said.text:
        content.append({"type": "output_text", "text": said.text, "annotations": [], "logprobs": []})
    if said.refusal:
        content.append({"type": "refusal", "refusal": said.refusal})
    if content:
        items.append({"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": content})
    for number, (call_id, name, arguments) in enumerate(said.calls):
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": call_id, "name": name}
        items.append({**call, "arguments": arguments, "status": "completed"})
    return items


def response_body(said: Said, **changes: Any) -> dict[str, Any]:
    given, output, cached, reasoning = said.usage
    reason = {"length": "max_output_tokens"}.get(said.stop, said.stop)
    return {
        "id": ID,
        "object": "response",
        "created_at": 1,
        "model": "gpt-test-1",
        "status": "incomplete" if said.stop else "completed",
        "incomplete_details": {"reason": reason} if said.stop else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "output": _items(said),
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": given + output,
        },
        **changes,
    }


def response_events(said: Said) -> list[dict[str, Any]]:
    whole = response_body(said)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(whole["output"]):
        events += [{**event, "output_index": index} for event in _item_events(item, said.pieces)]
    events.append({"type": f"response.{whole['status']}", "response": whole})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _item_events(item: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    own = {"item_id": item["id"]}
    if item["type"] == "message":
        yield {"type": "response.output_item.added", "item": {**item, "status": "in_progress", "content": []}}
        for index, content in enumerate(item["content"]):
            yield from _content_events(content, {**own, "content_index": index}, size)
    elif item["type"] == "function_call":
        yield {"type": "response.output_item.added", "item": {**item, "status": "in_progress", "arguments": ""}}
        for piece in _pieces(item["arguments"], size):
            yield {"type": "response.function_call_arguments.delta", **own, "delta": piece}
        done = {"arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **own, **done}
    elif item["type"] == "reasoning":
        yield {"type": "response.output_item.added", "item": {**item, "summary": [], "encrypted_content": None}}
        for index, section in enumerate(item["summary"]):
            at = {**own, "summary_index": index}
            yield {"type": "response.reasoning_summary_part.added", **at, "part": {**section, "text": ""}}
            for piece in _pieces(section["text"], size):
                yield {"type": "response.reasoning_summary_text.delta", **at, "delta": piece}
            yield {"type": "response.reasoning_summary_text.done", **at, "text": section["text"]}
            yield {"type": "response.reasoning_summary_part.done", **at, "part": section}
    else:
        yield {"type": "response.output_item.added", "item": item}
    yield {"type": "response.output_item.done", "item": item}


def _content_events(content: dict[str, Any], at: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    kind = "output_text" if content["type"] == "output_text" else "refusal"
    field = "text" if kind == "output_text" else "refusal"
    more = {"logprobs": []} if kind == "output_text" else {}
    yield {"type": "response.content_part.added", **at, "part": {**content, field: ""}}
    for piece in _pieces(content[field], size):
        yield {"type": f"response.{kind}.delta", **at, "delta": piece, **more}
    yield {"type": f"response.{kind}.done", **at, field: content[field], **more}
    yield {"type": "response.content_part.done", **at, "part": content}


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]
