"""That Kafka is there and does not let the gateway in."""

from dataclasses import dataclass
from enum import StrEnum


class Misfit(StrEnum):
    """What does not fit."""

    CREDENTIALS = "credentials"
    """User, password or mechanism."""
    CERTIFICATE = "certificate"
    """The broker's, to the gateway, or the gateway's, to the broker."""
    PROTOCOL = "protocol"
    """With TLS or without, with a login or without; or it is no Kafka at all."""


@dataclass(frozen=True, kw_only=True)
class Lockout:
    """`words` say what does not fit and what to do, and stay the same as long as that does."""

    misfit: Misfit
    words: str
