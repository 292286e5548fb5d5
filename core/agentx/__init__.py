"""agentx: a small agent loop whose every behaviour is a pip-installable plugin."""

from ._agent import Agent
from ._clock import SYSTEM_CLOCK, Clock
from ._context import AgentContext, Key, ModelContext, SessionContext, ToolContext, TurnContext
from ._errors import *  # noqa: F403  # the tree is one thing; its `__all__` is below
from ._history import keep_recent
from ._hookspecs import CallNext, hookimpl
from ._ledger import Limit
from ._messages import (
    FilePart,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    OpaquePart,
    Part,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolArgsDelta,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from ._models import Emit, Model, ModelInfo, ModelProvider
from ._plugin import Plugin, reduced, state_field
from ._result import RunResult
from ._session import Session, Stream
from ._store import MemoryStore
from ._tools import Tool, tool
