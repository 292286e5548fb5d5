"""agentx: a small agent loop whose every behaviour is a pip-installable plugin.

Names are imported when they are first used, so that the command line starts fast.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._agent import (
        Agent as Agent,
    )
    from ._approval import (
        Approve as Approve,
    )
    from ._approval import (
        Approver as Approver,
    )
    from ._approval import (
        Deny as Deny,
    )
    from ._approval import (
        Edit as Edit,
    )
    from ._approval import (
        PendingCall as PendingCall,
    )
    from ._approval import (
        Respond as Respond,
    )
    from ._branch import (
        Effect as Effect,
    )
    from ._branch import (
        Rewound as Rewound,
    )
    from ._clock import (
        SYSTEM_CLOCK as SYSTEM_CLOCK,
    )
    from ._clock import (
        Clock as Clock,
    )
    from ._codec import (
        decode as decode,
    )
    from ._codec import (
        digest as digest,
    )
    from ._codec import (
        encode as encode,
    )
    from ._codec import (
        from_plain as from_plain,
    )
    from ._context import (
        AgentContext as AgentContext,
    )
    from ._context import (
        Key as Key,
    )
    from ._context import (
        ModelContext as ModelContext,
    )
    from ._context import (
        SessionContext as SessionContext,
    )
    from ._context import (
        ToolContext as ToolContext,
    )
    from ._context import (
        TurnContext as TurnContext,
    )
    from ._errors import (
        AgentxError as AgentxError,
    )
    from ._errors import (
        ApprovalError as ApprovalError,
    )
    from ._errors import (
        AuthenticationError as AuthenticationError,
    )
    from ._errors import (
        BadResponseError as BadResponseError,
    )
    from ._errors import (
        CodecError as CodecError,
    )
    from ._errors import (
        ConfigError as ConfigError,
    )
    from ._errors import (
        ContentPolicyError as ContentPolicyError,
    )
    from ._errors import (
        ContextWindowError as ContextWindowError,
    )
    from ._errors import (
        EventLoopRunningError as EventLoopRunningError,
    )
    from ._errors import (
        HookError as HookError,
    )
    from ._errors import (
        LimitError as LimitError,
    )
    from ._errors import (
        ModelConnectionError as ModelConnectionError,
    )
    from ._errors import (
        ModelError as ModelError,
    )
    from ._errors import (
        ModelNotFoundError as ModelNotFoundError,
    )
    from ._errors import (
        ModelTimeoutError as ModelTimeoutError,
    )
    from ._errors import (
        NoOutputError as NoOutputError,
    )
    from ._errors import (
        OrderError as OrderError,
    )
    from ._errors import (
        OutputError as OutputError,
    )
    from ._errors import (
        OverloadedError as OverloadedError,
    )
    from ._errors import (
        PermissionDeniedError as PermissionDeniedError,
    )
    from ._errors import (
        PluginError as PluginError,
    )
    from ._errors import (
        PluginLoadError as PluginLoadError,
    )
    from ._errors import (
        QuotaError as QuotaError,
    )
    from ._errors import (
        RateLimitError as RateLimitError,
    )
    from ._errors import (
        RequestRejectedError as RequestRejectedError,
    )
    from ._errors import (
        ServerError as ServerError,
    )
    from ._errors import (
        ServiceError as ServiceError,
    )
    from ._errors import (
        SessionAccessError as SessionAccessError,
    )
    from ._errors import (
        SessionBusyError as SessionBusyError,
    )
    from ._errors import (
        SessionClosedError as SessionClosedError,
    )
    from ._errors import (
        SessionConflictError as SessionConflictError,
    )
    from ._errors import (
        SessionError as SessionError,
    )
    from ._errors import (
        SessionPausedError as SessionPausedError,
    )
    from ._errors import (
        StateError as StateError,
    )
    from ._errors import (
        StoreError as StoreError,
    )
    from ._errors import (
        StoreLockedError as StoreLockedError,
    )
    from ._errors import (
        StreamCutError as StreamCutError,
    )
    from ._errors import (
        ToolError as ToolError,
    )
    from ._errors import (
        ToolFailed as ToolFailed,
    )
    from ._errors import (
        ToolNameError as ToolNameError,
    )
    from ._errors import (
        ToolSchemaError as ToolSchemaError,
    )
    from ._errors import (
        TurnAborted as TurnAborted,
    )
    from ._errors import (
        UnknownProviderError as UnknownProviderError,
    )
    from ._events import (
        ApprovalDecided as ApprovalDecided,
    )
    from ._events import (
        ApprovalRequested as ApprovalRequested,
    )
    from ._events import (
        DeltaEvent as DeltaEvent,
    )
    from ._events import (
        ErrorEvent as ErrorEvent,
    )
    from ._events import (
        Event as Event,
    )
    from ._events import (
        HistoryAdapted as HistoryAdapted,
    )
    from ._events import (
        HistoryReplaced as HistoryReplaced,
    )
    from ._events import (
        InputQueued as InputQueued,
    )
    from ._events import (
        LimitWarning as LimitWarning,
    )
    from ._events import (
        ModelAttempt as ModelAttempt,
    )
    from ._events import (
        ModelEnd as ModelEnd,
    )
    from ._events import (
        ModelRetrying as ModelRetrying,
    )
    from ._events import (
        ModelStart as ModelStart,
    )
    from ._events import (
        PluginEvent as PluginEvent,
    )
    from ._events import (
        PromptPrefixChanged as PromptPrefixChanged,
    )
    from ._events import (
        RecordDamaged as RecordDamaged,
    )
    from ._events import (
        SessionEnd as SessionEnd,
    )
    from ._events import (
        SessionForked as SessionForked,
    )
    from ._events import (
        SessionRewound as SessionRewound,
    )
    from ._events import (
        SessionStart as SessionStart,
    )
    from ._events import (
        StateUpdated as StateUpdated,
    )
    from ._events import (
        SteerInput as SteerInput,
    )
    from ._events import (
        SubAgentEvent as SubAgentEvent,
    )
    from ._events import (
        TextDeltaEvent as TextDeltaEvent,
    )
    from ._events import (
        ThinkingDeltaEvent as ThinkingDeltaEvent,
    )
    from ._events import (
        ToolArgsDeltaEvent as ToolArgsDeltaEvent,
    )
    from ._events import (
        ToolCallEvent as ToolCallEvent,
    )
    from ._events import (
        ToolProgress as ToolProgress,
    )
    from ._events import (
        ToolResultEvent as ToolResultEvent,
    )
    from ._events import (
        ToolsChanged as ToolsChanged,
    )
    from ._events import (
        ToolStart as ToolStart,
    )
    from ._events import (
        TurnEnd as TurnEnd,
    )
    from ._events import (
        TurnStart as TurnStart,
    )
    from ._events import (
        UnknownEvent as UnknownEvent,
    )
    from ._events import (
        UserInput as UserInput,
    )
    from ._events import (
        kind_of as kind_of,
    )
    from ._history import (
        keep_recent as keep_recent,
    )
    from ._hookspecs import (
        CallNext as CallNext,
    )
    from ._hookspecs import (
        hookimpl as hookimpl,
    )
    from ._ledger import (
        Limit as Limit,
    )
    from ._messages import (
        AdaptedDelta as AdaptedDelta,
    )
    from ._messages import (
        FilePart as FilePart,
    )
    from ._messages import (
        Message as Message,
    )
    from ._messages import (
        ModelRequest as ModelRequest,
    )
    from ._messages import (
        ModelResponse as ModelResponse,
    )
    from ._messages import (
        ModelSettings as ModelSettings,
    )
    from ._messages import (
        OpaquePart as OpaquePart,
    )
    from ._messages import (
        OutputFormat as OutputFormat,
    )
    from ._messages import (
        Part as Part,
    )
    from ._messages import (
        TextDelta as TextDelta,
    )
    from ._messages import (
        TextPart as TextPart,
    )
    from ._messages import (
        ThinkingDelta as ThinkingDelta,
    )
    from ._messages import (
        ThinkingPart as ThinkingPart,
    )
    from ._messages import (
        ToolArgsDelta as ToolArgsDelta,
    )
    from ._messages import (
        ToolCall as ToolCall,
    )
    from ._messages import (
        ToolResult as ToolResult,
    )
    from ._messages import (
        ToolSpec as ToolSpec,
    )
    from ._messages import (
        Usage as Usage,
    )
    from ._messages import (
        UsageDelta as UsageDelta,
    )
    from ._models import (
        Capabilities as Capabilities,
    )
    from ._models import (
        Emit as Emit,
    )
    from ._models import (
        Model as Model,
    )
    from ._models import (
        ModelInfo as ModelInfo,
    )
    from ._models import (
        ModelProvider as ModelProvider,
    )
    from ._models import (
        Progress as Progress,
    )
    from ._models import (
        PullsWeights as PullsWeights,
    )
    from ._output import (
        Output as Output,
    )
    from ._plugin import (
        Plugin as Plugin,
    )
    from ._plugin import (
        reduced as reduced,
    )
    from ._plugin import (
        state_field as state_field,
    )
    from ._result import (
        RunResult as RunResult,
    )
    from ._session import (
        Session as Session,
    )
    from ._store import (
        MemoryStore as MemoryStore,
    )
    from ._store import (
        SessionInfo as SessionInfo,
    )
    from ._store import (
        SessionLog as SessionLog,
    )
    from ._store import (
        Store as Store,
    )
    from ._stream import (
        Stream as Stream,
    )
    from ._tokens import (
        TokenMeter as TokenMeter,
    )
    from ._tools import (
        Tool as Tool,
    )
    from ._tools import (
        tool as tool,
    )

_WHERE = {
    "_agent": ("Agent",),
    "_clock": (
        "Clock",
        "SYSTEM_CLOCK",
    ),
    "_codec": (
        "decode",
        "digest",
        "encode",
        "from_plain",
    ),
    "_approval": ("Approve", "Approver", "Deny", "Edit", "PendingCall", "Respond"),
    "_branch": ("Effect", "Rewound"),
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
        "ApprovalError",
        "LimitError",
        "ModelConnectionError",
        "ModelError",
        "ModelNotFoundError",
        "ModelTimeoutError",
        "NoOutputError",
        "OutputError",
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
        "StoreError",
        "StoreLockedError",
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
        "RecordDamaged",
        "SessionEnd",
        "SessionForked",
        "SessionRewound",
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
        "HistoryAdapted",
        "InputQueued",
    ),
    "_history": ("keep_recent",),
    "_hookspecs": (
        "CallNext",
        "hookimpl",
    ),
    "_ledger": ("Limit",),
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
        "AdaptedDelta",
        "UsageDelta",
        "OutputFormat",
    ),
    "_models": (
        "Emit",
        "Model",
        "ModelInfo",
        "ModelProvider",
        "Progress",
        "PullsWeights",
        "Capabilities",
    ),
    "_output": ("Output",),
    "_plugin": (
        "Plugin",
        "reduced",
        "state_field",
    ),
    "_result": ("RunResult",),
    "_session": ("Session",),
    "_stream": ("Stream",),
    "_store": (
        "MemoryStore",
        "SessionInfo",
        "SessionLog",
        "Store",
    ),
    "_tokens": ("TokenMeter",),
    "_tools": (
        "Tool",
        "tool",
    ),
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names}
__all__ = sorted(_MODULES)  # the same names as above; a test compares them


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
