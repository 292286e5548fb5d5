"""Small language models for agentx that arrive through pip: no key, no server, no download at run time."""

from ._auto import AutoModel
from ._errors import EngineError, PullError, RuntimeMissingError, WeightsCorruptError, WeightsMissingError
from ._file import GgufModel
from ._needle import NeedleModel
from ._provider import LocalProvider
from ._smollm2 import SmolLM2Model

PROVIDER = LocalProvider()
"""What the entry point `local` of the group `agentx.models` names."""

__all__ = [
    "PROVIDER",
    "AutoModel",
    "EngineError",
    "GgufModel",
    "LocalProvider",
    "NeedleModel",
    "PullError",
    "RuntimeMissingError",
    "SmolLM2Model",
    "WeightsCorruptError",
    "WeightsMissingError",
]
