"""The channel of mean departure delays, and its checksum outside of Spark."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

CHANNEL = "delays"
PARTITIONS = 1
HASH_DIGITS = 15
"""So many hexadecimal digits of a record's SHA-256 are summed: less than 64 bits."""
MEAN_SCALE = 1_000_000.0


def checksum_text(record: Mapping[str, Any]) -> str:
    """Return the text that stands for a record in the checksum, the same that Spark builds."""
    mean = record["mean_delay_minutes"]
    scaled = "" if mean is None else str(math.floor(mean * MEAN_SCALE))
    parts = (record["carrier"], record["hour"], record["flights"], record["departed"], scaled)
    return "|".join(map(str, parts))


def checksum(record: Mapping[str, Any]) -> int:
    """Return a record's summand of the order-free checksum."""
    digest = hashlib.sha256(checksum_text(record).encode()).hexdigest()
    return int(digest[:HASH_DIGITS], 16)
