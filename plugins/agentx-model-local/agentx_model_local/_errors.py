"""What goes wrong with a model on this machine; all of it is in agentx's tree.

ModelNotFoundError
└── WeightsMissingError    the weights have not been pulled, or the file is not there
ModelError
├── WeightsCorruptError    a file is not the one that was published (sha256)
├── PullError              the weights could not be fetched
├── RuntimeMissingError    the package that runs the model is not installed, or not made for this platform
└── EngineError            the process that runs the model failed
"""

from agentx import ModelError, ModelNotFoundError


class WeightsMissingError(ModelNotFoundError):
    code = "local-weights-missing"


class WeightsCorruptError(ModelError):
    code = "local-weights-corrupt"


class PullError(ModelError):
    code = "local-pull"


class RuntimeMissingError(ModelError):
    code = "local-runtime-missing"


class EngineError(ModelError):
    code = "local-engine"
