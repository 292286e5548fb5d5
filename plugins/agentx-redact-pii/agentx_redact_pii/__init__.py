"""agentx-redact-pii: keep personal data and secrets from the model, the log and the store."""

from ._plugin import KINDS, VAULT, RedactPii
from ._vault import UnknownPlaceholderError, Vault

__all__ = ["KINDS", "VAULT", "RedactPii", "UnknownPlaceholderError", "Vault"]
