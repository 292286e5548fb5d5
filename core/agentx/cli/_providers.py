"""What the child process answers about providers: their models, and whether their keys are accepted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from agentx._errors import (
    AgentxError,
    AuthenticationError,
    ModelError,
    ModelNotFoundError,
    PermissionDeniedError,
    QuotaError,
    RequestRejectedError,
)
from agentx._lookup import provider
from agentx._messages import ModelRequest, ModelSettings, user_message
from agentx._models import ModelInfo, split_model_id
from agentx._scan import MODELS, Found, scan

from ._prices import prices_of

if TYPE_CHECKING:
    from ._inside import Child

ANY = "…"
"""Ends the id of a row that stands for all models of a server."""
PATIENCE = 30.0
"""Seconds that a server may take to answer a check."""
ALLOW = "AGENTX_ALLOW_MODEL_REQUESTS"
REFUSED = (AuthenticationError, PermissionDeniedError, QuotaError)
ACCEPTED = (RequestRejectedError, ModelNotFoundError)
"""A server says this to somebody whose key it knows."""


def _providers(child: Child, wanted: str) -> Iterator[tuple[str, Found | None, Any]]:
    """Yield prefix, origin and provider of those that are installed, and of other names of them.

    In the place of one that cannot be made stands its error. With `wanted` it is that one alone.
    """
    installed, tables = scan(), child.config().models
    known = dict(installed.group(MODELS))
    for prefix, settings in tables.settings(known).items():
        other = settings.get(("provider",))
        if other is not None and other.value in known:
            known.setdefault(prefix, known[str(other.value)])
    if wanted and wanted not in known:
        provider(wanted, installed, tables)  # raises, and says what to install
    for prefix, entry in known.items():
        if wanted and prefix != wanted:
            continue
        try:
            if prefix in child.failed:
                raise AgentxError(child.failed[prefix])
            child.at(prefix)
            yield prefix, entry, provider(prefix, installed, tables)
        except (Exception, SystemExit) as error:
            yield prefix, entry, error
    for problem in installed.problems:
        if any(claim.group == MODELS for claim in problem.claims) and wanted in ("", problem.name):
            yield problem.name, None, AgentxError(problem.reason)


def models(child: Child) -> Any:
    """What every provider lists, which could not be asked, and what those need that list nothing."""
    wanted = child.options.get("prefix", "")
    found: list[dict[str, Any]] = []
    problems: list[dict[str, Any]] = []
    for prefix, entry, made in _providers(child, wanted):
        known = {
            "provider": prefix,
            "distribution": entry.distribution if entry else "",
            "version": entry.version if entry else "",
        }
        try:
            pulls = callable(getattr(made, "pull", None))  # it runs here, and nobody sells it
            is_priced = bool(child.options.get("prices")) and not pulls
            listed = [{**_row(info, is_priced), **known, "pulls": pulls} for info in _listed(made)]
        except (Exception, SystemExit) as error:
            problems.append({**known, "reason": str(error)})
            continue
        found += listed
        if wanted and not listed:
            problems.append({**known, "reason": _needs(made)})
    return {"models": found, "problems": problems}


def _listed(made: Any) -> Sequence[ModelInfo]:
    if isinstance(made, BaseException):
        raise made
    listed: Sequence[ModelInfo] = made.models()
    return listed


def _row(info: ModelInfo, is_priced: bool) -> dict[str, Any]:
    row = attrs.asdict(info)
    row["key"] = "configuration" if info.key == "given" else info.key
    prices = info.prices or (prices_of(info.id) if is_priced else {})
    row["prices"] = {bucket: str(price) for bucket, price in prices.items()}
    return row


def _needs(made: Any) -> str:
    """Return what a provider that lists nothing needs to be set up."""
    source = getattr(made, "key_source", None)
    if source is not None and not source.origin() and source.required:
        return str(source.missing())
    return "it lists no models"


def check_keys(child: Child) -> Any:
    """What each provider with a key says to one small request; `target` is a prefix, a model id, or nothing for all."""
    target: str = child.options.get("target", "")
    prefix, _, name = target.replace(":", "/", 1).partition("/")
    return [
        finding
        for found, _, made in _providers(child, prefix)
        if (finding := _checked(found, made, name, is_wanted=bool(prefix))) is not None
    ]


def _checked(prefix: str, made: Any, name: str, *, is_wanted: bool) -> dict[str, str] | None:
    """Return what is to be said of a provider's key; nothing of one that needs none."""
    try:
        listed = _listed(made)
        source = getattr(made, "key_source", None)
        has_key = any(info.key for info in listed) or bool(source is not None and source.origin())
        if not has_key and not is_wanted:
            return None
        name = name or _cheapest(listed)
        if not name:
            fix = f"agentx doctor --check-keys {prefix}/MODEL"
            return _said(prefix, "note", "no model is known that could be asked: name one", fix)
        from agentx.providers import HttpProvider

        if not _is_allowed() and not isinstance(made, HttpProvider):  # that one knows which servers are allowed
            return _said(prefix, "note", f"not asked, since {ALLOW} is {os.environ[ALLOW]}")
        problem = anyio.run(_problem, made, prefix, name)
    except (Exception, SystemExit) as error:
        return _said(prefix, "wrong" if is_wanted else "note", f"cannot be asked: {error}")
    origin = next((info.key for info in listed if info.key), source.origin() if source is not None else "")
    key = {"": "without a key", "given": "the key of the configuration"}.get(origin, f"the key ({origin})")
    return _verdict(prefix, made, key, f"{prefix}/{name}", problem)


def _verdict(prefix: str, made: Any, key: str, model: str, problem: BaseException | None) -> dict[str, str]:
    if problem is None:
        return _said(prefix, "fine", f"{key}: {model} answered")
    from agentx.providers import masked

    found = made.key_source.find() if getattr(made, "key_source", None) is not None else None
    told = masked(f"{type(problem).__name__}: {problem}", [found[0].reveal()] if found else [])
    if isinstance(problem, PermissionDeniedError) and problem.status is None and not _is_allowed():
        return _said(prefix, "note", f"not asked: {problem}")
    if isinstance(problem, REFUSED):
        return _said(prefix, "wrong", f"{key} asked {model}: {told}" if found else told)
    what = "was accepted, but the request was not" if isinstance(problem, ACCEPTED) else "could not be checked"
    return _said(prefix, "note", f"{key} {what}: {told}")


def _is_allowed() -> bool:
    return os.environ.get(ALLOW, "").strip().lower() not in ("0", "false", "no", "off")


def _said(prefix: str, verdict: str, text: str, fix: str = "") -> dict[str, str]:
    return {"provider": prefix, "verdict": verdict, "text": text, "fix": fix}


def _cheapest(listed: Sequence[ModelInfo]) -> str:
    """Return the name of the model that costs the least, of those whose price is known, else of the first."""
    concrete = [info for info in listed if not info.id.endswith(ANY)]
    if not concrete:
        return ""
    priced = [(prices["output_tokens"], info.id) for info in concrete if "output_tokens" in (prices := _prices(info))]
    return split_model_id(min(priced)[1] if priced else concrete[0].id)[1]


def _prices(info: ModelInfo) -> Any:
    return info.prices or prices_of(info.id)


async def _problem(made: Any, prefix: str, name: str) -> ModelError | TimeoutError | None:
    """Ask for a few tokens; return how that failed."""

    async def unheard(delta: Any) -> None:
        """Nobody listens."""

    settings = ModelSettings(max_tokens=16, timeout=PATIENCE)
    request = ModelRequest(f"{prefix}/{name}", (user_message("Say hi."),), settings=settings)
    try:
        with anyio.fail_after(PATIENCE + 5):
            await made.model(name).respond(request, unheard)
    except (ModelError, TimeoutError) as error:
        return error
    finally:
        close = getattr(made, "aclose", None)
        if close is not None:
            await close()
    return None
