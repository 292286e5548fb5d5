"""What runs in the child process: load the plugins one by one, say which is next, answer one task.

Everything is written to a file by path, line by line: a plugin may print to, close or replace any stream.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from agentx._config import Config, load_config
from agentx._errors import OrderError
from agentx._hookspecs import HOOKS
from agentx._members import Member, Offer
from agentx._offers import collect
from agentx._order import base_id
from agentx._plugin import Plugin
from agentx._plugins import Stack, _arranged, _is_fatal
from agentx._registration import Registration
from agentx._rows import Row, rows_of
from agentx._scan import Scan, scan
from agentx._why import why

from ._agents import Choice
from ._exits import describe, exit_of_error
from ._providers import check_keys, models

FALLBACK_HOOKS: Mapping[str, Any] = dict.fromkeys(HOOKS, ())


class Child:
    """The one question this process answers."""

    def __init__(self, question: Mapping[str, Any]) -> None:
        self.choice = Choice(**question["choice"])
        self.options: Mapping[str, Any] = question["options"]
        self.failed: Mapping[str, str] = question["failed"]
        self._file: str = question["said"]
        self._complaints: str = question["complaints"]

    def say(self, **line: Any) -> None:
        with open(self._file, "a", encoding="utf-8") as file:  # noqa: PTH123  # a path as text, from another process
            file.write(json.dumps(line, default=str) + "\n")

    def at(self, plugin: str) -> None:
        """Say what is next, so that whoever waits knows the culprit, and where its complaints begin."""
        self.say(at=plugin, complaints=os.path.getsize(self._complaints))  # noqa: PTH202  # a path as text

    def config(self) -> Config:
        if self.options.get("ignore_config"):  # it is broken; the listing goes on without it
            return load_config(False, environ={})
        choice = self.choice
        return load_config(choice.source, agent=choice.agent, autoload=choice.autoload, command_line=choice.settings)

    def load(self) -> Loaded:
        config, installed = self.config(), scan()
        registration = _Reported(self, config, installed)
        registration.run()
        return Loaded(registration, config, installed)


class _Reported(Registration):
    """A registration that says which plugin is next, and passes over those that ended a process before."""

    def __init__(self, child: Child, config: Config, installed: Scan) -> None:
        super().__init__(config, collect(config, installed, child.choice.used()), [])
        self._child = child

    def _add(self, offer: Offer) -> None:
        reason = self._child.failed.get(offer.id)
        if reason is not None:
            self._refuse(offer, "failed", reason)
            return
        self._child.at(offer.id)
        super()._add(offer)


class Loaded:
    """Everything that could be loaded, in its order."""

    def __init__(self, registration: Registration, config: Config, installed: Scan) -> None:
        members = registration.members
        rows = rows_of(members.values(), registration.refused.values())
        self.order_error: OrderError | None = None
        try:
            layers, arrangements = _arranged(members.values(), config)
        except OrderError as error:
            self.order_error = error
            layers, arrangements = FALLBACK_HOOKS, {}
        self.stack = Stack(members, layers, arrangements, rows, config, registration.manager, installed)
        refused = registration.refused.values()
        self.fatal = [one.id for one in refused if one.is_wanted and _is_fatal(one, config)]

    def ordered(self) -> Stack:
        if self.order_error is not None:
            raise self.order_error
        return self.stack


def rows(child: Child) -> Any:
    """The listing, and what would keep an agent from starting."""
    loaded = child.load()
    problems = [str(loaded.order_error)] if loaded.order_error else []
    return {"rows": [row.to_json() for row in loaded.stack.rows], "fatal": loaded.fatal, "problems": problems}


def order(child: Child) -> Any:
    """Every hook's layers, outermost first, with the reasons."""
    stack = child.load().ordered()
    return {hook: [_layer(stack, hook, index) for index in range(len(stack.layers[hook]))] for hook in HOOKS}


def _layer(stack: Stack, hook: str, index: int) -> dict[str, Any]:
    one, layer = stack.arrangements[hook].order[index], stack.layers[hook][index]
    reasons = [attrs.asdict(reason) for reason in why(stack.arrangements[hook], one)]
    return {
        "position": index + 1,
        "phase": one.phase,
        "id": one.plugin,
        "layer": one.label,
        "where": layer.where,
        "reasons": reasons,
    }


def reasons(child: Child) -> Any:
    """Why a plugin is where it is, or why it is outside or inside of another."""
    found = child.load().ordered().why(child.options["plugin"], child.options.get("other"))
    return [{"hook": hook, **attrs.asdict(reason)} for hook, reason in found]


def tools(child: Child) -> Any:
    """The tools of plugins and of the command line, with their owners."""
    from agentx._agent import APPLICATION

    from ._objects import load_tools

    found = [(tool, APPLICATION) for spec in child.options["tools"] for tool in load_tools(spec)]
    stack = child.load().stack
    later = [row.id for row in stack.rows if row.status == "enabled" and {"init", "session"} & {*row.hooks}]
    found += stack.tools
    names = [tool.name for tool, _ in found]
    clashes = sorted({name for name in names if names.count(name) > 1})
    return {"tools": [_tool(tool, owner) for tool, owner in found], "later": later, "clashes": clashes}


def _tool(tool: Any, owner: str) -> dict[str, Any]:
    return {
        "name": tool.name,
        "owner": owner,
        "description": tool.description,
        "schema": tool.schema,
        "deferred": tool.deferred,
        "requires_approval": bool(tool.requires_approval),
    }


def doctor(child: Child) -> Any:
    """The listing and where positions of the user's are turned around."""
    loaded = child.load()
    notes = [str(item) for one in loaded.stack.arrangements.values() for item in one.reversals]
    problems = [str(loaded.order_error)] if loaded.order_error else []
    listed = [row.to_json() for row in loaded.stack.rows]
    return {"rows": listed, "fatal": loaded.fatal, "problems": problems, "notes": list(dict.fromkeys(notes))}


def check(child: Child) -> Any:
    """What becomes of plugins when they are loaded and each of their hooks is fired."""
    loaded = child.load()
    wanted: Sequence[str] = child.options["plugins"]
    known = {row.id: row for row in loaded.stack.rows}
    rows = [row for row in known.values() if row.id in wanted or (not wanted and row.status != "disabled")]
    found = [_checked(child, loaded, row) for row in rows]
    missing = [Row(plugin, "missing", "neither installed nor configured") for plugin in wanted if plugin not in known]
    found += [_finding(row, {}, [row.reason]) for row in missing]
    if loaded.order_error is not None:
        broken = Row(loaded.order_error.plugin, "conflict")
        found.append(_finding(broken, {}, [str(loaded.order_error)]))
    return found


def _checked(child: Child, loaded: Loaded, row: Row) -> dict[str, Any]:
    member = loaded.stack.members.get(row.id)
    if member is None:
        return _finding(row, {}, [f"{row.status}: {row.reason}"])
    if not isinstance(member.instance, Plugin):
        return _finding(row, {}, [] if not member.implementations else ["a module: its hooks cannot be fired alone"])
    from agentx.testing import exercise

    child.at(row.id)
    needed = [loaded.stack.members[other].instance for other in _needed(loaded, member)]
    try:
        ran = exercise(member.instance, companions=needed)
    except (Exception, SystemExit) as error:
        return _finding(row, {}, [f"{type(error).__name__}: {error}"])
    problems = [ran.error] if ran.error else []
    problems += [f"the {hook} hook never ran" for hook in ran.silent]
    if ran.failures:
        problems.append(f"it failed {ran.failures} times without breaking the turn, see the log")
    return _finding(row, ran.hooks, problems)


def _needed(loaded: Loaded, member: Member) -> Sequence[str]:
    """Return the active plugins that one cannot do without: those it requires, and those that provide what it gets."""
    required = [base_id(text.partition(">")[0].partition("=")[0].strip()) for text in member.names("requires")]
    keys = set(member.trait("needs"))
    others = [one for one in loaded.stack.members.values() if one.id != member.id and isinstance(one.instance, Plugin)]
    return [one.id for one in others if base_id(one.id) in required or keys & set(one.trait("provides"))]


def _finding(row: Row, hooks: Mapping[str, int], problems: Sequence[str]) -> dict[str, Any]:
    return {
        "id": row.id,
        "ok": not problems,
        "status": row.status,
        "distribution": row.distribution,
        "version": row.version,
        "hooks": dict(hooks),
        "problems": list(problems),
    }


TASKS: Mapping[str, Callable[[Child], Any]] = {
    "rows": rows,
    "order": order,
    "reasons": reasons,
    "tools": tools,
    "models": models,
    "check_keys": check_keys,
    "doctor": doctor,
    "check": check,
}


def answer(question: Mapping[str, Any]) -> None:
    """Answer and end the process at once: threads and exit functions of plugins could keep it."""
    child = Child(question)
    try:
        child.say(answer=TASKS[question["task"]](child))
    except Exception as error:
        found = describe(error)
        notes: Sequence[str] = found.get("notes", [])
        line = {"message": found["message"], "code": found["code"], "exit_code": int(exit_of_error(error))}
        child.say(error={**line, "notes": notes})
    sys.stderr.flush()
    os._exit(0)
