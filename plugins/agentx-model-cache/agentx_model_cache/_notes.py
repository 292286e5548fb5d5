"""What the layer that looks answers up tells the one that keeps them, while a call is under way."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from agentx import ModelResponse, TextDelta, TextPart, ThinkingDelta, ToolArgsDelta

Delta = TextDelta | ThinkingDelta | ToolArgsDelta

Place = tuple[str, str, int]
"""Session, turn and number of a model call."""


class Recorder:
    """A transform of deltas that changes nothing and knows the texts as they came from the model."""

    def __init__(self) -> None:
        self._texts: dict[int, list[str]] = {}

    def feed(self, delta: Delta) -> Iterable[Delta]:
        if isinstance(delta, TextDelta):
            self._texts.setdefault(delta.index, []).append(delta.text)
        return (delta,)

    def finish(self) -> Iterable[Delta]:
        return ()

    def has(self, response: ModelResponse) -> bool:
        """Return whether the texts of a response are those that were recorded."""
        texts = [part.text for part in response.parts if isinstance(part, TextPart)]
        recorded = {index: "".join(pieces) for index, pieces in self._texts.items()}
        return {index: text for index, text in enumerate(texts) if text} == {i: t for i, t in recorded.items() if t}


@attrs.frozen
class Candidate:
    """An answer that may be kept if it reaches the outermost layer as it came from the model."""

    key: str
    response: ModelResponse


class Notes:
    """Candidates by call, for one opening of an agent."""

    def __init__(self) -> None:
        self._calls: dict[Place, list[Candidate]] = {}

    def begin(self, place: Place) -> bool:
        """Expect candidates of a call; `False` if an outer layer does already."""
        is_new = place not in self._calls
        self._calls.setdefault(place, [])
        return is_new

    def add(self, place: Place, candidate: Candidate) -> None:
        if place in self._calls:
            self._calls[place].append(candidate)

    def end(self, place: Place) -> list[Candidate]:
        return self._calls.pop(place, [])
