"""What a provider of models behind an HTTP interface needs, and nothing else; `import agentx` does not load it.

Connection, Exchange, Timeouts    HTTP: pooled, silence limited by phase, errors of `agentx`'s tree
SSEDecoder                        server-sent events from bytes split anywhere
Failure, error_of, retry_after    status and code → error
KeySource, Secret, masked         where a key comes from, and that nobody sees it
HttpProvider                      the settings of `[models.<prefix>]`
check_request, can_read           what a model cannot do is refused before the request
adapt                             the history as one provider can read it
Assembler, Totals                 pieces of a stream → deltas and the one response
Reading                           an answer that is being read: its JSON, its errors
"""

from ._assembler import Assembler, Totals
from ._body import to_json
from ._checks import SETTINGS, can_read, check_request
from ._failures import STATUSES, ErrorTable, Failure, bounded, class_of, error_of, request_id, retry_after
from ._history import NO_RESULT, Adapted, adapt
from ._http import Connection, Exchange, Timeouts, shown_url
from ._keys import KeySource, Secret, masked
from ._provider import HttpProvider
from ._reading import Reading
from ._sse import Event, SSEDecoder

__all__ = [
    "NO_RESULT",
    "SETTINGS",
    "STATUSES",
    "Adapted",
    "Assembler",
    "Connection",
    "ErrorTable",
    "Event",
    "Exchange",
    "Failure",
    "HttpProvider",
    "KeySource",
    "Reading",
    "SSEDecoder",
    "Secret",
    "Timeouts",
    "Totals",
    "adapt",
    "bounded",
    "can_read",
    "check_request",
    "class_of",
    "error_of",
    "masked",
    "request_id",
    "retry_after",
    "shown_url",
    "to_json",
]
