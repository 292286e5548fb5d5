"""What exists once per level while it runs: agent, session, turn, model call, tool call.

A frame is the state; a context (`_context.py`) is one layer's view of a frame.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from decimal import Decimal
from time import time as now
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from ._errors import AbortSignal, SessionClosedError, StopSignal
from ._events import Event, InputQueued, LimitWarning, SessionStart, ToolsChanged, delta_event
from ._host import TurnScope, in_loop, loop_token, start_task
from ._ledger import Account, AccountKey, Accounts, Limit, Line
from ._messages import (
    Delta,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Sent,
    ToolCall,
    ToolSpec,
    Totals,
    Usage,
)
from ._output import OutputType
from ._result import RunResult
from ._toolbox import Toolbox

if TYPE_CHECKING:
    from ._hookspecs import Layer
    from ._onion import Onions
    from ._store import SessionLog, Store
    from ._tools import Tool, ToolThreads

Listener = Callable[[Event], Awaitable[None]]
Sink = Callable[[Delta, int, int], Awaitable[None]]
"""Takes a delta, the call's index and the attempt."""


@attrs.define(eq=False, repr=False)
class Stop:
    """That the turn shall end, how, and who said so."""

    status: str
    reason: str
    by: str
    output: Any = None
    has_output: bool = False


Prefix = tuple[int, str, tuple[ToolSpec, ...], Mapping[str, "Tool"]]
"""What every request of a session begins with: its version, the instructions and the tools."""


def _prefix(version: int, own: str, sections: Sequence[tuple[str, str]], toolbox: Toolbox) -> Prefix:
    """Put together the instructions, the plugins' sections in the order of their ids, and the tools."""
    ordered = sorted(sections, key=lambda section: section[0])
    deferred = toolbox.deferred()
    more = [f"More tools can be loaded: {', '.join(deferred)}"] if deferred else []
    prompt = "\n\n".join([text for text in [own, *[text for _, text in ordered], *more] if text])
    return version, prompt, toolbox.specs(), toolbox.tools()


def _merged(own: list[Line], above: list[Line]) -> list[Line]:
    """Return the lines of a sub-agent and of its caller; an account they share is asked once, by the lower maximum."""
    found = {id(line.account): line for line in own}
    for line in above:
        mine = found.get(id(line.account))
        most = line.limit.maximum
        if mine is None or (most is not None and (mine.limit.maximum is None or most < mine.limit.maximum)):
            found[id(line.account)] = line
    return list(found.values())


overrides: ContextVar[tuple[Any, ...]] = ContextVar("agentx overrides", default=())
"""What `Agent.override` laid over agents in the current context."""


class _Level:
    """What every level has: services, limits, totals. A level without any costs nothing."""

    __slots__ = ()

    if TYPE_CHECKING:
        limits: list[tuple[Limit, str]] | None
        services: dict[Any, Any] | None

    def lines(self) -> tuple[Line, ...]:
        raise NotImplementedError

    def provide(self, key: Any, value: Any) -> None:
        if self.services is None:
            self.services = {}  # type: ignore[misc]  # a slot of every subclass
        self.services[key] = value


@attrs.frozen(eq=False, repr=False)
class ToolChanges:
    """What an override changes in the tools of a turn."""

    gone: frozenset[str]
    """Plugins whose tools are not there."""
    added: tuple[tuple[Tool, str], ...]
    """Tools and their plugins."""


@attrs.define(eq=False, repr=False)
class AgentFrame(_Level):
    """An agent that is open in one event loop, with one combination of plugins."""

    name: str
    agent: Any
    onions: Onions
    store: Store
    toolbox: Toolbox
    threads: ToolThreads
    config: Mapping[str, Any]
    instructions: str
    instance_ids: dict[int, str]
    """Identity of a plugin instance → its id in this agent."""
    header: tuple[str, ...]
    ask: Callable[..., Awaitable[Any]]
    """`call_model`, of the loop."""
    show: Callable[..., Awaitable[Any]]
    """Streams a response that no dispatch streamed, of the loop."""
    model: Any
    settings: ModelSettings
    output: OutputType | None
    output_of: Callable[[Any], OutputType | None]
    """What a turn's own `output=` means, compiled once."""
    current: Callable[[SessionFrame], tuple[Onions, Any, ToolChanges | None]]
    """The onions, the model and the changes of tools that hold for a session in the current context."""
    models: Mapping[str, Any]
    """The models that were resolved, by id."""
    resolve: Callable[[str], Any]
    """A model id → the `Model`."""
    register_model: Callable[[Any], str]
    """A `Model` → the id it has in requests."""
    replace_tools: Callable[[SessionFrame, Any], None]
    sections: list[tuple[str, str]] = attrs.Factory(list)
    services: dict[Any, Any] | None = None
    limits: list[tuple[Limit, str]] | None = None
    limits_version: int = 0
    sections_version: int = 0
    totals: Totals = attrs.Factory(Totals)
    sessions: dict[str, SessionFrame] = attrs.Factory(dict)
    opening: dict[str, anyio.Event] = attrs.Factory(dict)
    """Sessions that are being opened or closed."""
    failure: BaseException | None = None
    closing: str | None = None
    host: Any = None
    tasks: set[Any] | None = None
    failures: dict[str, int] = attrs.Factory(dict)
    """How often a plugin's own failure was logged and did no harm."""
    loop: Any = attrs.Factory(loop_token)
    new_scope: Callable[[], anyio.CancelScope] = attrs.Factory(lambda: type(anyio.CancelScope()))
    """Makes a scope of the running backend, without asking each time which one runs."""
    turn_prefix: str = attrs.Factory(lambda: os.urandom(5).hex())
    """With `turn_numbers` it makes ids that no other opening of an agent makes."""
    turn_numbers: Iterator[int] = attrs.Factory(itertools.count)
    _prefix: Prefix | None = None

    def service(self, key: Any) -> Any:
        return None if self.services is None else self.services.get(key)

    def add_limit(self, limit: Limit, owner: str) -> None:
        if self.limits is None:
            self.limits = []
        self.limits.append((limit, owner))
        self.limits_version += 1

    def lines(self) -> tuple[Line, ...]:
        """The limits on accounts that are wider than a session; the others have no account at this level."""
        found = [(limit, owner) for limit, owner in self.limits or () if limit.scope not in ("turn", "session", "user")]
        return tuple([Line(limit, owner, self.account((owner, limit.key, limit.scope, ""))) for limit, owner in found])

    def account(self, key: AccountKey) -> Account:
        accounts: Accounts = self.store.accounts
        found = accounts.get(key)
        if found is None:
            found = accounts[key] = Account()
        return found

    def prefix(self) -> Prefix:
        version = self.sections_version + self.toolbox.version
        if self._prefix is None or self._prefix[0] != version:
            self._prefix = _prefix(version, self.instructions, self.sections, self.toolbox)
        return self._prefix

    def fail(self, error: BaseException) -> None:
        """Mark the agent failed: running turns are cancelled, the next call raises from `error`."""
        self.failure = error
        for session in self.sessions.values():
            session.interrupt()

    @property
    def usage(self) -> Usage:
        """What was used since the agent was opened, running turns included."""
        turns = [session.turn for session in self.sessions.values() if session.turn is not None]
        return sum([turn.totals.usage for turn in turns], self.totals.usage)

    def check(self) -> None:
        if self.failure is not None:
            raise SessionClosedError(f"agent {self.name!r} failed: {self.failure}") from self.failure


@attrs.define(eq=False, repr=False)
class SessionFrame(_Level):
    """A session that is open in this process."""

    agent: AgentFrame
    id: str
    user: str | None
    log: SessionLog
    toolbox: Toolbox
    history: list[Message]
    totals: Totals
    states: dict[str, Any]
    seq: int = 0
    turn_count: int = 0
    is_resumed: bool = False
    has_open_turn: bool = False
    """The last turn paused, or its process ended while it ran."""
    queue: dict[int, InputQueued] = attrs.Factory(dict)
    """Messages of the user that wait to be delivered, by `seq`."""
    deps: Any = None
    turn: TurnFrame | None = None
    services: dict[Any, Any] | None = None
    limits: list[tuple[Limit, str]] | None = None
    sections: list[tuple[str, str]] | None = None
    quiet: bool = attrs.field(init=False)
    """Nobody listens and nothing is to be committed: most turns of most sessions wait for neither."""
    listeners: list[Listener] | None = None
    outbox: deque[Event] | None = None
    filters: tuple[Callable[[Event], Event], ...] = ()
    delivering_soon: bool = False
    delta_listeners: int = 0
    early: list[Event] | None = None
    """What is recorded while the session opens."""
    parent: TurnFrame | None = None
    onions: Onions | None = None
    """A sub-agent's own, in which layers of its parent wrap it."""
    idle: anyio.Event | None = None
    path: tuple[str, ...] = ()
    depth: int = 0
    model: Any = None
    settings: ModelSettings | None = None
    own_instructions: str | None = None
    last_result: Any = None
    adapted: Any = None
    """The last `history.adapted`; the same again is not told again."""
    sent: dict[str, Sent] = attrs.Factory(dict)
    """What the log knows of the last request beside the history; those of plugins' own calls by the plugin."""
    failure: BaseException | None = None
    closing: str | None = None
    host: Any = None
    handles: int = 0
    reopened: anyio.Event | None = None
    """Set when a session that waits for its next handle gets one."""
    ephemeral: bool = False
    public: Any = None
    after: list[tuple[str, Callable[[], Awaitable[None]]]] | None = None
    after_running: anyio.Event | None = None
    after_of: TurnFrame | None = None
    """The turn whose `after_turn` work is running."""
    tasks: set[Any] | None = None
    _delivery: anyio.Lock | None = None
    _prefix: Prefix | None = None

    def __attrs_post_init__(self) -> None:
        self.quiet = not self.log.is_durable

    @property
    def session(self) -> SessionFrame:
        return self

    def service(self, key: Any) -> Any:
        if self.services is not None and key in self.services:
            return self.services[key]
        found = self.agent.service(key)
        if found is None and self.parent is not None:
            return self.parent.service(key)
        return found

    def add_limit(self, limit: Limit, owner: str) -> None:
        if self.limits is None:
            self.limits = []
        self.limits.append((limit, owner))
        self.agent.limits_version += 1

    def lines(self) -> tuple[Line, ...]:
        found = [*(self.limits or ()), *(self.agent.limits or ())]
        return tuple([self.line(limit, owner) for limit, owner in found if limit.scope != "turn"])

    def line(self, limit: Limit, owner: str) -> Line:
        what = {"session": self.id, "user": self.user or self.id}.get(limit.scope, "")
        return Line(limit, owner, self.agent.account((owner, limit.key, limit.scope, what)))

    def record(self, cls: type[Event], *fields: Any) -> tuple[Any, ...]:
        """Note that something happened. It is stored, if its kind is, and goes out at the next `deliver`.

        Returns the fields as they are stored.
        """
        if cls.stored:
            self.seq += 1
        turn = self.turn
        turn_id = None if turn is None else turn.turn_id
        if self.listeners is None and not self.filters and self.early is None:
            if cls.stored:
                self.log.add((cls, self.seq, now(), turn_id, *fields))
            return fields
        event = cls(self.seq, now(), turn_id, *fields)
        if self.early is not None:
            self.early.append(event)
            return fields
        return self._note(event)._values()[3:]

    def _note(self, event: Event) -> Event:
        if self.filters:
            for change in self.filters:
                event = change(event)
        if event.stored:
            self.log.add(event)
        if self.listeners is not None:
            self.outbox.append(event)  # type: ignore[union-attr]  # made with the first listener
        return event

    def opened(self) -> None:
        """Take what was recorded while the session opened, now that its filters are known."""
        early, self.early = self.early or [], None
        for event in early:
            event = self._note(event)
            if isinstance(event, SessionStart):
                self.history[:] = event.seed

    def listen(self, listener: Listener) -> None:
        if self.listeners is None:
            self.listeners, self.outbox = [], deque()
            self._delivery = anyio.Lock(fast_acquire=True)
            self.quiet = False
        self.listeners.append(listener)

    async def hear(self, delta: Delta, call_index: int, attempt: int) -> None:
        """Give a delta to all listeners, as an event; a `Sink`."""
        turn = self.turn
        event = delta_event(delta, self.seq, now(), turn.turn_id if turn else None, call_index, attempt)
        for change in self.filters:
            event = change(event)
        self.outbox.append(event)  # type: ignore[union-attr]  # made with the first listener
        await self.deliver()

    def unlisten(self, listener: Listener) -> None:
        if self.listeners is not None and listener in self.listeners:
            self.listeners.remove(listener)
            self._fall_quiet()

    def _fall_quiet(self) -> None:
        if not self.listeners and not self.outbox:
            self.listeners, self.quiet = None, not self.log.is_durable

    async def deliver(self) -> None:
        """Give what was recorded to the listeners, in order; waits for them."""
        if not self.outbox:
            return
        async with self._delivery:  # type: ignore[union-attr]  # made with the first listener
            while self.outbox:
                event = self.outbox.popleft()
                for listener in list(self.listeners or ()):
                    await listener(event)
        self._fall_quiet()

    def deliver_soon(self) -> None:
        """Deliver what a layer recorded although the layer goes on without giving the core a chance to."""
        if not self.outbox or self.delivering_soon:
            return
        self.delivering_soon = True

        async def deliver() -> None:
            self.delivering_soon = False
            await self.deliver()

        start_task(deliver, f"events of session {self.id}")

    async def commit(self, point: str) -> None:
        """A commit point: what was recorded is durable and delivered when this returns."""
        if self.log.is_durable:
            await self.log.commit(point)
        if self.outbox:
            await self.deliver()

    def prefix(self) -> Prefix:
        """What the requests begin with; the same object until something changes."""
        agent, toolbox = self.agent, self.toolbox
        version = agent.sections_version + agent.toolbox.version + toolbox.version
        found = self._prefix
        if found is None or found[0] != version:
            if self.own_instructions is None and not self.sections and toolbox.adds_nothing:
                found = (version, *agent.prefix()[1:]) if toolbox.version else agent.prefix()
            else:
                own = agent.instructions if self.own_instructions is None else self.own_instructions
                found = _prefix(version, own, [*agent.sections, *(self.sections or ())], toolbox)
            self._prefix = found
        return found

    def refresh_prefix(self) -> None:
        self._prefix = None

    def change_tools(self, owner: str, add: Sequence[Tool], remove: Sequence[str]) -> None:
        """Say that tools changed; they count from the next model call on."""
        self.refresh_prefix()
        self.record(ToolsChanged, owner, tuple([tool.name for tool in add]), tuple(remove))

    def take_back(self, history: list[Message], states: Mapping[str, Mapping[str, Any]]) -> None:
        """Be what the session was before; secrets, which no log holds, stay as they are."""
        live, self.states = self.states, {plugin: dict(values) for plugin, values in states.items()}
        for plugin, state in live.items():
            fields = attrs.fields(type(state)) if attrs.has(type(state)) else ()
            secrets = {field.name: getattr(state, field.name) for field in fields if field.metadata.get("secret")}
            if secrets:
                self.states.setdefault(plugin, {}).update(secrets)
        self.history, self.has_open_turn, self.last_result = history, False, None

    @property
    def usage(self) -> Usage:
        """What the session used, the running turn included."""
        usage = self.totals.usage
        return usage if self.turn is None else usage + self.turn.totals.usage

    def interrupt(self) -> None:
        """Cancel the running turn, if there is one; from any thread."""
        if self.turn is not None:
            in_loop(self.agent.loop, self.turn.scope.cancel)

    def fail(self, error: BaseException) -> None:
        self.failure = error
        self.interrupt()

    def check(self) -> None:
        """Raise if the session cannot run a turn.

        Raises:
            SessionClosedError: it is closed, or a layer of it or of its agent failed.
        """
        self.agent.check()
        if self.failure is not None:
            raise SessionClosedError(f"session {self.id!r} failed: {self.failure}") from self.failure


@attrs.define(eq=False, repr=False)
class TurnFrame(_Level):
    """One turn."""

    agent: AgentFrame
    session: SessionFrame
    onions: Onions
    turn_id: str
    index: int
    input: Message
    model: Any
    settings: ModelSettings
    deps: Any
    metadata: Mapping[str, Any] | None
    limit_settings: Mapping[str, Any] | None
    started_at: float
    history_start: int
    log_start: int
    scope: TurnScope
    totals: Totals = attrs.Factory(Totals)
    limits: list[tuple[Limit, str]] | None = None
    services: dict[Any, Any] | None = None
    committed: bool = False
    calls: int = 0
    stop: Stop | None = None
    feedback: tuple[str, str] | None = None
    send_backs: int = 0
    output_type: OutputType | None = None
    """What the answer has to be, if it is not text."""
    output_tries: int = 0
    tool_changes: ToolChanges | None = None
    queued: int | None = None
    """The `seq` of the queued message that this turn answers."""
    is_resumed: bool = False
    resumed: ModelResponse | None = None
    """The response behind which a resumed turn goes on."""
    decisions: Mapping[str, tuple[str, Any]] = attrs.Factory(dict)
    """What was decided about calls, each with the fingerprint it is bound to."""
    announced: frozenset[str] = frozenset()
    """The calls that a resumed turn has told of already."""
    started: frozenset[str] = frozenset()
    """The calls that had begun when the process ended."""
    held: frozenset[str] = frozenset()
    """The calls of a resumed turn that go on waiting."""
    pausing: set[str] | None = None
    """The calls of which a layer or the tool asks for a decision that nobody gives now."""
    waiting: tuple[str, ...] = ()
    """The calls that wait for a decision, or for calls that do."""
    before: Usage | None = None
    """What a resumed turn had used and booked before."""
    is_interrupted: bool = False
    """It is cancelled only to go on with what the user said meanwhile."""
    output: Message | None = None
    outcome: Stop | None = None
    sink: Sink | None = None
    open_calls: Any = None
    """The calls of the running step, until all have their result in the history."""
    results: dict[str, Any] | None = None
    """The results of the calls of the running step."""
    offered: frozenset[str] | None = None
    """The tools of the last model call, where layers hid some."""
    chain: tuple[str, ...] = ()
    limit: Limit | None = None
    """The limit that refused a dispatch."""
    answering: bool = False
    blame: tuple[BaseException, Layer] | None = None
    accounts: dict[int, Account] | None = None
    undo: list[Callable[[], Any]] | None = None
    """What vanishes with the turn."""
    batch: dict[tuple[str, str], str] | None = None
    """Which call updated a replaced field, while calls overlap."""
    _lines: tuple[int, tuple[Line, ...], tuple[Line, ...]] | None = None

    @property
    def turn(self) -> TurnFrame:
        return self

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits, as W3C trace context has them; the same for a turn and its sub-agents."""
        parent = self.session.parent
        return parent.trace_id if parent is not None else self.turn_id.rjust(32, "0")

    @property
    def usage(self) -> Usage:
        return self.totals.usage

    def prefix(self) -> Prefix:
        """What the requests of this turn begin with."""
        session, changes = self.session, self.tool_changes
        found = session.prefix()
        if changes is None:
            return found
        toolbox = Toolbox()
        toolbox.loaded = session.toolbox.loaded | self.agent.toolbox.loaded
        for name, tool in session.toolbox.tools().items():
            owner = session.toolbox.owner(name) or ""
            if owner not in changes.gone:
                toolbox.add(tool, owner)
        for tool, owner in changes.added:
            toolbox.add(tool, owner)
        return found[0], found[1], toolbox.specs(), toolbox.tools()

    def forget_resumed(self) -> None:
        """Forget what was about the calls of the step that was resumed: those of a later one may have the same ids."""
        self.started = self.announced = self.held = frozenset()
        self.decisions = {}

    def fork(self) -> TurnFrame:
        """A turn that is run again is the same turn: it goes on where it was."""
        return self

    def service(self, key: Any) -> Any:
        if self.services is not None and key in self.services:
            return self.services[key]
        return self.session.service(key)

    def add_limit(self, limit: Limit, owner: str) -> None:
        if self.limits is None:
            self.limits = []
        self.limits.append((limit, owner))
        self._lines = None

    def lines(self) -> tuple[Line, ...]:
        model, tool = self._both()
        return model + tool

    def model_lines(self) -> tuple[Line, ...]:
        lines = self._lines
        if lines is not None and lines[0] == self.agent.limits_version:
            return lines[1]
        return self._both()[0]

    def tool_lines(self) -> tuple[Line, ...]:
        return self._both()[1]

    def _both(self) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
        lines = self._lines
        if lines is None or lines[0] != self.agent.limits_version:
            found = self._collect()
            model = tuple([line for line in found if line.limit.on == "model"])
            lines = (self.agent.limits_version, model, tuple([line for line in found if line.limit.on == "tool"]))
            self._lines = lines
        return lines[1], lines[2]

    def _collect(self) -> list[Line]:
        session = self.session
        limits = [*(self.limits or ()), *(session.limits or ()), *(self.agent.limits or ())]
        lines = [self._line(limit, owner) for limit, owner in limits]
        if session.parent is not None:
            lines = _merged(lines, [attrs.evolve(line, own=False) for line in session.parent.lines()])
        return lines

    def _line(self, limit: Limit, owner: str) -> Line:
        if limit.scope != "turn":
            return self.session.line(limit, owner)
        if self.accounts is None:
            self.accounts = {}
        account = self.accounts.get(id(limit))
        if account is None:
            account = self.accounts[id(limit)] = Account()
        return Line(limit, owner, account)

    def at_end(self, undo: Callable[[], Any]) -> None:
        self.undo = [*(self.undo or ()), undo]

    def warn(self, line: Line) -> None:
        limit, account = line.limit, line.account
        used, most = str(account.used), str(limit.maximum)
        self.session.record(LimitWarning, limit.key, limit.scope, used, most, line.owner)

    def result(self) -> RunResult[Any]:
        """Return the result of the turn as it stands."""
        outcome = self.outcome or self.stop
        status, reason, by, text, output = "stopped", "the turn has not ended", None, None, None
        if outcome is not None:
            status, reason, by = outcome.status, outcome.reason or None, outcome.by or None  # type: ignore[assignment]
            if outcome.has_output:
                status, output = "completed", outcome.output
                text = output if isinstance(output, str) and self.output_type is None else None
        if text is None:
            text = self.output.text if self.output is not None else ""
        session, cost = self.session, self.cost()
        return RunResult(
            status,  # type: ignore[arg-type]  # one of them
            reason,
            by,
            text,
            tuple(session.history[self.history_start :]),
            self.totals.usage,
            cost,
            session.id,
            self.turn_id,
            self.waiting,
            output if outcome is not None and outcome.has_output else text,
        )

    def counts(self, key: str) -> bool:
        """Whether a limit on `key` holds for this turn."""
        return any(line.limit.key == key and line.limit.maximum is not None for line in self.lines())

    def cost(self) -> Decimal | None:
        """US dollars of this turn; `None` unless something counts them, or if a price is unknown."""
        for line in self.model_lines():
            if line.limit.key == "usd" and line.limit.scope == "turn" and line.own:
                return Decimal(line.account.used) if line.account.exact else None
        return None

    def abort(self, reason: str, by: str) -> AbortSignal:
        """Mark the turn aborted; the first abort is the one."""
        if not isinstance(self.scope.signal, AbortSignal):
            self.scope.signal = AbortSignal(reason, by=by)
        return self.scope.signal

    def halt(self) -> StopSignal:
        """Return the signal that ends the turn as its stop mark says."""
        stop = self.stop
        signal = StopSignal(stop.reason if stop else "stopped", by=stop.by if stop else "")
        if self.scope.signal is None:
            self.scope.signal = signal
        return signal

    def at_limit(self, reason: str, by: str) -> None:
        """Mark the turn as ended by a limit, unless it is to end already."""
        if self.stop is None:
            self.stop = Stop("limit", reason, by)


class _Call:
    """What a model call and a tool call have in common: the turn they are part of, and services of their own."""

    __slots__ = ()

    if TYPE_CHECKING:
        turn: TurnFrame
        services: Mapping[Any, Any] | None

    @property
    def agent(self) -> AgentFrame:
        return self.turn.agent

    @property
    def session(self) -> SessionFrame:
        return self.turn.session

    def provide(self, key: Any, value: Any) -> None:
        """Make a service known to the layers further in; forks of this call that exist already do not see it."""
        self.services = {**(self.services or {}), key: value}  # type: ignore[misc]  # a slot of every subclass

    def service(self, key: Any) -> Any:
        if self.services is not None and key in self.services:
            return self.services[key]
        return self.turn.service(key)


@attrs.define(eq=False, repr=False)
class ModelFrame(_Call):
    """One model call. Everything a layer may change is an immutable value, so a fork is one copy."""

    turn: TurnFrame
    scope: TurnScope
    request: ModelRequest
    call_index: int
    attempts: list[int]
    """One number, how many dispatches there were; shared by all forks."""
    sink: Sink | None
    asked_by: str | None = None
    transforms: tuple[tuple[str, Callable[[], Any]], ...] = ()
    """Who transforms the deltas, and what makes their transforms."""
    asking: tuple[str, ...] = ()
    """The plugins whose own model call this is part of, outermost first."""
    held: dict[int, Any] | None = None
    """What overlapping attempts streamed, by the identity of their responses."""
    sent: list[ModelRequest] = attrs.Factory(list)
    """The request of the last dispatch; shared by all forks."""

    services: Mapping[Any, Any] | None = None

    def fork(self) -> ModelFrame:
        return ModelFrame(
            self.turn,
            self.scope,
            self.request,
            self.call_index,
            self.attempts,
            self.sink,
            self.asked_by,
            self.transforms,
            self.asking,
            sent=self.sent,
            services=self.services,
        )


@attrs.define(eq=False, repr=False)
class ToolFrame(_Call):
    """One tool call."""

    turn: TurnFrame
    scope: TurnScope
    tool: Tool
    args: Mapping[str, Any]
    call: ToolCall
    index: int
    given: Mapping[str, Any]
    """The arguments as the model wrote them."""
    approved: str = ""
    """The fingerprint of what may run."""
    services: Mapping[Any, Any] | None = None

    def fork(self) -> ToolFrame:
        return attrs.evolve(self)
