"""What a log tells of the requests, so that a session can be replayed and compared.

The messages of a request are the history that the log rebuilds. What the history does not tell is kept with
`model.attempt`, and only where it changed: instructions, tools, settings and output format together, what layers added
for the call, and a hash of what they changed in the messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from ._codec import digest
from ._messages import Message


def how_changed(messages: Sequence[Message], history: Sequence[Message]) -> str | None:
    """Return a hash of what is different from a history in the messages of a request; `None` if nothing is."""
    known = len(history)
    changed = [
        [place, message]
        for place, message in enumerate(messages)
        if place >= known or (message is not history[place] and message != history[place])
    ]
    if not changed and len(messages) == known:
        return None
    return digest([len(messages), changed])[:32]
