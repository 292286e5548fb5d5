"""What a request differs in from a recorded one, as text for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from typing import Any

from agentx._codec import to_plain
from agentx._messages import Message, ModelRequest, RequestPrefix, TextPart, ToolCall, ToolResult, ToolSpec
from agentx._recording import RecordedCall, how_changed

MOST = 60
"""Lines of a difference that are shown."""
WIDTH = 200


def differences(request: ModelRequest, call: RecordedCall) -> list[str]:
    """Return one text for each of instructions, tools, settings, output, context and messages that is different."""
    found: list[str] = []
    if call.sent.prefix is not None:
        found += _prefix(request, call.sent.prefix)
    if call.sent.context is not None:
        found += _diff("added context", _paragraphs(call.sent.context), _paragraphs(request.context))
    return found + _messages(request, call)


def _prefix(request: ModelRequest, recorded: RequestPrefix) -> Iterator[str]:
    yield from _diff("instructions", recorded.instructions.splitlines(), request.instructions.splitlines())
    if tuple(recorded.tools) != tuple(request.tools):
        yield from _diff("tools", _tools(recorded.tools), _tools(request.tools))
    yield from _diff("settings", _fields(recorded.settings), _fields(request.settings))
    yield from _diff("output", _fields(recorded.output), _fields(request.output))


def _messages(request: ModelRequest, call: RecordedCall) -> list[str]:
    if how_changed(request.messages, call.history) == call.sent.messages:
        return []
    then, now = _lines(call.history), _lines(request.messages)
    if call.sent.messages is None:
        return list(_diff("messages", then, now))
    if call.asked_by is not None:
        return ["messages: of a plugin's own call the recording has a hash only, and it differs; now:", *_cut(now)]
    hashed = "messages: layers had changed them, of which the recording has a hash only, and it differs; "
    return [f"{hashed}the history (-) and now (+):", *_diff("messages", then, now)]


def _diff(what: str, then: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    if then == now:
        return
    lines = list(unified_diff(then, now, lineterm="", n=2))[2:]
    yield "\n".join([f"{what}:", *_cut(lines)])


def _cut(lines: Sequence[str]) -> list[str]:
    shown = [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines[:MOST]]
    left = len(lines) - len(shown)
    return [f"  {line}" for line in shown] + ([f"  … {left} more lines"] if left else [])


def _paragraphs(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in [*text.splitlines(), ""]]


def _tools(tools: Sequence[ToolSpec]) -> list[str]:
    return [line for tool in tools for line in [tool.name, *_indented(tool.description), *_json(tool.schema)]]


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


def _json(value: Any) -> list[str]:
    return _indented(json.dumps(to_plain(value), indent=2, sort_keys=True, ensure_ascii=False))


def _fields(value: Any) -> list[str]:
    if value is None:
        return []
    plain: Any = to_plain(value)
    return [
        f"{name} = {json.dumps(item, sort_keys=True)}" for name, item in plain.items() if item not in (None, [], {})
    ]


def _lines(messages: Sequence[Message]) -> list[str]:
    """Return messages as lines, each part begun by whose it is."""
    found: list[str] = []
    for number, message in enumerate(messages, 1):
        found.append(f"{number} {message.role}")
        for part in message.parts:
            found += _indented(_part(part))
    return found


def _part(part: Any) -> str:
    if isinstance(part, TextPart) and part.data is None:
        return str(part.text) or "(empty)"
    if isinstance(part, ToolCall):
        return f"call {part.id}: {part.name}({part.arguments})"
    if isinstance(part, ToolResult):
        return f"result {part.call_id}, {part.status}:\n" + "\n".join([_part(item) for item in part.content])
    return json.dumps(to_plain(part), sort_keys=True, ensure_ascii=False)
