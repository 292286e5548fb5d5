"""Ask a llama.cpp server whether its model's chat template knows tools; it drops them without a word if not."""

from __future__ import annotations

from typing import Any

import msgspec

from agentx import ModelError, RequestRejectedError

from ._provider import Credentials, OpenAIProvider


async def check_tools(provider: OpenAIProvider, model: str, name: str, credentials: Credentials) -> None:
    """Refuse tools that the server would drop. Asked once for each model; a server that does not say may have them.

    Raises:
        RequestRejectedError: naming the model and what to change.
    """
    known = provider.tools_known.get(model)
    if known is None:
        known = provider.tools_known[model] = await _asked(provider, name, credentials)
    if not known:
        raise RequestRejectedError(
            f"{name} cannot call tools: the chat template of its server does not know them, and the server would drop "
            "them without a word; start it with a --chat-template that has tools"
        )


async def _asked(provider: OpenAIProvider, name: str, credentials: Credentials) -> bool:
    path = f"/{provider.behaviour.tool_probe}"
    try:
        async with provider.connection.get(path, credentials.headers, model=name) as exchange:
            value: Any = msgspec.json.decode(await exchange.read()) if exchange.status == 200 else None
    except (ModelError, msgspec.DecodeError, UnicodeError):
        return True  # the request itself will tell
    caps = value.get("chat_template_caps") if isinstance(value, dict) else None
    return not isinstance(caps, dict) or caps.get("supports_tools") is not False
