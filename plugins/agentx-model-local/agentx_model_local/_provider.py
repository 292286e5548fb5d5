"""What `local/…` names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentx import Model, ModelInfo, ModelNotFoundError

from ._auto import AutoModel
from ._engine import is_installed
from ._file import GgufModel
from ._needle import NeedleModel
from ._pull import Progress, pull
from ._smollm2 import SmolLM2Model
from ._weights import ALL, NEEDLE, SMOLLM2, Weights

_BUILT_IN = (
    (
        "auto",
        "Needle 3 chooses tools and SmolLM2-135M writes; makes up facts, one step, no reasoning, English",
        (("needle_rs", NEEDLE), ("xllamacpp", SMOLLM2)),
    ),
    ("needle", "Needle 3 (121 M): chooses tools and fills their arguments, writes no text", (("needle_rs", NEEDLE),)),
    ("smollm2", "SmolLM2-135M-Instruct: writes text, chooses tools badly", (("xllamacpp", SMOLLM2),)),
)


class LocalProvider:
    """The entry point `local` of the group `agentx.models`."""

    def model(self, name: str) -> Model:
        """Return `auto`, `needle`, `smollm2`, or the model in the GGUF file at the path `name`."""
        if name == "auto":
            return AutoModel()
        if name == "needle":
            return NeedleModel()
        if name == "smollm2":
            return SmolLM2Model()
        if name.lower().endswith(".gguf"):
            return GgufModel(f"local/{name}", Path(name).expanduser())
        raise ModelNotFoundError(
            f"there is no model local/{name}: it is local/auto, local/needle, local/smollm2, or local/ and the path of "
            "a .gguf file"
        )

    def models(self) -> Sequence[ModelInfo]:
        """Return the built-in models and whether each can answer now. Nothing heavy is imported."""
        return [_info(name, description, needs) for name, description, needs in _BUILT_IN]

    def pull(self, *, source: Path | None = None, progress: Progress | None = None) -> Sequence[Path]:
        """Fetch the weights of Needle and SmolLM2, from `source` if given, and return where they are."""
        return pull(ALL, source=source, progress=progress)


def _info(name: str, description: str, needs: tuple[tuple[str, Weights], ...]) -> ModelInfo:
    runtimes = [package.replace("_", "-") for package, _ in needs if not is_installed(package)]
    files = [weights.file for _, weights in needs if not weights.is_here]
    detail = ""
    if runtimes:
        detail = f"not installed: {', '.join(runtimes)}"
    elif files:
        detail = f"run `agentx models pull local` for {', '.join(files)}"
    return ModelInfo(f"local/{name}", description, ready=not (runtimes or files), detail=detail)
