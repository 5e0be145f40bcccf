"""Why Kafka did not do what it was asked to do to one topic."""

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """What stood in the way; it decides what happens next, the message is for people."""

    TOPIC_ABSENT = "topic_absent"
    TOPIC_EXISTS = "topic_exists"
    INVALID_NAME = "invalid_name"
    INVALID_PARTITIONS = "invalid_partitions"
    INVALID_REPLICATION = "invalid_replication"
    INVALID_CONFIG = "invalid_config"
    DENIED = "denied"
    """Kafka's ACLs or policies do not let the gateway do it."""
    UNAVAILABLE = "unavailable"
    """Nothing is wrong with the request; it can succeed later as it is."""
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """One refusal; `message` holds the broker's own words."""

    cause: Cause
    message: str
