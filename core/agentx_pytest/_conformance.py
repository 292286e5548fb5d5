"""The tests that every plugin should pass, as a class to derive from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

if TYPE_CHECKING:
    from agentx import ModelRequest, Plugin


class PluginConformance:
    """Tests of the contract that every plugin has with the agent and with the other plugins.

        class TestBudget(PluginConformance):
            def plugin(self):
                return Budget(limit_usd=Decimal("5.00"))

    Each test runs a small conversation with a scripted model and a tool, on asyncio and on trio (if it is installed).
    What a plugin does by purpose is said by the attributes below.
    """

    prompt: ClassVar[str] = "Please look up {word}."
    """What the user says; `{word}` differs between sessions."""
    deps: ClassVar[Any] = None
    """The application's `deps`."""
    short_circuits: ClassVar[Sequence[str]] = ()
    """Hooks in which it may return a result without calling `call_next`, as a cache does."""
    changes: ClassVar[Sequence[str]] = ()
    """Hooks in which it returns another result than `call_next` did, as a translator does."""
    handles_errors: ClassVar[Sequence[str]] = ()
    """Hooks in which it may answer although `call_next` raised, as a fallback does."""
    held_seconds: ClassVar[float] = 0.05
    """How long its code may keep the event loop at a time."""

    def plugin(self) -> Plugin[Any]:
        """Return a new instance of the plugin."""
        raise NotImplementedError(f"{type(self).__name__} needs `def plugin(self)` that returns a new instance")

    def companions(self) -> Sequence[Plugin[Any]]:
        """Return new instances of the plugins that it needs beside it."""
        return ()

    def reply(self, request: ModelRequest) -> Any:
        """Answer in place of the scripted model: what an entry of a script may be, or `None` for its own answer."""
        return None

    def tools(self) -> Sequence[Any]:
        """Return tools of the application, beside the one that looks words up."""
        return ()

    @pytest.fixture(params=["asyncio", "trio"])
    def agentx_backend(self, request: pytest.FixtureRequest) -> str:
        if request.param == "trio":
            pytest.importorskip("trio")
        backend: str = request.param
        return backend

    def test_a_plain_turn_goes_through(self, agentx_backend: str) -> None:
        self.run_check("plain_turn", agentx_backend)

    def test_call_next_is_called_once_and_awaited(self, agentx_backend: str) -> None:
        self.run_check("call_next_once", agentx_backend)

    def test_every_hook_runs(self, agentx_backend: str) -> None:
        self.run_check("every_hook_runs", agentx_backend)

    def test_results_pass_unchanged(self, agentx_backend: str) -> None:
        self.run_check("results_pass", agentx_backend)

    def test_exceptions_pass_unchanged(self, agentx_backend: str) -> None:
        self.run_check("exceptions_pass", agentx_backend)

    def test_cancellation_passes(self, agentx_backend: str) -> None:
        self.run_check("cancellation_passes", agentx_backend)

    def test_abort_passes(self, agentx_backend: str) -> None:
        self.run_check("abort_passes", agentx_backend)

    def test_no_task_is_left(self, agentx_backend: str) -> None:
        self.run_check("no_task_is_left", agentx_backend)

    def test_twenty_sessions_at_once_are_apart(self, agentx_backend: str) -> None:
        self.run_check("sessions_are_apart", agentx_backend)

    def test_the_event_loop_is_not_blocked(self, agentx_backend: str) -> None:
        self.run_check("loop_is_not_blocked", agentx_backend)

    def test_context_variables_are_restored(self, agentx_backend: str) -> None:
        self.run_check("context_variables_are_restored", agentx_backend)

    def test_observers_change_nothing(self, agentx_backend: str) -> None:
        self.run_check("observers_change_nothing", agentx_backend)

    def test_the_stream_is_the_answer(self, agentx_backend: str) -> None:
        self.run_check("stream_is_the_answer", agentx_backend)

    def test_its_state_survives(self, agentx_backend: str) -> None:
        self.run_check("state_survives", agentx_backend)

    def test_one_instance_serves_two_agents(self, agentx_backend: str) -> None:
        self.run_check("one_instance_serves_two_agents", agentx_backend)

    def test_unknown_settings_are_refused(self, agentx_backend: str) -> None:
        self.run_check("unknown_settings_are_refused", agentx_backend)

    def test_the_instance_does_not_change(self, agentx_backend: str) -> None:
        self.run_check("instance_does_not_change", agentx_backend)

    def run_check(self, name: str, backend: str) -> None:
        """Run one check of `agentx.testing.CHECKS`; what does not apply is skipped."""
        __tracebackhide__ = True
        import anyio

        from agentx.testing import ConformanceError, NotChecked, Subject, check

        subject = Subject(
            make=self.plugin,
            companions=self.companions,
            deps=self.deps,
            tools=self.tools(),
            prompt=self.prompt,
            reply=self.reply,
            short_circuits=self.short_circuits,
            changes=self.changes,
            handles_errors=self.handles_errors,
            held_seconds=self.held_seconds,
        )
        problem = ""
        try:
            anyio.run(check, name, subject, backend=backend)
        except NotChecked as reason:
            pytest.skip(str(reason))
        except ConformanceError as error:
            if error.__cause__ is not None:
                raise
            problem = str(error)
        if problem:  # outside of the except: the way through the checks tells an author nothing
            pytest.fail(problem, pytrace=False)
