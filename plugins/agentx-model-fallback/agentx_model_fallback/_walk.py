"""The way of one model call from model to model."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agentx import ContentPolicyError, ContextWindowError, ModelError


class Walk:
    """Which models are still to be asked in one call, and how those failed that were.

    Args:
        first: the model that the call was meant for.
        others: those to ask after it, in order.
        larger: those to ask when the request does not fit.
        causes: the errors of the first model that lead on.
        left: for how many seconds a model rests.
    """

    def __init__(
        self,
        first: str,
        others: Iterable[str],
        larger: Iterable[str],
        causes: tuple[type[ModelError], ...],
        left: Callable[[str], float],
    ) -> None:
        self.first = first
        self.model = first
        self.failures: list[tuple[str, ModelError]] = []
        self._causes = causes
        order = dict.fromkeys((first, *others))
        self._queue = sorted(order, key=lambda model: left(model) > 0)  # resting ones last, else in their order
        self._larger = [model for model in dict.fromkeys(larger) if model != first]

    def start(self) -> str:
        """Return the model to ask first: the first that does not rest."""
        self.model = self._queue.pop(0)
        return self.model

    def after(self, error: ModelError) -> str | None:
        """Return the model to ask after this failure; `None` if it is final."""
        self.failures.append((self.model, error))
        if not self._leads_on(error):
            return None
        asked = {model for model, _ in self.failures}
        following = next((model for model in self._queue if model not in asked), None)
        if following is not None:
            self.model = following
        return following

    def _leads_on(self, error: ModelError) -> bool:
        """Whether other models are asked after an error.

        Of the model that the call was meant for, only what `on` names. Of those that stand in for it whatever says
        that they cannot answer this: a stand-in that lacks its key or a setting must not hide those behind it.
        """
        is_own, is_named = self.model == self.first, isinstance(error, self._causes)
        if isinstance(error, ContextWindowError) and self._larger:
            self._queue = self._larger + ([] if is_own and not is_named else self._queue)
            self._larger = []
            return True
        return is_named or not (is_own or isinstance(error, ContentPolicyError))

    def blame(self) -> ModelError:
        """Return the error to raise: the first failure, with a note for each that followed.

        A stand-in that refuses the content of the request says more than that.
        """
        model, error = self.failures[0]
        last = self.failures[-1]
        if isinstance(last[1], ContentPolicyError) and last[1] is not error:
            last[1].add_note(f"model.fallback: asked {last[0]} since {model} failed with {_told(error)}")
            return last[1]
        for other, failure in self.failures[1:]:
            error.add_note(f"model.fallback: then {other} failed with {_told(failure)}")
        return error


def _told(error: ModelError) -> str:
    return f"{type(error).__name__}: {error}"
