"""agentx: a small agent loop whose every behaviour is a pip-installable plugin.

Names are imported when they are first used, so that the command line starts fast.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._agent import (
        Agent as Agent,
    )
    from ._clock import (
        Clock as Clock,
        SYSTEM_CLOCK as SYSTEM_CLOCK,
    )
    from ._context import (
        AgentContext as AgentContext,
        Key as Key,
        ModelContext as ModelContext,
        SessionContext as SessionContext,
        ToolContext as ToolContext,
        TurnContext as TurnContext,
    )
    from ._errors import (
        AgentxError as AgentxError,
        AuthenticationError as AuthenticationError,
        BadResponseError as BadResponseError,
        CodecError as CodecError,
        ConfigError as ConfigError,
        ContentPolicyError as ContentPolicyError,
        ContextWindowError as ContextWindowError,
        EventLoopRunningError as EventLoopRunningError,
        HookError as HookError,
        ModelConnectionError as ModelConnectionError,
        ModelError as ModelError,
        ModelNotFoundError as ModelNotFoundError,
        ModelTimeoutError as ModelTimeoutError,
        NoOutputError as NoOutputError,
        OrderError as OrderError,
        OverloadedError as OverloadedError,
        PermissionDeniedError as PermissionDeniedError,
        PluginError as PluginError,
        PluginLoadError as PluginLoadError,
        QuotaError as QuotaError,
        RateLimitError as RateLimitError,
        RequestRejectedError as RequestRejectedError,
        ServerError as ServerError,
        ServiceError as ServiceError,
        SessionAccessError as SessionAccessError,
        SessionBusyError as SessionBusyError,
        SessionClosedError as SessionClosedError,
        SessionConflictError as SessionConflictError,
        SessionError as SessionError,
        SessionPausedError as SessionPausedError,
        StateError as StateError,
        StreamCutError as StreamCutError,
        ToolError as ToolError,
        ToolFailed as ToolFailed,
        ToolNameError as ToolNameError,
        ToolSchemaError as ToolSchemaError,
        TurnAborted as TurnAborted,
        UnknownProviderError as UnknownProviderError,
    )
    from ._events import (
        ApprovalDecided as ApprovalDecided,
        ApprovalRequested as ApprovalRequested,
        DeltaEvent as DeltaEvent,
        ErrorEvent as ErrorEvent,
        Event as Event,
        HistoryReplaced as HistoryReplaced,
        LimitWarning as LimitWarning,
        ModelAttempt as ModelAttempt,
        ModelEnd as ModelEnd,
        ModelRetrying as ModelRetrying,
        ModelStart as ModelStart,
        PluginEvent as PluginEvent,
        PromptPrefixChanged as PromptPrefixChanged,
        SessionEnd as SessionEnd,
        SessionStart as SessionStart,
        StateUpdated as StateUpdated,
        SteerInput as SteerInput,
        SubAgentEvent as SubAgentEvent,
        TextDeltaEvent as TextDeltaEvent,
        ThinkingDeltaEvent as ThinkingDeltaEvent,
        ToolArgsDeltaEvent as ToolArgsDeltaEvent,
        ToolCallEvent as ToolCallEvent,
        ToolProgress as ToolProgress,
        ToolResultEvent as ToolResultEvent,
        ToolStart as ToolStart,
        ToolsChanged as ToolsChanged,
        TurnEnd as TurnEnd,
        TurnStart as TurnStart,
        UnknownEvent as UnknownEvent,
        UserInput as UserInput,
        kind_of as kind_of,
    )
    from ._history import (
        keep_recent as keep_recent,
    )
    from ._hookspecs import (
        CallNext as CallNext,
        hookimpl as hookimpl,
    )
    from ._ledger import (
        Limit as Limit,
    )
    from ._messages import (
        FilePart as FilePart,
        Message as Message,
        ModelRequest as ModelRequest,
        ModelResponse as ModelResponse,
        ModelSettings as ModelSettings,
        OpaquePart as OpaquePart,
        Part as Part,
        TextDelta as TextDelta,
        TextPart as TextPart,
        ThinkingDelta as ThinkingDelta,
        ThinkingPart as ThinkingPart,
        ToolArgsDelta as ToolArgsDelta,
        ToolCall as ToolCall,
        ToolResult as ToolResult,
        ToolSpec as ToolSpec,
        Usage as Usage,
    )
    from ._models import (
        Emit as Emit,
        Model as Model,
        ModelInfo as ModelInfo,
        ModelProvider as ModelProvider,
        Progress as Progress,
        PullsWeights as PullsWeights,
    )
    from ._plugin import (
        Plugin as Plugin,
        reduced as reduced,
        state_field as state_field,
    )
    from ._result import (
        RunResult as RunResult,
    )
    from ._session import (
        Session as Session,
        Stream as Stream,
    )
    from ._store import (
        MemoryStore as MemoryStore,
        SessionLog as SessionLog,
        Store as Store,
    )
    from ._tools import (
        Tool as Tool,
        tool as tool,
    )

_WHERE = {
    "_agent": (
        "Agent",
    ),
    "_clock": (
        "Clock",
        "SYSTEM_CLOCK",
    ),
    "_context": (
        "AgentContext",
        "Key",
        "ModelContext",
        "SessionContext",
        "ToolContext",
        "TurnContext",
    ),
    "_errors": (
        "AgentxError",
        "AuthenticationError",
        "BadResponseError",
        "CodecError",
        "ConfigError",
        "ContentPolicyError",
        "ContextWindowError",
        "EventLoopRunningError",
        "HookError",
        "ModelConnectionError",
        "ModelError",
        "ModelNotFoundError",
        "ModelTimeoutError",
        "NoOutputError",
        "OrderError",
        "OverloadedError",
        "PermissionDeniedError",
        "PluginError",
        "PluginLoadError",
        "QuotaError",
        "RateLimitError",
        "RequestRejectedError",
        "ServerError",
        "ServiceError",
        "SessionAccessError",
        "SessionBusyError",
        "SessionClosedError",
        "SessionConflictError",
        "SessionError",
        "SessionPausedError",
        "StateError",
        "StreamCutError",
        "ToolError",
        "ToolFailed",
        "ToolNameError",
        "ToolSchemaError",
        "TurnAborted",
        "UnknownProviderError",
    ),
    "_events": (
        "ApprovalDecided",
        "ApprovalRequested",
        "DeltaEvent",
        "ErrorEvent",
        "Event",
        "HistoryReplaced",
        "LimitWarning",
        "ModelAttempt",
        "ModelEnd",
        "ModelRetrying",
        "ModelStart",
        "PluginEvent",
        "PromptPrefixChanged",
        "SessionEnd",
        "SessionStart",
        "StateUpdated",
        "SteerInput",
        "SubAgentEvent",
        "TextDeltaEvent",
        "ThinkingDeltaEvent",
        "ToolArgsDeltaEvent",
        "ToolCallEvent",
        "ToolProgress",
        "ToolResultEvent",
        "ToolStart",
        "ToolsChanged",
        "TurnEnd",
        "TurnStart",
        "UnknownEvent",
        "UserInput",
        "kind_of",
    ),
    "_history": (
        "keep_recent",
    ),
    "_hookspecs": (
        "CallNext",
        "hookimpl",
    ),
    "_ledger": (
        "Limit",
    ),
    "_messages": (
        "FilePart",
        "Message",
        "ModelRequest",
        "ModelResponse",
        "ModelSettings",
        "OpaquePart",
        "Part",
        "TextDelta",
        "TextPart",
        "ThinkingDelta",
        "ThinkingPart",
        "ToolArgsDelta",
        "ToolCall",
        "ToolResult",
        "ToolSpec",
        "Usage",
    ),
    "_models": (
        "Emit",
        "Model",
        "ModelInfo",
        "ModelProvider",
        "Progress",
        "PullsWeights",
    ),
    "_plugin": (
        "Plugin",
        "reduced",
        "state_field",
    ),
    "_result": (
        "RunResult",
    ),
    "_session": (
        "Session",
        "Stream",
    ),
    "_store": (
        "MemoryStore",
        "SessionLog",
        "Store",
    ),
    "_tools": (
        "Tool",
        "tool",
    ),
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names}
__all__ = sorted(_MODULES)  # noqa: PLE0605  # the same names as above; a test compares them


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'agentx' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
