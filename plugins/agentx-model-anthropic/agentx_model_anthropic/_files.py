"""Files as the Messages API takes them."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from agentx import FilePart

IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
TEXTS = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/toml", "application/javascript"}
)
PDF = "application/pdf"


def media_type(part: FilePart) -> str:
    """Return the bare media type; `image/jpg` is what many call a JPEG."""
    kind = part.media_type.partition(";")[0].strip().lower()
    return "image/jpeg" if kind == "image/jpg" else kind


def can_send(part: FilePart) -> bool:
    """Whether the API takes a file: images, PDFs and text by bytes, images and PDFs by URL, whatever it has by id."""
    kind = media_type(part)
    if part.file_id is not None:
        return not kind.startswith(("audio/", "video/"))
    return kind in IMAGES or kind == PDF or (part.data is not None and _is_text(kind))


def _is_text(kind: str) -> bool:
    return kind.startswith("text/") or kind in TEXTS


def block(part: FilePart, *, citations: bool = False) -> dict[str, Any]:
    """Return the block of a file that can be sent.

    Args:
        citations: whether the model shall cite documents.
    """
    kind = media_type(part)
    if kind.startswith("image/"):
        return {"type": "image", "source": _source(part, kind)}
    document: dict[str, Any] = {"type": "document", "source": _source(part, kind)}
    if part.name:
        document["title"] = part.name
    if citations:
        document["citations"] = {"enabled": True}
    return document


def _source(part: FilePart, kind: str) -> dict[str, Any]:
    if part.file_id is not None:
        return {"type": "file", "file_id": part.file_id}
    if part.url is not None:
        return {"type": "url", "url": part.url}
    data = part.data or b""
    if kind in IMAGES or kind == PDF:
        return {"type": "base64", "media_type": kind, "data": b64encode(data).decode()}
    return {"type": "text", "media_type": "text/plain", "data": data.decode("utf-8", "replace")}
