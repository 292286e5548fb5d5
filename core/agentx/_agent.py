"""What an application builds: an agent, its plugins, and its sessions."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, cast

import anyio
import attrs

from ._calls import run_tool
from ._errors import AgentxError, EventLoopRunningError, HookError, PluginError, SessionClosedError
from ._frames import AgentFrame, SessionFrame, ToolChanges, overrides
from ._hookspecs import HOOKS
from ._host import Host, drain, loop_token, opening
from ._lookup import open_store
from ._loop import ask, dispatch, steps
from ._members import Used
from ._messages import NO_SETTINGS, Message, ModelSettings, ToolResult, UserInput
from ._messages import ModelResponse as Response
from ._models import Model, model_name, split_model_id
from ._onion import Onions, compile_lifetime, compile_onion
from ._output import Output, OutputType, compile_output
from ._plugin import Plugin
from ._plugins import Overrides, Registry, Stack
from ._result import RunResult
from ._session import Session, close_session
from ._store import MemoryStore, Store
from ._stream import Stream
from ._streaming import show
from ._toolbox import Toolbox
from ._tools import Tool, ToolThreads, tool

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Deps = TypeVar("Deps", default=Any)
    Out = TypeVar("Out", default=str)
else:
    from typing import TypeVar

    Deps = TypeVar("Deps")
    Out = TypeVar("Out")

logger = logging.getLogger("agentx")
APPLICATION = "the application"
COMBINATIONS = 64
"""How many combinations of plugins an agent keeps compiled."""


@attrs.frozen
class Override:
    """What `Agent.override` laid over an agent in the current context."""

    agent: Agent[Any, Any]
    stack: Overrides
    model: Any = None


class Agent(Generic[Deps, Out]):
    """A model with instructions, tools and plugins, for many sessions.

    Making one does no I/O and imports no plugin; that happens when it is first opened. `async with` keeps it open;
    without it, each `run` opens it for that call.

    Args:
        model: `provider/model`, such as `local/auto`, or a `Model`.
        name: for configuration (`[agents.NAME]`), logs and events.
        instructions: what the model is told before everything else; always sent.
        tools: functions or `@tool`s.
        output: what the answer shall be, for `result.output`: a class, another annotation, a JSON Schema, or an
            `Output` with options; by default text. An answer that does not fit goes back to the model.
        plugins: plugins in the order of `use`.
        autoload: which installed plugins load: `all`, `listed`, `none`; by default as configured.
        config: a file, a mapping, or `False` for none; by default agentx.toml or pyproject.toml of the working
            directory.
        store: where sessions live, by default in memory: a `Store`, or a URL such as `sqlite:///sessions.db`. What a
            URL opened is closed with the agent.
        limits: settings of `guard.limits`, such as `{"requests": 10}`.
        settings: how to sample.
        command_line: `key=value` settings that count more than all others.
    """

    def __init__(
        self,
        model: str | Model,
        *,
        name: str = "agent",
        instructions: str = "",
        tools: Sequence[Tool | Callable[..., Any]] = (),
        output: type[Out] | Output[Out] | Mapping[str, Any] | None = None,
        plugins: Sequence[str | Plugin[Any] | type[Plugin[Any]] | Callable[..., Any]] = (),
        autoload: str | None = None,
        config: str | Path | Mapping[str, Any] | bool | None = None,
        store: Store | str | None = None,
        limits: Mapping[str, Any] | None = None,
        settings: ModelSettings | None = None,
        command_line: Sequence[str] = (),
    ) -> None:
        _check_arguments(model, instructions, store, limits, settings)
        self.model = model
        self.name = name
        self.instructions = instructions
        self.settings = settings or NO_SETTINGS
        self._store: Store | str = MemoryStore() if store is None else store
        self._owns_store = isinstance(store, str)
        self._outputs: dict[Any, OutputType] = {}
        self._output = None if output in (None, str) else compile_output(output)
        self._tools = [item if isinstance(item, Tool) else tool(item) for item in tools]
        self._used: list[Used] = []
        self._autoload = autoload
        self._config = config
        self._limits = dict(limits or {})
        self._threads = ToolThreads()
        self._command_line = tuple(command_line)
        self._registry: Registry | None = None
        self._loading = RLock()
        self._stacks: dict[Any, Stack] = {}
        self._onions: dict[Any, Onions] = {}
        self._open: dict[Any, _Opened] = {}
        self._closers: dict[Any, list[Any]] = {}
        for plugin in plugins:
            self.use(plugin)

    def use(
        self,
        plugin: str | Plugin[Any] | type[Plugin[Any]] | Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        phase: str | None = None,
        **hooks: Callable[..., Any],
    ) -> Agent[Deps, Out]:
        """Add a plugin, or a function as a layer: `agent.use(fn)` for a turn, `agent.use(model=fn)` for the others.

        A plugin is an instance, a class or the id of an installed one.

        Within a phase the first used is the outermost. An instance replaces the installed plugin of the same id.

        Args:
            name: makes it a further instance, `guard.budget#name`, with settings and state of its own.
            phase: in place of the plugin's own.

        Raises:
            PluginError: the agent has been opened already, or there is nothing to use.
        """
        if self._registry is not None:
            raise PluginError(
                f"agent {self.name!r} has been opened; use plugins before that, or agent.override(use=[…])"
            )
        unknown = [hook for hook in hooks if hook not in HOOKS]
        if unknown:
            raise PluginError(f"there is no hook {unknown[0]!r}: the hooks are {', '.join(HOOKS)}")
        if plugin is None and not hooks:
            raise PluginError("use() needs a plugin or a function, such as agent.use(model=fn)")
        if plugin is not None:
            self._used.append(Used(plugin, name=name, phase=phase))
        for hook, function in hooks.items():
            self._used.append(Used(function, name=name, phase=phase, hook=hook))
        return self

    @property
    def store(self) -> Store:
        """Where sessions live."""
        store = self._store
        if not isinstance(store, str):
            return store
        with self._loading:
            if isinstance(self._store, str):
                self._store = open_store(self._store)
            return cast(Store, self._store)

    # Loading

    def _active(self) -> Override | None:
        """Return everything that overrides of this agent say in the current context, as one."""
        found = [override for override in overrides.get() if override.agent is self]
        if not found:
            return None
        merged: Override = found[0]
        for override in found[1:]:
            model = override.model if override.model is not None else merged.model
            merged = Override(self, merged.stack.merge(override.stack), model)
        return merged

    def stack(self) -> Stack:
        """Return the plugins that are active in the current context; loads them the first time.

        Raises:
            PluginLoadError: a required plugin or a guard cannot be loaded.
        """
        with self._loading:
            return self._load()

    def _load(self) -> Stack:
        if self._registry is None:
            self._registry = Registry(
                self.name,
                self._used,
                config=self._config,
                autoload=self._autoload,
                limits=self._limits,
                command_line=self._command_line,
            )
        active = self._active()
        changes = active.stack if active is not None else Overrides()
        found = self._stacks.get(changes.key)
        if found is None:
            found = self._registry.load(changes)
            self._forget_stacks()
            self._stacks[changes.key] = found
        return found

    def _forget_stacks(self) -> None:
        """Drop the oldest combinations that are not open, so that overrides with ever new plugins do not pile up."""
        opened = {stack_id for _, stack_id in self._open}
        idle = [key for key, stack in self._stacks.items() if id(stack) not in opened]
        for key in idle[: max(0, len(self._stacks) - COMBINATIONS + 1)]:
            self._onions.pop(id(self._stacks.pop(key)), None)

    def _output_of(self, asked: Any) -> OutputType | None:
        """Return what a turn's own `output=` means.

        Raises:
            OutputError: no JSON Schema can express it.
        """
        if asked is str:
            return None
        try:
            found = self._outputs.get(asked)
        except TypeError:  # a JSON Schema has no hash
            return compile_output(asked)
        if found is None:
            found = self._outputs[asked] = compile_output(asked)
        return found

    def _compiled(self, stack: Stack) -> Onions:
        with self._loading:
            found = self._onions.get(id(stack))
            if found is None:
                found = self._onions[id(stack)] = compile_stack(stack.layers)
            return found

    @contextmanager
    def override(
        self,
        *,
        model: str | Model | None = None,
        disable: Sequence[str] = (),
        use: Sequence[Any] = (),
        config: Mapping[str, Any] | None = None,
    ) -> Iterator[None]:
        """Change the agent within a `with` block, for the current context only. Required plugins stay."""
        stack = Overrides(tuple(disable), tuple([Used(item) for item in use]), dict(config or {}))
        token = overrides.set((*overrides.get(), Override(self, stack, model)))
        try:
            yield
        finally:
            overrides.reset(token)

    @property
    def plugins(self) -> Sequence[Any]:
        """One row for every plugin that is known: active, disabled, failed or missing."""
        return self.stack().rows

    def explain(self, hook: str) -> str:
        """Return who wraps whom in a hook, outermost first, and why in that order."""
        return self.stack().explain(hook)

    async def check(self) -> Sequence[Any]:
        """Load everything, open the agent once and close it; returns the rows of `plugins`.

        Raises:
            AgentxError: something cannot be loaded or opened.
        """
        _, close = await self._enter()
        error = await close(None)
        if error is not None:
            raise error
        return self.plugins

    # Opening

    async def _enter(self) -> tuple[AgentFrame, Callable[[BaseException | None], Coroutine[Any, Any, Any]]]:
        """Open the agent, or join those who have it open in this event loop; returns what gives it back."""
        stack = self.stack()
        key = (loop_token(), id(stack))
        while True:
            opened = self._open.get(key)
            if opened is None:
                opened = await self._open_now(stack, key)
            elif opened.users == 0:
                await opened.closed.wait()
                continue
            elif not await opened.join():
                continue
            return opened.frame, opened.give_back

    async def _open_now(self, stack: Stack, key: Any) -> _Opened:
        opened = self._open[key] = _Opened(self, stack, key)
        opened.users = 1
        try:
            await opened.open()
        except BaseException:
            del self._open[key]
            opened.failed = True
            raise
        finally:
            opened.ready.set()
        return opened

    async def __aenter__(self) -> Agent[Deps, Out]:
        _, close = await self._enter()
        self._closers.setdefault(loop_token(), []).append(close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        token = loop_token()
        closers = self._closers[token]
        close = closers.pop()
        if not closers:
            del self._closers[token]
        trouble = await close(error)
        if trouble is None or trouble is error:
            return
        if error is None:
            raise trouble
        error.add_note(f"while closing agent {self.name!r}: {type(trouble).__name__}: {trouble}")

    # Running

    def session(
        self,
        id: str | None = None,
        *,
        user: str | None = None,
        deps: Deps | None = None,
        history: Sequence[Message] | None = None,
        idle_timeout: float = 0.0,
    ) -> Session[Out]:
        """Return a handle of a session, a new one or one that the store knows.

        Args:
            id: by default a random one.
            user: who it belongs to; nobody else gets at it.
            deps: what tools and layers see as `ctx.deps`.
            history: what a new session begins with, for applications that keep histories themselves.
            idle_timeout: seconds for which the session's layers stay open after its last handle, as long as the agent
                is open, so that the next handle need not open them again.
        """
        if not isinstance(idle_timeout, int | float) or not 0 <= idle_timeout < math.inf:
            raise AgentxError(f"session(idle_timeout=…) is a number of seconds, 0 or more, not {idle_timeout!r}")
        return Session(self, id, user, deps, history, idle_timeout=idle_timeout)

    async def run(self, input: UserInput, **options: Any) -> RunResult[Out]:
        """Run one turn in a session of its own, which a memory store forgets. Takes what `Session.run` takes."""
        async with Session(self, None, None, None, None, ephemeral=isinstance(self.store, MemoryStore)) as session:
            return await session.run(input, **options)

    def stream(self, input: UserInput, **options: Any) -> Stream[Out]:
        """Run one turn in a session of its own and see it happen."""
        session: Session[Out] = Session(self, None, None, None, None, ephemeral=isinstance(self.store, MemoryStore))
        return session.stream(input, **options)

    def run_sync(self, input: UserInput, **options: Any) -> RunResult[Out]:
        """Run one turn from code that is not async.

        Raises:
            EventLoopRunningError: an event loop is running; it names what to write instead.
        """
        try:
            loop_token()
        except RuntimeError:
            return anyio.run(lambda: self.run(input, **options))
        raise EventLoopRunningError("run_sync inside a running event loop: write `await agent.run(…)`")

    def as_tool(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        inherit: Sequence[str] = ("observe", "gate", "redact", "verify"),
    ) -> Tool:
        """Return a tool that hands a task to this agent.

        Limits of both apply; deps, user, services and cancellation pass down, history and state do not.

        Args:
            name: by default the agent's.
            description: tells the calling model what the agent is good for.
            inherit: phases in which the layers of the calling agent wrap this one's model and tool calls.
        """
        from ._subagent import as_tool

        return as_tool(self, name or self.name, description, tuple(inherit))

    def __repr__(self) -> str:
        model = self.model if isinstance(self.model, str) else model_name(self.model)
        return f"Agent({model!r}, name={self.name!r})"


def _check_arguments(model: Any, instructions: Any, store: Any, limits: Any, settings: Any) -> None:
    """Refuse arguments that would only fail when the agent runs.

    Raises:
        AgentxError: naming the argument and what it takes.
    """
    if isinstance(model, str):
        split_model_id(model)
    elif isinstance(model, type):
        raise AgentxError(f"Agent(model=…): {model.__name__} is a class; write {model.__name__}(…)")
    if not isinstance(instructions, str):
        raise AgentxError(f"Agent(instructions=…) takes text, not {type(instructions).__name__}")
    if settings is not None and not isinstance(settings, ModelSettings):
        raise AgentxError(f"Agent(settings=…) takes ModelSettings(…), not {type(settings).__name__}")
    if limits is not None and not isinstance(limits, Mapping):
        raise AgentxError(f"Agent(limits=…) takes a mapping such as {{'requests': 10}}, not {type(limits).__name__}")
    if isinstance(store, type) or not (store is None or isinstance(store, str) or callable(getattr(store, "open", 0))):
        kind = store.__name__ if isinstance(store, type) else type(store).__name__
        raise AgentxError(f"Agent(store=…) takes a Store such as MemoryStore(), or a URL, not {kind}")


def compile_stack(layers: Mapping[str, tuple[Any, ...]]) -> Onions:
    """Compile the onions of one combination of plugins."""
    return Onions(
        compile_lifetime(layers["init"]),
        compile_lifetime(layers["session"]),
        compile_onion(layers["turn"], steps, RunResult),
        compile_onion(layers["model"], dispatch, Response),
        compile_onion(layers["tool"], run_tool, ToolResult),
        dict(layers),
    )


class _Opened:
    """An agent that is open in one event loop, with one combination of plugins."""

    def __init__(self, agent: Agent[Any, Any], stack: Stack, key: Any) -> None:
        self.agent = agent
        self.stack = stack
        self.key = key
        self.users = 0
        """Who has it open, or waits until it is; the last one out closes it."""
        self.failed = False
        self.ready = anyio.Event()
        self.closed = anyio.Event()
        self.models: dict[str, Any] = {}
        self.names: dict[int, str] = {}
        self.given: list[Any] = []
        """Models given as objects; what goes by an `id` has to stay."""
        self.providers: dict[str, Any] = {}
        self.to_close: list[Any] = []
        """Models and providers that were made for this opening, in the order of their making."""
        self.frame = self._frame()

    def _frame(self) -> AgentFrame:
        agent, stack = self.agent, self.stack
        toolbox = Toolbox()
        for item in agent._tools:
            toolbox.add(item, APPLICATION)
        for item, owner in stack.tools:
            toolbox.add(item, owner)
        model = agent.model if isinstance(agent.model, str) else self.register_model(agent.model)
        return AgentFrame(
            name=agent.name,
            agent=agent,
            onions=agent._compiled(stack),
            store=agent.store,
            toolbox=toolbox,
            threads=agent._threads,
            config=stack.settings,
            instructions=agent.instructions,
            instance_ids={id(instance): plugin_id for plugin_id, instance in stack.instances.items()},
            header=stack.header,
            ask=ask,
            show=show,
            model=model,
            settings=agent.settings,
            output=agent._output,
            output_of=agent._output_of,
            current=self.current,
            models=self.models,
            resolve=self.resolve,
            register_model=self.register_model,
            replace_tools=replace_tools,
        )

    async def open(self) -> None:
        frame = self.frame
        logger.info("agent %s opens with %s", frame.name, ", ".join(self.stack.instances) or "no plugins")
        if frame.onions.layers["init"]:
            onion = frame.onions.init
            frame.host = Host(lambda core: onion(frame, core), frame, f"agent {frame.name!r}")
            await frame.host.open()

    async def join(self) -> bool:
        """Join those who have it open; `False` if it could not be opened."""
        if self.ready.is_set():
            self.frame.check()
            self.users += 1
            return True
        if opening.get() is self.frame:
            raise SessionClosedError(
                f"agent {self.frame.name!r} is being opened by the layer that would use it: use ctx.start_soon"
            )
        self.users += 1
        try:
            await self.ready.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.give_back(None)
            raise
        return not self.failed

    async def give_back(self, body_error: BaseException | None) -> BaseException | None:
        """Give the agent back; the last one out closes it. Returns what went wrong while closing."""
        self.users -= 1
        if self.users:
            return None
        frame = self.frame
        try:
            for session in [session for session in frame.sessions.values() if session.handles == 0]:
                await close_session(session, None)
            for closed in list(frame.opening.values()):
                await closed.wait()
            error = await frame.host.close(body_error) if frame.host is not None else None
            await drain(frame)
            with anyio.CancelScope(shield=True):
                for made in reversed(self.to_close):
                    close = getattr(made, "aclose", None)
                    if close is not None:
                        await close()
        finally:
            frame.closing = frame.closing or "ended"
            del self.agent._open[self.key]
            if self.agent._owns_store and not self.agent._open:
                with anyio.CancelScope(shield=True):
                    await self.agent.store.close()
            self.closed.set()
        return error

    def resolve(self, model_id: str) -> Any:
        """Return the model an id stands for, made by its provider the first time."""
        found = self.models.get(model_id)
        if found is None:
            provider, name = split_model_id(model_id)
            found = self.models[model_id] = self.provider(provider).model(name)
            self.to_close.append(found)
        return found

    def provider(self, prefix: str) -> Any:
        found = self.providers.get(prefix)
        if found is None:
            found = self.providers[prefix] = self.stack.provider(prefix)
            self.to_close.append(found)
        return found

    def register_model(self, model: Any) -> str:
        """Return the id that a `Model` given as an object has in requests and events."""
        found = self.names.get(id(model))
        if found is None:
            if not callable(getattr(model, "respond", None)):
                raise AgentxError(f"{model!r} is no model: a model is 'provider/name' or has `async def respond`")
            name = found = model_name(model)
            number = 1
            while found in self.models:
                number += 1
                found = f"{name}#{number}"
            self.models[found] = self._own(model)
            self.given.append(model)
            self.names[id(model)] = found
        return found

    def _own(self, model: Any) -> Any:
        """Return what stands for a given model in this opening: a copy with its own connections, if it offers one."""
        fresh = getattr(model, "fresh", None)
        if fresh is None:
            return model
        made = fresh()
        self.to_close.append(made)
        return made

    def current(self, session: SessionFrame) -> tuple[Onions, Any, ToolChanges | None]:
        """Return the onions, the forced model and the changes of tools of the current context."""
        agent = self.agent
        override = agent._active()
        if override is None:
            return session.onions or self.frame.onions, None, None
        stack = agent.stack()
        if stack is self.stack:
            return session.onions or self.frame.onions, override.model, None
        for hook in ("init", "session"):
            known = {layer.plugin for layer in self.stack.layers[hook]}
            new = [layer.plugin for layer in stack.layers[hook] if layer.plugin not in known]
            if new:
                raise HookError(
                    f"{new[0]} has a hook {hook} and was added by an override after the session was opened: "
                    "open the session inside the override",
                    plugin=new[0],
                    hook=hook,
                )
        for plugin_id, instance in stack.instances.items():
            self.frame.instance_ids.setdefault(id(instance), plugin_id)
        gone = frozenset(self.stack.instances) - frozenset(stack.instances)
        added = tuple([(item, owner) for item, owner in stack.tools if owner not in self.stack.instances])
        return agent._compiled(stack), override.model, ToolChanges(gone, added)


def replace_tools(session: SessionFrame, tools: Sequence[Any]) -> None:
    """Put `tools` in the place of those the application gave this session before."""
    made = [item if isinstance(item, Tool) else tool(item) for item in tools]
    owner = f"{APPLICATION} (session)"
    fresh = Toolbox(session.toolbox.parent)
    for name in session.toolbox.tools():
        own = session.toolbox.owner(name)
        if own != owner and (session.toolbox.parent is None or session.toolbox.parent.owner(name) is None):
            fresh.add(session.toolbox.tools()[name], own or APPLICATION)
    for item in made:
        fresh.add(item, owner)
    gone = session.toolbox.owned_by(owner)
    session.toolbox = fresh
    session.change_tools(owner, made, gone)
