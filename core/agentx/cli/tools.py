"""`agentx tools`: what the model of an agent could call, whose it is, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._agents import plugin_options, tool_option
from ._command import command as make_command
from ._command import json_option
from ._exits import Exit

if TYPE_CHECKING:
    from ._agents import Choice


@make_command("tools")
@tool_option
@plugin_options
@json_option
def command(tools: tuple[str, ...], choice: Choice, as_json: bool) -> int:
    """List the tools an agent would have: those of plugins, and those given with -t."""
    from ._child import ask
    from ._screen import note, print_json

    found = ask("tools", choice, tools=list(tools))
    if as_json:
        print_json(found["tools"])
    else:
        _show(found["tools"])
    if found["later"]:
        note(f"({', '.join(found['later'])} may add more when an agent or a session is opened)", "dim")
    for name in found["clashes"]:
        note(f"two tools are called {name!r}: an agent would not start; rename one with @tool(name=…)")
    return Exit.TOOL if found["clashes"] else Exit.OK


def _show(tools: list[Mapping[str, Any]]) -> None:
    from ._screen import Column, out, print_table, styled

    if not tools:
        out().print(styled("an agent would have no tools (-t module:function adds one)"))
        return
    columns = [Column("tool", style="bold"), Column("owner", drop=1), Column("takes"), Column("description", drop=2)]
    rows = [
        [_name(one), one["owner"], _signature(one["schema"]), " ".join(one["description"].split())] for one in tools
    ]
    print_table(columns, rows)


def _name(tool: Mapping[str, Any]) -> str:
    marks = [mark for mark in ("deferred", "requires_approval") if tool[mark]]
    return f"{tool['name']} ({', '.join(marks).replace('_', ' ')})" if marks else str(tool["name"])


def _signature(schema: Mapping[str, Any]) -> str:
    """Return the parameters of a schema as `a: integer, b?: string`."""
    required = schema.get("required", [])
    properties: Mapping[str, Any] = schema.get("properties", {})
    return ", ".join([f"{name}{'' if name in required else '?'}: {_kind(one)}" for name, one in properties.items()])


def _kind(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    kind = schema.get("type")
    if kind == "array":
        return f"[{_kind(schema.get('items', {}))}]"
    if isinstance(kind, str):
        return kind
    choices = schema.get("enum") or schema.get("anyOf") or ()
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    return "|".join([_kind(one) if isinstance(one, Mapping) else repr(one) for one in choices]) or "any"
