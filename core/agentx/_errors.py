"""Everything agentx raises.

    AgentxError
    ├── ConfigError                a configuration file, variable or field is wrong
    ├── PluginError                a plugin broke the contract of a hook
    │   ├── PluginLoadError        plugins that could not be loaded, all of them at once
    │   ├── HookError              a layer forgot its return, its await or call_next, or called it too often
    │   └── OrderError             constraints that contradict each other
    ├── ToolError                  a tool cannot be built or registered
    │   ├── ToolSchemaError        an annotation that no JSON Schema can express
    │   └── ToolNameError          two owners of one tool name
    ├── ToolFailed                 what a tool layer sees when the tool itself failed
    ├── ApprovalError              a decision that no waiting call is bound to
    ├── StateError                 a state class or an update that cannot be merged or stored
    ├── LimitError                 a limit that would never hold, or whose own functions fail
    ├── ServiceError               nobody provides what a plugin needs
    ├── SessionError
    │   ├── SessionAccessError     the session is unknown, or belongs to somebody else
    │   ├── SessionBusyError       a turn is running
    │   ├── SessionConflictError   another process writes this session
    │   ├── SessionPausedError     the session waits for decisions
    │   └── SessionClosedError     the session or agent is closed, or a layer of it failed
    ├── StoreError                 a store cannot be opened, read or written
    │   └── StoreLockedError       others hold its file for longer than its `busy_timeout`
    ├── OutputError                an `output=` that no JSON Schema can express
    ├── NoOutputError              `.output` of a turn that has none
    ├── TurnAborted                a plugin aborted the turn
    ├── EventLoopRunningError      `run_sync` inside a running event loop
    ├── CodecError                 something that cannot become JSON, or come back from it
    └── ModelError                 the model call failed (`retryable`, `retry_after`, `status`, `code`)
        ├── UnknownProviderError   no plugin serves this `provider/`
        ├── AuthenticationError    PermissionDeniedError    ModelNotFoundError
        ├── RequestRejectedError   ContextWindowError       ContentPolicyError
        ├── RateLimitError         QuotaError               OverloadedError      ServerError
        ├── ModelConnectionError   ModelTimeoutError        StreamCutError
        └── BadResponseError       the model answered with something that is no answer

Control flow is not an error: `TurnSignal` and its kinds derive from `BaseException`, so that no `except Exception`
in a layer can catch them. They never leave the turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._messages import Usage
    from ._result import RunResult


class AgentxError(Exception):
    """Root of everything agentx raises. `code` is stable and has a section in docs/reference/errors.md."""

    code: ClassVar[str] = "error"


class ConfigError(AgentxError):
    code = "config"


class PluginError(AgentxError):
    """`plugin` is the id of the culprit, where one is known."""

    code = "plugin"

    def __init__(self, message: str, *, plugin: str = "") -> None:
        super().__init__(message)
        self.plugin = plugin


class PluginLoadError(PluginError):
    """`failures` holds `(plugin id, reason)` for every plugin that refused to load."""

    code = "plugin-load"

    def __init__(self, message: str, *, failures: Sequence[tuple[str, str]] = (), plugin: str = "") -> None:
        super().__init__(message, plugin=plugin)
        self.failures = tuple(failures)


class HookError(PluginError):
    code = "hook"

    def __init__(self, message: str, *, plugin: str = "", hook: str = "") -> None:
        super().__init__(message, plugin=plugin)
        self.hook = hook


class OrderError(PluginError):
    code = "order"


class ToolError(AgentxError):
    code = "tool"


class ToolSchemaError(ToolError):
    code = "tool-schema"


class ToolNameError(ToolError):
    code = "tool-name"


class ToolFailed(AgentxError):
    """The tool raised, ran out of time or got arguments it does not take; the cause is `__cause__`.

    Tool layers may catch it, or try the call again. At the outer edge it becomes an error result for the model, or
    the `denied` or `ok` one that whoever was asked for an approval decided.
    """

    code = "tool-failed"

    def __init__(self, message: str, *, tool: str = "", reason: str = "error", status: str = "error") -> None:
        super().__init__(message)
        self.tool = tool
        self.reason = reason  # "error" | "timeout" | "arguments" | "exit" | "limiter" | "denied" | "answered"
        self.status = status


class ApprovalError(AgentxError):
    code = "approval"


class StateError(AgentxError):
    code = "state"


class LimitError(AgentxError):
    code = "limit"


class ServiceError(AgentxError):
    code = "service"


class SessionError(AgentxError):
    code = "session"


class SessionAccessError(SessionError):
    code = "session-access"


class SessionBusyError(SessionError):
    code = "session-busy"


class SessionConflictError(SessionError):
    code = "session-conflict"


class SessionPausedError(SessionError):
    code = "session-paused"


class SessionClosedError(SessionError):
    code = "session-closed"


class StoreError(AgentxError):
    code = "store"


class StoreLockedError(StoreError):
    code = "store-locked"


class OutputError(AgentxError):
    code = "output"


class NoOutputError(AgentxError):
    """`status` and `reason` are those of the turn."""

    code = "no-output"

    def __init__(self, message: str, *, status: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class TurnAborted(AgentxError):
    """`by` is the plugin that aborted, `result` what there was by then."""

    code = "turn-aborted"

    def __init__(self, reason: str, *, by: str = "", result: RunResult[Any] | None = None) -> None:
        super().__init__(f"turn aborted by {by or 'the application'}: {reason}")
        self.reason = reason
        self.by = by
        self.result = result


class EventLoopRunningError(AgentxError):
    code = "event-loop"


class CodecError(AgentxError):
    code = "codec"


class ModelError(AgentxError):
    """A model call that failed.

    Args:
        retryable: whether the same call may succeed later; the class decides unless told otherwise.
        retry_after: seconds the provider asked to wait, never waited less.
        status: the HTTP status, where there was one.
        provider_code: the provider's own code, kept as it came.
        request_id: the provider's id of the call, for its support.
        usage: what the failed call used, where the provider said so.
    """

    code = "model"
    retryable_by_default: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
        status: int | None = None,
        provider_code: str | None = None,
        request_id: str | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = self.retryable_by_default if retryable is None else retryable
        self.retry_after = retry_after
        self.status = status
        self.provider_code = provider_code
        self.request_id = request_id
        self.usage = usage


class UnknownProviderError(ModelError):
    code = "model-provider"


class AuthenticationError(ModelError):
    code = "model-authentication"


class PermissionDeniedError(ModelError):
    code = "model-permission"


class ModelNotFoundError(ModelError):
    code = "model-not-found"


class RequestRejectedError(ModelError):
    code = "model-rejected"


class ContextWindowError(ModelError):
    code = "model-context-window"


class ContentPolicyError(ModelError):
    code = "model-content-policy"


class RateLimitError(ModelError):
    code = "model-rate-limit"
    retryable_by_default = True


class QuotaError(ModelError):
    code = "model-quota"


class OverloadedError(ModelError):
    code = "model-overloaded"
    retryable_by_default = True


class ServerError(ModelError):
    code = "model-server"
    retryable_by_default = True


class ModelConnectionError(ModelError):
    code = "model-connection"
    retryable_by_default = True


class ModelTimeoutError(ModelError):
    code = "model-timeout"
    retryable_by_default = True


class StreamCutError(ModelError):
    code = "model-stream-cut"
    retryable_by_default = True


class BadResponseError(ModelError):
    code = "model-bad-response"


class TurnSignal(BaseException):
    """The turn is over, whatever a layer between here and its edge would like. Never leaves the turn."""

    def __init__(self, reason: str, *, by: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.by = by


class AbortSignal(TurnSignal):
    """Raised by `ctx.abort`; becomes `TurnAborted` at the edge of the turn."""


class StopSignal(TurnSignal):
    """Raised where a stopped turn, or one that a limit refuses, would start a model call; becomes its status."""


class PauseSignal(TurnSignal):
    """Raised where a call waits for a decision that nobody gives now; the call stays pending, others go on."""
