"""Tokens and API keys that show what they are.

There is no maintained list of token formats for Python that is small enough for the middle of an answer: detect-secrets
had its last release in 2024 and imports an HTTP client, the bindings of Kingfisher take 45 MB and seconds to start.
So the table below follows what the issuers document, and takes lengths as minima, since issuers lengthen their tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ._private_key import find_private_keys
from ._spans import Span

_WORD = "[A-Za-z0-9]"
_URL_SAFE = "[A-Za-z0-9_-]"
_FORMATS = (
    # JSON Web Tokens, signed or encrypted (RFC 7519): the header's `{"` is `ey` in base64
    rf"ey{_URL_SAFE}{{8,}}\.{_URL_SAFE}{{8,}}(?:\.{_URL_SAFE}*){{1,3}}",
    # models: OpenAI, Anthropic, OpenRouter, DeepSeek and others; Groq, xAI, Perplexity, Replicate, Hugging Face, Google
    rf"sk-(?=[A-Za-z_-]*[0-9]){_URL_SAFE}{{20,}}",
    rf"(?:gsk|hf|r8|api_org)_{_WORD}{{24,}}",
    rf"(?:xai|pplx|tvly)-{_URL_SAFE}{{20,}}",
    rf"AIza{_URL_SAFE}{{30,}}",
    rf"(?:ya29\.|GOCSPX-){_URL_SAFE}{{20,}}",
    rf"lsv2_(?:pt|sk)_{_URL_SAFE}{{30,}}",
    # code hosting and package indexes
    rf"gh[opsur]_{_WORD}{{20,}}",
    r"github_pat_[A-Za-z0-9_]{20,}",
    r"gl(?:agent|cbt|dt|ffct|ft|imt|oas|pat|ptt|rt|soat)-[A-Za-z0-9_.-]{20,}",
    rf"(?:npm|rubygems)_{_WORD}{{36,}}",
    rf"pypi-{_URL_SAFE}{{40,}}",
    rf"dckr_(?:pat|oat)_{_URL_SAFE}{{20,}}",
    rf"AT(?:ATT|CTT)3{_URL_SAFE}{{40,}}(?:=[A-F0-9]{{8}})?",
    # clouds and infrastructure
    rf"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{{16}}(?!{_WORD})",
    r"AccountKey=[A-Za-z0-9+/]{80,}={0,2}",
    r"do[oprt]_v1_[a-f0-9]{64}",
    r"(?:sbp|pscale_(?:oauth|pw|tkn)|sb_secret|figd|ntn|nfp)_[A-Za-z0-9_.-]{24,}",
    r"dapi[a-f0-9]{32}(?:-\d)?",
    rf"hv[brs]\.{_URL_SAFE}{{20,}}",
    rf"{_WORD}{{14}}\.atlasv1\.{_URL_SAFE}{{60,}}",
    rf"dp\.(?:audit|ct|pt|sa|scim|st)\.(?:[a-z0-9_-]+\.)?{_WORD}{{40,}}",
    r"(?:glsa|glc)_[A-Za-z0-9_+/=]{30,}",
    r"sntry[su]_[A-Za-z0-9_+/=.]{40,}",
    rf"NRAK-{_WORD}{{27}}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
    rf"ops_ey{_URL_SAFE}{{60,}}",
    # payment, mail, chat, work
    rf"(?:sk|rk)_(?:live|test)_{_WORD}{{10,}}",
    r"whsec_[A-Za-z0-9+/=]{24,}",
    rf"sq0[a-z]{{3}}-{_URL_SAFE}{{22,}}",
    r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}",
    rf"SG\.{_URL_SAFE}{{16,}}\.{_URL_SAFE}{{30,}}",
    r"key-[a-f0-9]{32}",
    r"[a-f0-9]{32}-us[0-9]{1,2}",
    r"(?:AC|SK)[a-f0-9]{32}",
    r"xox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,}",
    r"xapp-[0-9]-[A-Za-z0-9-]{10,}",
    rf"hooks\.slack\.com/services/T{_WORD}+/B{_WORD}+/{_WORD}+",
    rf"[0-9]{{8,10}}:AA{_URL_SAFE}{{33}}",
    rf"[MNO]{_URL_SAFE}{{23,27}}\.{_URL_SAFE}{{6}}\.{_URL_SAFE}{{27,}}",
    rf"lin_(?:api|oauth)_{_WORD}{{30,}}",
    r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}",
)
_TOKEN = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_FORMATS)})")
_BEARER = re.compile("(?i:(?<![a-z])bearer)[ \u00a0\u2007\u2009\u202f]{1,3}(?P<token>[A-Za-z0-9._~+/-]{16,}=*)")
_IN_URL = re.compile(r"://(?P<login>[^/:?#]*:[^/?#]+)@")  # up to the last @, which a password may hold itself
_SHORTEST = 16


def find_tokens(text: str) -> Iterator[Span]:
    """Find tokens of known form, bearer tokens, name and password in a URL, and private keys."""
    if len(text) >= _SHORTEST:
        for match in _TOKEN.finditer(text):
            yield Span(match.start(), match.end(), "token")
        for match in _BEARER.finditer(text):
            yield Span(*match.span("token"), "token")
        yield from find_private_keys(text)
    if "://" in text:
        for match in _IN_URL.finditer(text):
            yield Span(*match.span("login"), "token")
