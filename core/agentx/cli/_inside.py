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

from .._config import Config, load_config
from .._errors import AgentxError, OrderError
from .._hookspecs import HOOKS
from .._lookup import provider
from .._members import Offer
from .._offers import collect
from .._plugins import Stack, _arranged, _is_fatal
from .._registration import Registration
from .._rows import rows_of
from .._scan import MODELS, Scan, scan
from .._why import why
from ._agents import Choice
from ._exits import describe, exit_of_error

FALLBACK_HOOKS: Mapping[str, Any] = {hook: () for hook in HOOKS}


class Child:
    """The one question this process answers."""

    def __init__(self, question: Mapping[str, Any]) -> None:
        self.choice = Choice(**{**question["choice"], "settings": tuple(question["choice"]["settings"])})
        self.options: Mapping[str, Any] = question["options"]
        self.failed: Mapping[str, str] = question["failed"]
        self._file: str = question["said"]

    def say(self, **line: Any) -> None:
        with open(self._file, "a", encoding="utf-8") as file:  # noqa: PTH123  # a path as text, from another process
            file.write(json.dumps(line, default=str) + "\n")

    def at(self, plugin: str) -> None:
        """Say what is next, so that whoever waits knows the culprit."""
        self.say(at=plugin)

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
        self.stack = Stack(members, layers, arrangements, rows, config, registration.manager, installed, {})
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
    from .._agent import APPLICATION
    from ._objects import load_tools

    found = [(tool, APPLICATION) for spec in child.options["tools"] for tool in load_tools(spec)]
    stack = child.load().stack
    later = [row.id for row in stack.rows if row.status == "enabled" and {"init", "session"} & {*row.hooks}]
    return {"tools": [_tool(tool, owner) for tool, owner in (*found, *stack.tools)], "later": later}


def _tool(tool: Any, owner: str) -> dict[str, Any]:
    return {
        "name": tool.name,
        "owner": owner,
        "description": tool.description,
        "schema": tool.schema,
        "deferred": tool.deferred,
        "requires_approval": bool(tool.requires_approval),
    }


def models(child: Child) -> Any:
    """What every provider lists, and which could not be asked."""
    installed = scan()
    found: list[dict[str, Any]] = []
    problems: list[dict[str, Any]] = []
    for prefix, entry in installed.group(MODELS).items():
        known = {"provider": prefix, "distribution": entry.distribution, "version": entry.version}
        try:
            if prefix in child.failed:
                raise AgentxError(child.failed[prefix])
            child.at(prefix)
            made = provider(prefix, installed)
            listed = [{**attrs.asdict(info), **known} for info in made.models()]
        except (Exception, SystemExit) as error:
            problems.append({**known, "reason": str(error)})
            continue
        found += [{**info, "pulls": callable(getattr(made, "pull", None))} for info in listed]
    for problem in installed.problems:
        if any(claim.group == MODELS for claim in problem.claims):
            problems.append({"provider": problem.name, "distribution": "", "version": "", "reason": problem.reason})
    return {"models": found, "problems": problems}


def doctor(child: Child) -> Any:
    """The listing and where positions of the user's are turned around."""
    loaded = child.load()
    notes = [str(item) for one in loaded.stack.arrangements.values() for item in one.reversals]
    problems = [str(loaded.order_error)] if loaded.order_error else []
    listed = [row.to_json() for row in loaded.stack.rows]
    return {"rows": listed, "fatal": loaded.fatal, "problems": problems, "notes": list(dict.fromkeys(notes))}


TASKS: Mapping[str, Callable[[Child], Any]] = {
    "rows": rows,
    "order": order,
    "reasons": reasons,
    "tools": tools,
    "models": models,
    "doctor": doctor,
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
