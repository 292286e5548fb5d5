"""Files as both interfaces take them."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from agentx import FilePart, RequestRejectedError

TEXTS = ("application/json", "application/xml", "application/yaml", "application/toml", "application/javascript")
AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def data_url(part: FilePart) -> str:
    return f"data:{part.media_type};base64,{b64encode(part.data or b'').decode()}"


def is_text(part: FilePart) -> bool:
    """Whether a file is shown as text: given by its bytes, which are text."""
    kind = part.media_type.partition(";")[0].strip()
    return part.data is not None and (kind.startswith("text/") or kind in TEXTS)


def as_text(part: FilePart) -> str:
    name = f" {part.name}" if part.name else ""
    return f"[file{name}]\n{(part.data or b'').decode('utf-8', 'replace')}"


def file_name(part: FilePart) -> str:
    return part.name or f"file.{part.media_type.rpartition('/')[2] or 'bin'}"


def chat_can_read(part: FilePart) -> bool:
    """Chat takes images by bytes or URL, audio by bytes, other files by bytes or id."""
    kind = part.media_type.partition("/")[0]
    if kind == "image":
        return part.file_id is None
    if kind == "audio":
        return part.data is not None and part.media_type in AUDIO
    return part.url is None


def responses_can_read(part: FilePart) -> bool:
    return not part.media_type.startswith("audio/")


def chat_part(part: FilePart) -> dict[str, Any]:
    if is_text(part):
        return {"type": "text", "text": as_text(part)}
    if part.media_type.startswith("image/") and part.file_id is None:
        return {"type": "image_url", "image_url": {"url": part.url or data_url(part)}}
    if part.media_type in AUDIO and part.data is not None:
        return {
            "type": "input_audio",
            "input_audio": {"data": b64encode(part.data).decode(), "format": AUDIO[part.media_type]},
        }
    if part.file_id is not None:
        return {"type": "file", "file": {"file_id": part.file_id}}
    if part.data is None:
        raise RequestRejectedError(f"a file of {part.media_type} by URL cannot be sent in a chat: give its bytes")
    return {"type": "file", "file": {"filename": file_name(part), "file_data": data_url(part)}}


def responses_part(part: FilePart) -> dict[str, Any]:
    if is_text(part):
        return {"type": "input_text", "text": as_text(part)}
    if part.media_type.startswith("image/"):
        source = {"file_id": part.file_id} if part.file_id is not None else {"image_url": part.url or data_url(part)}
        return {"type": "input_image", "detail": "auto", **source}
    if part.file_id is not None:
        return {"type": "input_file", "file_id": part.file_id}
    if part.url is not None:
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": file_name(part), "file_data": data_url(part)}
