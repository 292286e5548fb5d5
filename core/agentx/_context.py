"""What a layer sees: one context per level, each carrying those above it.

A context is one layer's view of a frame, so every verb knows who used it: it is named in events, refused to observers,
and charged to the right plugin.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast, overload

import anyio
import attrs

from ._approval import Decision, approve
from ._codec import from_plain, to_plain
from ._errors import CodecError, HookError, ServiceError, StateError
from ._events import Event, PluginEvent, PromptPrefixChanged, StateUpdated, ToolProgress
from ._frames import AgentFrame, ModelFrame, SessionFrame, Stop, ToolFrame, TurnFrame
from ._history import History
from ._host import spawn
from ._ledger import Ledger
from ._messages import (
    Message,
    Messages,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    TextPart,
    ToolResult,
    UserInput,
    user_message,
)
from ._tools import Tool, tool

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    from ._models import Model
    from ._onion import CallNext
    from ._plugin import Plugin
    from ._result import RunResult
    from ._session import Session

    Deps = DefaultTypeVar("Deps", default=Any)
else:
    Deps = TypeVar("Deps")

T = TypeVar("T")
S = TypeVar("S")
_MISSING = object()
_EVENT_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_READ_ONLY = frozenset({"verify", "route", "cache", "retry", "attempt"})


class Key(Generic[T]):
    """A typed name for a service that has no type of its own. Two keys of one name are the same key."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.name == self.name

    def __hash__(self) -> int:
        return hash(("agentx.Key", self.name))

    def __repr__(self) -> str:
        return f"Key({self.name!r})"


def key_name(key: Any) -> str:
    """Return how a message calls the key of a service."""
    return key.__qualname__ if isinstance(key, type) else repr(key)


class AgentContext:
    """The agent."""

    __slots__ = ("_entry", "_frame")
    _frame: Any
    _entry: CallNext

    def __init__(self, frame: Any, entry: CallNext) -> None:
        self._frame = frame
        self._entry = entry

    @property
    def _agent(self) -> AgentFrame:
        return self._frame  # type: ignore[no-any-return]  # the frame of this level; no cast, this is hot

    @property
    def _by(self) -> str:
        return self._entry.layer.plugin

    def _changes(self, verb: str) -> None:
        layer = self._entry.layer
        if layer.phase == "observe":
            fix = "observers change nothing; give it another phase"
            message = (
                f"{layer.plugin} is an observer and used ctx.{verb} in its {layer.hook} hook at {layer.where}: {fix}"
            )
            raise HookError(message, plugin=layer.plugin, hook=layer.hook)

    @property
    def agent(self) -> Any:
        """The `Agent` itself."""
        return self._agent.agent

    @property
    def agent_name(self) -> str:
        return self._agent.name

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of the agent as it was merged; plugins have their own as fields."""
        return self._agent.config

    @property
    def closing(self) -> str | None:
        """Why this level closes: `ended`, `failed` or `cancelled`; `None` while it is open."""
        closing: str | None = self._frame.closing
        return closing

    def provide(self, key: type[T] | Key[T], value: T) -> None:
        """Make a live object available at this level and below. Never stored.

        Raises:
            ServiceError: the object is `None`, which stands for nothing provided.
        """
        if value is None:
            raise ServiceError(f"{self._by} provided None as {key_name(key)}: provide an object, or nothing")
        self._frame.provide(key, value)

    @overload
    def get(self, key: type[T] | Key[T]) -> T: ...
    @overload
    def get(self, key: type[T] | Key[T], default: S) -> T | S: ...
    def get(self, key: type[T] | Key[T], default: Any = _MISSING) -> Any:
        """Return what was provided under `key` at this level or above.

        Raises:
            ServiceError: nobody provides it, and there is no default.
        """
        found = self._frame.service(key)
        if found is not None:
            return found
        if default is not _MISSING:
            return default
        raise ServiceError(
            f"{self._by} needs {key_name(key)}, which nobody provides here: "
            "declare it in `needs`, so that loading says who could"
        )

    def resolve_model(self, model_id: str) -> Model:
        """Return the model that an id stands for; does no I/O. Good in `init` for ids that come from a configuration.

        Raises:
            UnknownProviderError: no plugin serves it; the message names what to install.
            ConfigError: the settings of its provider are wrong.
        """
        return self._agent.resolve(model_id)  # type: ignore[no-any-return]  # what providers make

    def _owners_toolbox(self) -> Any:
        return self._agent.toolbox

    def _change_tools(self, owner: str, add: Sequence[Tool], remove: Sequence[str]) -> None:
        self._agent.toolbox.change(add, remove, owner)
        for session in self._agent.sessions.values():
            session.change_tools(owner, add, remove)

    def register_tool(self, item: Tool | Callable[..., Any]) -> None:
        """Add a tool at this level; it counts from the next model call on and vanishes with the level.

        Raises:
            ToolNameError: the name is taken.
        """
        self._changes("register_tool")
        self._change_tools(self._by, [_as_tool(item)], ())

    def unregister_tool(self, name: str) -> None:
        """Remove a tool that was registered at this level."""
        self._changes("unregister_tool")
        self._change_tools(self._by, (), [name])

    def set_tools(self, owner: str, tools: Sequence[Tool | Callable[..., Any]]) -> None:
        """Replace all tools of `owner` at this level, such as those of one server, in one step."""
        self._changes("set_tools")
        self._change_tools(owner, [_as_tool(item) for item in tools], self._owners_toolbox().owned_by(owner))

    def add_instructions(self, text: str) -> None:
        """Add a section to the instructions at this level; sections stand in the order of their plugins' ids."""
        self._changes("add_instructions")
        self._agent.sections.append((self._by, text))
        self._agent.sections_version += 1

    def start_soon(self, fn: Callable[[], Awaitable[Any]], *, on_error: str = "log", name: str | None = None) -> None:
        """Run `fn` in the background until this level closes, which waits for it.

        Args:
            fn: a coroutine function without arguments.
            on_error: `log` notes that it failed, `fail` marks the level failed.
            name: for logs; by default the function's.
        """
        frame = self._frame
        spawn(frame if isinstance(frame, AgentFrame | SessionFrame) else frame.session, fn, self._by, on_error, name)

    @property
    def ledger(self) -> Ledger:
        """Usage, and the limits in force; a limit registered here holds for this level."""
        return Ledger(self._frame, self._by, self._changes)

    def shield(self, seconds: float) -> anyio.CancelScope:
        """Let an after-part await for so long although its turn or level is being cancelled: `with ctx.shield(5):`."""
        return anyio.move_on_after(seconds, shield=True)


class StateView:
    """The states of a session's plugins, to read."""

    __slots__ = ("_frame",)

    def __init__(self, frame: SessionFrame) -> None:
        self._frame = frame

    def of(self, plugin: Plugin[S]) -> S:
        """Return the state of `plugin` in this session: one frozen instance, replaced by `ctx.update`.

        Raises:
            StateError: the plugin declares no state.
        """
        return cast(S, state_of(self._frame, plugin))


@cache
def _reducers(cls: type) -> tuple[dict[str, Any], frozenset[str]]:
    """Return how each field of a state class is merged, and which are secret."""
    fields = attrs.fields(cls)
    reducers = {field.name: field.metadata.get("reduce") for field in fields}
    return reducers, frozenset([field.name for field in fields if field.metadata.get("secret")])


def state_of(frame: SessionFrame, plugin: Plugin[Any], plugin_id: str = "") -> Any:
    plugin_id = plugin_id or instance_id(frame, plugin)
    state = frame.states.get(plugin_id)
    cls = type(plugin).state_class
    if cls is None:
        raise StateError(f"{plugin_id} has no state: declare it as `class {type(plugin).__name__}(Plugin[MyState])`")
    if not isinstance(state, cls):
        state = _restored(cls, state, plugin_id) if state else cls()
        frame.states[plugin_id] = state
    return state


def _restored(cls: type[Any], values: Mapping[str, Any], plugin_id: str) -> Any:
    """Return the state that a log tells of; a log on disk has JSON values, one in memory those that were given.

    Raises:
        StateError: it does not fit the class as it is now.
    """
    try:
        return from_plain(to_plain(values), cls)
    except CodecError as error:
        raise StateError(f"{plugin_id}: its stored state does not fit {cls.__name__}: {error}") from error


def _check_storable(value: Any, what: str) -> None:
    """Refuse what no log can hold, where it is written and not where it is read.

    Raises:
        StateError: naming whose value it is.
    """
    try:
        to_plain(value)
    except CodecError as error:
        raise StateError(f"{what} cannot be stored: {error}") from None


def _check_state(value: Any, what: str) -> None:
    """Refuse what could change behind the log's back.

    Raises:
        StateError: naming whose value it is, and what to use.
    """
    if isinstance(value, list | dict | set | bytearray):
        kind = type(value).__name__
        raise StateError(f"{what} is a {kind}, which can change unseen: use a tuple, a frozenset or a frozen mapping")
    _check_storable(value, what)


def instance_id(frame: SessionFrame, plugin: Plugin[Any]) -> str:
    found = frame.agent.instance_ids.get(id(plugin))
    if found is None and frame.parent is not None:
        return instance_id(frame.parent.session, plugin)
    return found or plugin.id


class SessionContext(AgentContext):
    """The session, and its agent."""

    __slots__ = ()

    @property
    def _agent(self) -> AgentFrame:
        return self._frame.agent  # type: ignore[no-any-return]  # the frame of this level; no cast, this is hot

    @property
    def _session(self) -> SessionFrame:
        return self._frame.session  # type: ignore[no-any-return]  # the frame of this level; no cast, this is hot

    @property
    def session(self) -> Session[Any]:
        """The `Session` itself."""
        return cast("Session[Any]", self._session.public)

    @property
    def session_id(self) -> str:
        return self._session.id

    @property
    def user(self) -> str | None:
        return self._session.user

    @property
    def is_resumed(self) -> bool:
        """Whether this session has turns from before it was opened."""
        return self._session.is_resumed

    @property
    def deps(self) -> Any:
        """What the application gave as `deps`."""
        return self._session.deps

    @property
    def path(self) -> tuple[str, ...]:
        """The call ids that lead to this sub-agent's session; empty for a session of its own."""
        return self._session.path

    @property
    def state(self) -> StateView:
        return StateView(self._session)

    def update(self, plugin: Plugin[Any], **changes: Any) -> None:
        """Change fields of a plugin's state: a `reduced` one gets `fn(old, value)`, any other is replaced.

        Raises:
            StateError: an unknown field, or a replaced field that overlapping tool calls update.
        """
        session, plugin_id = self._session, instance_id(self._session, plugin)
        state = state_of(session, plugin, plugin_id)
        reducers, secret = _reducers(type(state))  # type: ignore[arg-type]  # a class is hashable
        for name, value in changes.items():
            reduce = reducers.get(name, _MISSING)
            if reduce is _MISSING:
                raise StateError(f"{plugin_id}: {type(state).__name__} has no field {name!r}")
            if reduce is None:
                self._alone(plugin_id, name)
            else:
                changes[name] = reduce(getattr(state, name), value)
            _check_state(changes[name], f"{plugin_id}: the value of {name!r}")
        session.states[plugin_id] = type(state)(**{name: getattr(state, name) for name in reducers} | changes)
        if secret:
            changes = {name: value for name, value in changes.items() if name not in secret}
        session.record(StateUpdated, plugin_id, changes)
        session.deliver_soon()

    def _alone(self, plugin_id: str, field: str) -> None:
        """Refuse a replaced field to overlapping calls; only a tool context knows its call."""

    def emit(self, name: str, **data: Any) -> None:
        """Report an event of kind `plugin.<id>.<name>`; `data` is JSON. It is stored.

        Raises:
            StateError: the name is none, or the data cannot become JSON.
        """
        if not _EVENT_NAME.fullmatch(name):
            raise StateError(f"{self._by}: an event's name is lower-case words with dots, not {name!r}")
        _check_storable(data, f"{self._by}: the data of event {name!r}")
        self._session.record(PluginEvent, self._by, name, data)
        self._session.deliver_soon()

    def filter_events(self, change: Callable[[Event], Event]) -> None:
        """Let `change` rewrite every event of this session before it is stored or delivered.

        For redaction only: it keeps what must not be written down out of the log, listeners and spans.
        """
        layer = self._entry.layer
        if layer.phase != "redact":
            raise HookError(
                f"{layer.plugin} used ctx.filter_events in phase {layer.phase}: only a plugin of phase redact may",
                plugin=layer.plugin,
                hook=layer.hook,
            )
        self._session.filters = (*self._session.filters, change)

    def _owners_toolbox(self) -> Any:
        return self._session.toolbox

    def _change_tools(self, owner: str, add: Sequence[Tool], remove: Sequence[str]) -> None:
        session = self._session
        session.toolbox.change(add, remove, owner)
        session.change_tools(owner, add, remove)

    def add_instructions(self, text: str) -> None:
        """Add a section to the instructions at this level; sections stand in the order of their plugins' ids."""
        self._changes("add_instructions")
        session = self._session
        session.sections = [*(session.sections or ()), (self._by, text)]
        session.refresh_prefix()
        session.record(PromptPrefixChanged, self._by, "instructions")


class TurnContext(SessionContext):
    """The turn, and everything above it."""

    __slots__ = ()

    @property
    def is_resumed(self) -> bool:
        """Whether this turn goes on after it had paused, or after its process had ended."""
        return self._turn.is_resumed

    @property
    def _turn(self) -> TurnFrame:
        return self._frame.turn  # type: ignore[no-any-return]  # the frame of this level; no cast, this is hot

    @property
    def closing(self) -> str | None:
        return self._session.closing

    @property
    def input(self) -> Message:
        """The user's message; replaceable (text, parts or a message) before `call_next`."""
        return self._turn.input

    @input.setter
    def input(self, value: Message | UserInput) -> None:
        self._changes("input")
        self._refuse_after_verify("input")
        if self._turn.committed:
            raise HookError(
                f"{self._by} replaced ctx.input after it was committed: do it before call_next in a turn hook"
            )
        self._turn.input = value if isinstance(value, Message) else user_message(value)

    def _refuse_after_verify(self, what: str) -> None:
        layer = self._entry.layer
        if layer.phase in _READ_ONLY:
            raise HookError(
                f"{layer.plugin} changed ctx.{what} in phase {layer.phase}: what was verified is what happens; "
                "change it in phase prepare or redact",
                plugin=layer.plugin,
                hook=layer.hook,
            )

    @property
    def output(self) -> Message | None:
        """The final answer, once there is one."""
        return self._turn.output

    @property
    def result(self) -> RunResult[Any]:
        """The turn's result as it stands: what a turn layer returns when its `call_next` did not."""
        return self._turn.result()

    @property
    def turn_id(self) -> str:
        return self._turn.turn_id

    @property
    def turn_index(self) -> int:
        return self._turn.index

    @property
    def started_at(self) -> datetime:
        return datetime.fromtimestamp(self._turn.started_at, UTC)

    @property
    def trace_id(self) -> str:
        return self._turn.trace_id

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the application gave `run` as `metadata`."""
        return self._turn.metadata or {}

    @property
    def events(self) -> Sequence[Event]:
        """The stored events of this turn so far, oldest first."""
        turn = self._turn
        return turn.session.log.events[turn.log_start :]

    @property
    def limits(self) -> Mapping[str, Any]:
        """What the application gave `run` as `limits`."""
        return self._turn.limit_settings or {}

    @property
    def deps(self) -> Any:
        return self._turn.deps

    @property
    def history(self) -> History:
        return History(self._session, self._by, self._changes)

    def stop(self, reason: str, *, status: str = "stopped", output: Any = None) -> None:
        """Mark the turn as to be ended: no new model call or tool starts, running tools finish, other calls skip.

        Args:
            reason: for `RunResult.reason`.
            status: `stopped`, `limit` or `refused`.
            output: the answer in place of the model's; the turn is then `completed`.
        """
        self._changes("stop")
        if status not in ("stopped", "limit", "refused"):
            raise HookError(f"{self._by}: ctx.stop takes the status stopped, limit or refused, not {status!r}")
        if self._turn.stop is None:
            self._turn.stop = Stop(status, reason, self._by, output, output is not None)

    def abort(self, reason: str) -> NoReturn:
        """End the turn now; the caller gets `TurnAborted`. It cannot be caught by an `except Exception`."""
        self._changes("abort")
        raise self._turn.abort(reason, self._by)

    def send_back(self, feedback: str) -> None:
        """Reject the model's final answer: it gets `feedback` as a message and another step.

        Bounded to five times a turn; after that the turn ends as `stopped`. Use it in a model layer that has seen a
        response without tool calls, or in a turn layer marked `repeats` before it calls `call_next` again.
        """
        self._changes("send_back")
        layer = self._entry.layer
        if layer.hook == "turn" and not layer.repeats:
            fix = "mark it @hookimpl(repeats=True) and call call_next again, or use a model hook"
            raise HookError(
                f"{layer.plugin} used ctx.send_back in a turn hook at {layer.where}: {fix}",
                plugin=layer.plugin,
                hook=layer.hook,
            )
        self._turn.feedback = (feedback, self._by)

    def after_turn(self, fn: Callable[[], Awaitable[None]]) -> None:
        """Run `fn` when the caller has its result, before the next turn starts. Its failure is logged."""
        session = self._session
        session.after = [*(session.after or ()), (self._by, fn)]

    async def call_model(
        self,
        prompt: UserInput | Sequence[Message],
        *,
        model: Any = None,
        instructions: str = "",
        settings: ModelSettings | None = None,
    ) -> ModelResponse:
        """Make a model call of the plugin's own: not shown to the user, but counted, limited and traced.

        It passes every layer but those of the plugins that are asking and those of phase `prepare`. Depth at most 2.
        """
        messages = _as_messages(prompt)
        response: ModelResponse = await self._agent.ask(
            self._turn,
            messages,
            model,
            instructions,
            settings,
            self._by,
            getattr(self._frame, "asking", self._turn.chain),
        )
        return response

    def _change_tools(self, owner: str, add: Sequence[Tool], remove: Sequence[str]) -> None:
        super()._change_tools(owner, add, remove)
        if isinstance(self._frame, TurnFrame):
            toolbox = self._session.toolbox
            names = [item.name for item in add]

            def undo() -> None:
                for name in names:
                    if name in toolbox.owned_by(owner):
                        toolbox.remove(name)

            self._turn.at_end(undo)

    def add_instructions(self, text: str) -> None:
        """Add a section to the instructions at this level; sections stand in the order of their plugins' ids."""
        super().add_instructions(text)
        if isinstance(self._frame, TurnFrame):
            session, section = self._session, (self._by, text)

            def undo() -> None:
                session.sections = [item for item in session.sections or () if item is not section]
                session.refresh_prefix()

            session.sections = [*(session.sections or ())[:-1], section]
            self._turn.at_end(undo)


class ModelContext(TurnContext):
    """One model call, and everything above it."""

    __slots__ = ()
    _frame: ModelFrame

    @property
    def request(self) -> ModelRequest:
        """What goes on the wire, for this call only. From phase `verify` inward only model and settings may change."""
        return self._frame.request

    @request.setter
    def request(self, value: ModelRequest) -> None:
        self._changes("request")
        if not _same_content(self._frame.request, value):
            self._may_change_content("request")
        self._frame.request = value

    def _may_change_content(self, verb: str) -> None:
        self._changes(verb)
        layer = self._entry.layer
        if layer.phase in _READ_ONLY:
            raise HookError(
                f"{layer.plugin} changed messages, instructions, context or tools in phase {layer.phase}: "
                "what was verified is what happens; change them in phase prepare or redact",
                plugin=layer.plugin,
                hook=layer.hook,
            )

    @property
    def history(self) -> History:
        frame = self._frame

        def refresh() -> None:
            self._frame.request = attrs.evolve(frame.request, messages=Messages(frame.session.history))

        return History(self._session, self._by, self._may_change_content, refresh)

    @property
    def call_index(self) -> int:
        """The number of this model call in its turn, from 0."""
        return self._frame.call_index

    @property
    def attempt(self) -> int:
        """How often this call was dispatched so far."""
        return self._frame.attempts[0]

    @property
    def asked_by(self) -> str | None:
        """The plugin whose own call this is, if it is one."""
        return self._frame.asked_by

    def set_model(self, model: Any) -> None:
        """Use another model, an id or a `Model`, for this call."""
        self._changes("set_model")
        name = model if isinstance(model, str) else self._agent.register_model(model)
        self._frame.request = attrs.evolve(self._frame.request, model=name)

    def set_settings(self, **changes: Any) -> None:
        """Change some of the `ModelSettings` for this call."""
        self._changes("set_settings")
        settings = attrs.evolve(self._frame.request.settings, **changes)
        self._frame.request = attrs.evolve(self._frame.request, settings=settings)

    def add_context(self, text: str) -> None:
        """Add text for this call only; it goes to the tail, behind the history, so that prompt caching holds."""
        self.request = attrs.evolve(self._frame.request, context=(*self._frame.request.context, text))

    def hide_tools(self, *names: str) -> None:
        """Leave tools out of this call; they cannot be called in it."""
        gone = frozenset(names)
        self.request = attrs.evolve(
            self._frame.request, tools=tuple([spec for spec in self._frame.request.tools if spec.name not in gone])
        )

    def load_tools(self, *names: str) -> None:
        """Offer deferred tools, from this call on.

        Raises:
            HookError: there is no such tool.
        """
        self._may_change_content("load_tools")
        tools = self._session.toolbox.tools()
        unknown = [name for name in names if name not in tools]
        if unknown:
            raise HookError(f"{self._by}: there is no tool {', '.join(unknown)} to load; there are {', '.join(tools)}")
        self._session.toolbox.load(names)
        self._session.refresh_prefix()
        offered = {spec.name for spec in self._frame.request.tools}
        more = [tools[name].spec for name in names if name not in offered]
        specs = sorted([*self._frame.request.tools, *more], key=lambda spec: spec.name)
        self.request = attrs.evolve(self._frame.request, tools=tuple(specs))

    def transform_deltas(self, factory: Callable[[], Any]) -> None:
        """Rewrite what the model streams: `factory` makes one transform for each attempt.

        A transform has `feed(delta) -> deltas` and `finish() -> deltas`. It may hold back what could still become
        something else. Transforms of inner layers come first. The text of the response is built from what they let out.
        """
        self._changes("transform_deltas")
        self._frame.transforms = (*self._frame.transforms, (self._by, factory))


def _same_content(old: ModelRequest, new: ModelRequest) -> bool:
    return (
        old.messages is new.messages
        and old.tools is new.tools
        and old.instructions == new.instructions
        and old.context == new.context
    )


class ToolContext(TurnContext, Generic[Deps]):
    """One tool call, and everything above it. A tool's parameter annotated with this class receives it."""

    __slots__ = ()
    _frame: ToolFrame

    @property
    def deps(self) -> Deps:
        return cast(Deps, self._turn.deps)

    @property
    def tool(self) -> Tool:
        return self._frame.tool

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments as JSON values; replaceable before phase `verify`, and validated again before the tool runs.

        Read-only: replace them as a whole, `ctx.args = {**ctx.args, "name": value}`.
        """
        return MappingProxyType(self._frame.args)

    @args.setter
    def args(self, value: Mapping[str, Any]) -> None:
        self._changes("args")
        self._refuse_after_verify("args")
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            layer = self._entry.layer
            raise HookError(
                f"{layer.plugin} set ctx.args to {value!r}: write `ctx.args = {{**ctx.args, 'name': value}}`",
                plugin=layer.plugin,
                hook=layer.hook,
            )
        self._frame.args = dict(value)

    @property
    def call_id(self) -> str:
        return self._frame.call.id

    @property
    def call_index(self) -> int:
        """The place of this call among those of its response, from 0."""
        return self._frame.index

    @property
    def idempotency_key(self) -> str:
        """A key for the effect of this call; the same if the call is tried again or taken up after a crash."""
        return f"{self._session.id}:{self._turn.turn_id}:{self._turn.calls}:{self._frame.call.id}"

    def deny(self, reason: str) -> ToolResult:
        """Return the error result of a call that must not run: `return ctx.deny("why")`. The model goes on."""
        self._changes("deny")
        self._entry.deny()
        call = self._frame.call
        return ToolResult(call.id, call.name, (TextPart(f"denied: {reason}"),), "denied")

    async def require_approval(
        self, reason: str, *, expires: float | None = None, scopes: Sequence[str] = (), covers: str = ""
    ) -> Decision:
        """Return the decision, an `Approve` or an `Edit`, when somebody has let this call run.

        After an `Edit`, `ctx.args` has the other arguments. Who decides is an `Approver` that a plugin provides, or
        whoever resumes the session. Until then the call is pending, others of its step go on, and the turn ends as
        `paused`.

        Args:
            reason: for who decides.
            expires: seconds after which it counts as denied.
            scopes: of `session` and `always`, what an `Approve` may say. It is the layer that then remembers it.
            covers: what such an approval lets run, for who decides.

        Raises:
            ToolFailed: it was denied, or answered in the tool's place; becomes the call's result.
        """
        self._changes("require_approval")
        return await approve(self._frame, reason, self._by, expires, scopes, covers)

    async def progress(self, message: str, *, done: float | None = None, total: float | None = None) -> None:
        """Report how far a tool is."""
        call = self._frame.call
        self._session.record(ToolProgress, call.id, call.name, message, done, total)
        await self._session.deliver()

    def _alone(self, plugin_id: str, field: str) -> None:
        batch = self._turn.batch
        if batch is None:
            return
        first = batch.setdefault((plugin_id, field), self.call_id)
        if first != self.call_id:
            raise StateError(
                f"{plugin_id}: {field!r} is updated by the overlapping calls {first} and {self.call_id}: "
                f"declare how to merge, {field} = reduced(fn, default=…)"
            )


def _as_tool(item: Tool | Callable[..., Any]) -> Tool:
    return item if isinstance(item, Tool) else tool(item)


def _as_messages(prompt: UserInput | Sequence[Message]) -> tuple[Message, ...]:
    if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Message):
        return tuple(cast("Sequence[Message]", prompt))
    return (user_message(cast(UserInput, prompt)),)


CONTEXTS: Mapping[str, type[AgentContext]] = {
    "init": AgentContext,
    "session": SessionContext,
    "turn": TurnContext,
    "model": ModelContext,
    "tool": ToolContext,
}
