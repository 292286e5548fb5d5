"""One small conversation, in which every hook has its place, run with and without a plugin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from agentx._codec import to_plain
from agentx._errors import HookError
from agentx._events import Event, TextDeltaEvent
from agentx._host import is_cancellation
from agentx._messages import Message, ModelRequest
from agentx._onion import collapse
from agentx._plugin import Plugin
from agentx._result import RunResult
from agentx._session import Session
from agentx._tools import Tool, tool

from ._history import HistoryError, check_history
from ._models import FunctionModel, Reply, call
from ._watch import Entry, Function, Watch, WatchedAgent

LOOKUP = "agentx_lookup"


@attrs.frozen
class Subject:
    """A plugin under test, and what there is to know about it.

    Args:
        make: returns a new instance.
        companions: returns the plugins it needs, new ones.
        deps: the application's `deps`.
        tools: tools of the application.
        prompt: the user's text; `{word}` differs between sessions.
        reply: answers a request, in place of the scenario's own model; `None` leaves it to that.
        short_circuits: hooks in which it may return a result without calling `call_next`.
        changes: hooks in which it returns another result than `call_next` did.
        handles_errors: hooks in which it may end with a result, or another error, although `call_next` raised.
        held_seconds: how long its code may keep the event loop.
    """

    make: Callable[[], Plugin[Any]]
    companions: Callable[[], Sequence[Plugin[Any]]] = tuple
    deps: Any = None
    tools: Sequence[Tool | Callable[..., Any]] = ()
    prompt: str = "Please look up {word}."
    reply: Callable[[ModelRequest], Reply | None] = lambda request: None
    short_circuits: Sequence[str] = ()
    changes: Sequence[str] = ()
    handles_errors: Sequence[str] = ()
    held_seconds: float = 0.05


@tool(name=LOOKUP)
async def lookup(word: str) -> str:
    """Return what is known of a word.

    Args:
        word: the word.
    """
    return f"The {word} grows slowly."


WORDS = (
    "walnut",
    "willow",
    "linden",
    "poplar",
    "laurel",
    "acacia",
    "baobab",
    "banyan",
    "cherry",
    "citrus",
    "cashew",
    "almond",
    "spruce",
    "medlar",
    "mallow",
    "orange",
    "papaya",
    "loquat",
    "pecans",
    "quince",
)
"""What sessions are told apart by: of one length, so that counts of characters and tokens are the same for all."""


def word_in(text: str) -> str:
    """Return the first of the words that a text has, else the first of all."""
    found = [(text.find(word), word) for word in WORDS if word in text]
    return min(found)[1] if found else WORDS[0]


def conversation(request: ModelRequest) -> Reply:
    """Look a word up, twice at once, then answer; answer at once where there is no tool."""
    asked = [index for index, message in enumerate(request.messages) if message.role == "user"]
    last = asked[-1] if asked else 0
    word = word_in("".join([message.text for message in request.messages[last:] if message.role == "user"]))
    answered = any(message.role == "tool" for message in request.messages[last:])
    if answered or not any(spec.name == LOOKUP for spec in request.tools):
        return f"Here is what I found about {word}: it grows slowly."
    return ["Let me look that up. ", call(LOOKUP, word=word), call(LOOKUP, word=f"{word} tree")]


@attrs.define
class Run:
    """What one run of the scenario showed."""

    agent: WatchedAgent
    watch: Watch
    model: FunctionModel
    result: RunResult[str] | None = None
    error: BaseException | None = None
    streamed: str = ""
    history: tuple[Message, ...] = ()
    events: tuple[Event, ...] = ()
    states: dict[str, Any] = attrs.Factory(dict)

    @property
    def entries(self) -> list[Entry]:
        return self.watch.entries

    @property
    def blames(self) -> HookError | None:
        """The error by which the core says that a watched plugin broke the contract."""
        error = self.error
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return error if isinstance(error, HookError) and error.plugin in self.watch.plugins else None


def plugin_ids(plugin: Any) -> set[str]:
    """Return the id of a plugin, and of those it stands for."""
    ids = {plugin.id}
    if isinstance(plugin, Plugin):
        for child in plugin.plugins():
            ids |= plugin_ids(child)
    return ids


def build(
    subject: Subject,
    plugin: Plugin[Any] | None,
    *,
    inside: tuple[str, Function] | None = None,
    delta_size: int = 4,
) -> Run:
    """Return an agent for the scenario, with the plugin or without it, that has not run yet."""
    watch = Watch(frozenset(plugin_ids(plugin)) if plugin is not None else frozenset())

    def answer(request: ModelRequest) -> Reply:
        own = subject.reply(request)
        return conversation(request) if own is None else own

    model = FunctionModel(answer, name="scenario", delta_size=delta_size)
    agent = WatchedAgent(
        watch,
        model,
        inside=inside,
        name="scenario",
        instructions="Be brief.",
        tools=[lookup, *subject.tools],
        plugins=[*subject.companions(), *([plugin] if plugin is not None else [])],
        autoload="none",
        config=False,
    )
    return Run(agent, watch, model)


async def play(run: Run, subject: Subject, *, stream: bool = False, body_error: Exception | None = None) -> Run:
    """Open agent and session, run one turn, close both; what goes wrong is noted and not raised."""
    prompt = subject.prompt.format(word=WORDS[0])
    try:
        async with run.agent, run.agent.session("scenario", user="somebody", deps=subject.deps) as session:
            try:
                if stream:
                    await _stream(run, session, prompt)
                else:
                    run.result = await session.run(prompt)
            finally:
                note(run, session)
            if body_error is not None:
                raise body_error
    except BaseException as error:
        run.error = collapse(error)
        if not isinstance(run.error, Exception):
            raise
    return run


async def _stream(run: Run, session: Session[str], prompt: str) -> None:
    async with session.stream(prompt) as stream:
        async for event in stream:
            if isinstance(event, TextDeltaEvent):
                run.streamed += event.text
    run.result = stream.result


def note(run: Run, session: Session[str]) -> None:
    """Keep what there is to see of a session while it is open."""
    run.history = tuple(session.history)
    run.events = tuple(session.events)
    run.states = states_of(run.agent, session)


def states_of(agent: WatchedAgent, session: Session[str]) -> dict[str, Any]:
    """Return the states of the watched plugins, by id."""
    return {
        plugin_id: session.state.of(instance)
        for plugin_id, instance in agent.stack().instances.items()
        if plugin_id in agent.watched and getattr(instance, "state_class", None) is not None
    }


def plain_state(state: Any) -> dict[str, Any]:
    """Return the fields of a state as JSON; secret ones are left out."""
    fields = [field.name for field in attrs.fields(type(state)) if not field.metadata.get("secret")]
    return {name: to_plain(getattr(state, name)) for name in fields}


def history_problem(messages: Sequence[Message]) -> str:
    """Say what is wrong with a history, if anything."""
    try:
        check_history(messages)
    except HistoryError as error:
        return str(error)
    return ""


def was_cancelled(error: BaseException | None) -> bool:
    return error is not None and is_cancellation(collapse(error))


def told(error: BaseException | None) -> str:
    """Return an error with its notes as one line, and of a group what is in it."""
    if error is None:
        return "no error"
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys([told(inner) for inner in error.exceptions]))
    notes = "".join([f" ({text})" for text in getattr(error, "__notes__", ())])
    return f"{type(error).__name__}: {error}{notes}"
