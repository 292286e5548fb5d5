"""A server of Anthropic's Messages API that reads what it is sent: an invalid conversation gets 400 and the reason.

with messages_api(says(text("Hi")), says(call("c1", "add", a=1), stop="tool_use")) as server:
    ...                       # server.url, server.bodies[0]; a refusal is an error of the request, as it would be there

Every request is also held against the request types of the official SDK, in which an unknown key is a mistake, and
every answer against its response types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import httpx
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.content_block_param import ContentBlockParam
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming
from pydantic import BaseModel, TypeAdapter

from .wire import Answer, Request, WireServer, named, reply, sse

STREAMED: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsStreaming)
PLAIN: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)
BLOCK: TypeAdapter[Any] = TypeAdapter(ContentBlockParam)
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
ID = re.compile(r"[a-zA-Z0-9_-]+")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
SAMPLING = ("temperature", "top_p", "top_k")
BETA_KEYS: Mapping[str, str] = {"block_binding": "thinking-binding-controls-2026-08-01"}

Body = dict[str, Any]


# What a model says


def text(value: str, **more: Any) -> Body:
    return {"type": "text", "text": value, **more}


def thought(value: str, signature: str) -> Body:
    return {"type": "thinking", "thinking": value, "signature": signature}


def redacted(data: str) -> Body:
    return {"type": "redacted_thinking", "data": data}


def call(id: str, name: str, /, **arguments: Any) -> Body:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def searches(id: str, query: str) -> Body:
    return {"type": "server_tool_use", "id": id, "name": "web_search", "input": {"query": query}}


def found(id: str, *pages: Body) -> Body:
    return {"type": "web_search_tool_result", "tool_use_id": id, "content": list(pages)}


def page(url: str) -> Body:
    return {"type": "web_search_result", "url": url, "title": "A page", "encrypted_content": "ZW5j", "page_age": None}


def says(*blocks: Body, stop: str = "end_turn", usage: Mapping[str, Any] | None = None, **more: Any) -> Body:
    """A whole message."""
    counted = {"input_tokens": 10, "output_tokens": 5, **(usage or {})}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": list(blocks),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": counted,
        **more,
    }
    Message.model_validate(message)
    return message


def events(message: Body, size: int = 7) -> list[Body]:
    """The events in which a message is streamed, in pieces of `size` characters."""
    head = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    found: list[Body] = [{"type": "message_start", "message": head}]
    for index, block in enumerate(message["content"]):
        start, deltas = _pieces(block, size)
        found.append({"type": "content_block_start", "index": index, "content_block": start})
        found += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        found.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    used = {"output_tokens": message["usage"]["output_tokens"]}
    found += [{"type": "message_delta", "delta": delta, "usage": used}, {"type": "message_stop"}]
    for event in found:
        EVENT.validate_python(event)
    return found


def _pieces(block: Body, size: int) -> tuple[Body, list[Body]]:
    kind = block["type"]
    if kind == "text":
        cited = [{"type": "citations_delta", "citation": citation} for citation in block.get("citations") or ()]
        deltas = [{"type": "text_delta", "text": piece} for piece in _cut(block["text"], size)]
        return {"type": "text", "text": "", **({"citations": []} if cited else {})}, [*cited, *deltas]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _cut(block["thinking"], size)]
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signed]
    if kind in ("tool_use", "server_tool_use"):
        given = json.dumps(block["input"], separators=(",", ":"), ensure_ascii=False) if block["input"] else ""
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *_cut(given, size)]]
        return {**block, "input": {}}, deltas
    return block, []


def _cut(value: str, size: int) -> list[str]:
    return [value[at : at + size] for at in range(0, len(value), size)]


def error(status: int, kind: str, message: str = "said", headers: Mapping[str, str] | None = None) -> Answer:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return reply(status, {"request-id": "req_1", **(headers or {})}, body)


# What it is asked


@attrs.define
class Api:
    """Answers the n-th request with the n-th message, the last one again and again; or as a function says."""

    script: Sequence[Body | Answer] | Callable[[Body], Body | Answer]
    own: bool = True
    """Insists on what only Anthropic's server insists on: signatures."""
    bodies: list[Body] = attrs.field(factory=list)
    headers: list[dict[str, str]] = attrs.field(factory=list)
    refusals: list[str] = attrs.field(factory=list)
    signed: dict[str, str] = attrs.field(factory=dict)
    """Thinking this server has said, by signature."""
    url: str = ""

    def __call__(self, request: Request) -> Answer:
        body = request.json
        self.bodies.append(body)
        self.headers.append(request.headers)
        problem = self.problem(request)
        if problem:
            self.refusals.append(problem)
            return error(400, "invalid_request_error", problem)
        number = len(self.bodies) - 1
        script = self.script
        answer = script(body) if callable(script) else script[min(number, len(script) - 1)]
        if isinstance(answer, Answer):
            return answer
        self.sign(answer)
        return sse(*named(*events(answer))) if body.get("stream") else reply(200, {}, answer)

    def sign(self, message: Body) -> None:
        for block in message["content"]:
            if block["type"] == "thinking":
                self.signed[block["signature"]] = block["thinking"]
            elif block["type"] == "redacted_thinking":
                self.signed[block["data"]] = ""

    def problem(self, request: Request) -> str:
        if request.path.partition("?")[0] != "/v1/messages":
            return f"no such path: {request.path}"
        try:
            _check(request.json, request.headers, self.signed if self.own else None)
        except _Invalid as problem:
            return str(problem)
        return ""


@contextmanager
def messages_api(*script: Body | Answer | Callable[[Body], Body | Answer], own: bool = True) -> Iterator[Api]:
    """Start one on a free port and stop it; what it refused fails the test unless it looks for it itself."""
    api = Api(script[0] if callable(script[0]) else script, own)  # type: ignore[arg-type]
    with WireServer(api) as server:
        api.url = server.url
        yield api


class _Detour(httpx.AsyncHTTPTransport):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = httpx.URL(url)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        there = self._url
        request.url = request.url.copy_with(scheme=there.scheme, host=there.host, port=there.port)
        return await super().handle_async_request(request)


def detour(url: str) -> httpx.AsyncClient:
    """A client whose requests, to whatever host they go, arrive at a server on this machine."""
    return httpx.AsyncClient(transport=_Detour(url), timeout=None)


class _Invalid(Exception):
    pass


def _require(holds: object, why: str) -> None:
    if not holds:
        raise _Invalid(why)


def _check(body: Body, headers: Mapping[str, str], signed: Mapping[str, str] | None) -> None:
    version, betas = headers.get("anthropic-version"), headers.get("anthropic-beta", "").split(",")
    _require(version in ("2023-06-01", "2026-10-21"), "anthropic-version: header is required")
    _check_types(body, betas, is_new=version == "2026-10-21")
    _require(body["max_tokens"] >= 1, "max_tokens: must be at least 1")
    _check_thinking(body)
    messages, tools = body["messages"], body.get("tools", [])
    _require(messages, "messages: at least one message is required")
    _require(messages[0]["role"] == "user", "messages: first message must use the user role")
    marks = sum([json.dumps(part).count('"cache_control"') for part in (messages, tools, body.get("system", []))])
    _require(marks <= 4, f"a maximum of 4 blocks with cache_control may be provided, found {marks}")
    _check_tools(body, tools)
    _Conversation(messages, signed).check()
    if '"type": "file"' in json.dumps(messages):
        _require("files-api-2025-04-14" in betas, "file sources need the beta files-api-2025-04-14")


def _check_types(body: Body, betas: Sequence[str], *, is_new: bool) -> None:
    known = dict(body)
    if not is_new:
        for name in SAMPLING:
            known.pop(name, None)
    if "thinking" in known:
        known["thinking"] = dict(known["thinking"])
        for key, beta in BETA_KEYS.items():
            if known["thinking"].pop(key, None) is not None:
                _require(beta in betas, f"thinking.{key}: extra inputs are not permitted")
    adapter = STREAMED if known.get("stream") else PLAIN
    try:
        same = _plain(adapter.validate_python(known))
        blocks = [block for message in known["messages"] for block in message["content"]]
        parsed = [_plain(BLOCK.validate_python(block)) for block in blocks]
    except ValueError as problem:
        raise _Invalid(f"types: {problem}") from problem
    for name in known:
        _require(name in same, f"{name}: extra inputs are not permitted")
        if name != "messages":
            _require(same[name] == known[name], f"{name}: extra inputs are not permitted: {known[name]}")
    for block, validated in zip(blocks, parsed, strict=True):
        _require(_without_nulls(block) == _without_nulls(validated), f"extra inputs are not permitted: {block}")


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, str | bytes | int | float) or value is None:
        return value
    return [_plain(item) for item in value]


def _without_nulls(value: Any) -> Any:
    """What answers hold and requests leave out."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _check_thinking(body: Body) -> None:
    thinking = body.get("thinking", {})
    if thinking.get("type") == "enabled":
        _require(1024 <= thinking["budget_tokens"] < body["max_tokens"], "thinking.budget_tokens: out of range")
        choice = body.get("tool_choice", {}).get("type", "auto")
        _require(choice in ("auto", "none"), "thinking may not be enabled when tool_choice forces tool use")


def _check_tools(body: Body, tools: Sequence[Body]) -> None:
    names = [tool["name"] for tool in tools]
    _require(len(names) == len(set(names)), "tools: tool names must be unique")
    _require(all(NAME.fullmatch(name) for name in names), "tools: a name is not allowed")
    choice = body.get("tool_choice")
    _require(choice is None or names, "tool_choice may only be specified while providing tools")
    if choice and choice["type"] == "tool":
        _require(choice["name"] in names, f"tool {choice['name']!r} not found in provided tools")
    used = any(b["type"] in ("tool_use", "tool_result") for m in body["messages"] for b in m["content"])
    _require(names or not used, "requests which include tool_use or tool_result blocks must define tools")


@attrs.define
class _Conversation:
    messages: Sequence[Body]
    signed: Mapping[str, str] | None
    ids: set[str] = attrs.field(factory=set)
    waiting: set[str] = attrs.field(factory=set)
    """Calls of the message before."""
    server_calls: dict[str, bool] = attrs.field(factory=dict)
    """Calls of the server's tools, and whether each has its result."""

    def check(self) -> None:
        for at, message in enumerate(self.messages):
            is_last = at == len(self.messages) - 1
            content = message["content"]
            _require(content, f"messages.{at}: content must not be empty")
            if at:
                _require(message["role"] != self.messages[at - 1]["role"], f"messages.{at}: roles must alternate")
            for place, block in enumerate(content):
                where = f"messages.{at}.content.{place}"
                self.block(where, message["role"], block)
            if message["role"] == "user":
                self.results(at, content)
            else:
                self.answer(at, content, is_last)
        _require(not self.waiting, "the last message's tool_use blocks have no results")

    def block(self, where: str, role: str, block: Body) -> None:
        kind = block["type"]
        if kind == "text":
            _require(block["text"].strip(), f"{where}: text content blocks must contain non-whitespace text")
            _require(role == "assistant" or not block.get("citations"), f"{where}: citations in a user message")
        elif kind in ("image", "document", "tool_result"):
            _require(role == "user", f"{where}: {kind} is not allowed in an assistant message")
        elif kind in ("thinking", "redacted_thinking"):
            _require(role == "assistant", f"{where}: {kind} in a user message")
            self.signature(where, block)
        elif kind == "tool_use":
            _require(ID.fullmatch(block["id"]) and NAME.fullmatch(block["name"]), f"{where}: id or name not allowed")
            _require(block["id"] not in self.ids, f"{where}: tool_use ids must be unique")
            self.ids.add(block["id"])
        elif kind.endswith("_tool_use"):
            self.server_calls[block["id"]] = False
        elif kind.endswith("_tool_result"):
            owner = block["tool_use_id"]
            _require(owner in self.server_calls, f"{where}: {kind} without its server_tool_use")
            self.server_calls[owner] = True

    def signature(self, where: str, block: Body) -> None:
        if self.signed is None:
            return
        if block["type"] == "redacted_thinking":
            _require(block["data"] in self.signed, f"{where}: invalid data in redacted_thinking block")
        else:
            genuine = self.signed.get(block["signature"]) == block["thinking"]
            _require(genuine, f"{where}: invalid signature in thinking block")

    def results(self, at: int, content: Sequence[Body]) -> None:
        kinds = [block["type"] == "tool_result" for block in content]
        _require(kinds == sorted(kinds, reverse=True), f"messages.{at}: tool_result blocks must come first")
        given = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        _require(len(given) == len(set(given)), f"messages.{at}: each tool_use must have a single result")
        _require(set(given) <= self.waiting, f"messages.{at}: unexpected tool_use_id found in tool_result blocks")
        _require(set(given) == self.waiting, f"messages.{at}: tool_use ids were found without tool_result blocks")
        for block in content:
            if block.get("is_error"):
                _require(block.get("content"), f"messages.{at}: content cannot be empty if is_error is true")
        self.waiting = set()

    def answer(self, at: int, content: Sequence[Body], is_last: bool) -> None:
        last = content[-1]
        self.waiting = {block["id"] for block in content if block["type"] == "tool_use"}
        if is_last:
            trimmed = last["type"] != "text" or last["text"] == last["text"].rstrip()
            _require(trimmed, "final assistant content cannot end with trailing whitespace")
            return
        thinks = last["type"] in ("thinking", "redacted_thinking")
        _require(not thinks, f"messages.{at}: the final block in an assistant message cannot be thinking")
        callers = {(block.get("caller") or {}).get("tool_id") for block in content}
        loose = [id for id, done in self.server_calls.items() if not done and id not in callers]
        _require(not loose, f"messages.{at}: {loose} without a corresponding result block")
