"""librdkafka's statistics, with channels in place of topics and the group's own offsets."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_INVALID

__all__ = ["PartitionProgress", "channel_statistics"]

_UNKNOWN: Final = -1


class PartitionProgress(NamedTuple):
    """How far a consumer has come in an assigned partition.

    `committed` is None without a committed offset, `end` is -1 until it is known.
    """

    committed: int | None
    next_offset: int
    end: int


def channel_statistics(
    text: str,
    names: Mapping[str, str],
    progress_of: Callable[[str, int], PartitionProgress | None] = lambda *_: None,
) -> str:
    """Return statistics in librdkafka's JSON with channels, given their names by topic.

    librdkafka commits nothing, so it knows neither committed offsets nor lag. Those of assigned
    partitions become the group's: `committed_offset`, `stored_offset`, `consumer_lag` behind the
    committed offset, and `consumer_lag_stored` behind the next message to return. The end is that
    of the messages to read, on exactly-once channels of the committed ones.
    """
    statistics: dict[str, Any] = json.loads(text)
    topics = statistics.get("topics", {})
    statistics["topics"] = {names.get(topic, topic): entry for topic, entry in topics.items()}
    assigned = 0
    for name, entry in statistics["topics"].items():
        entry["topic"] = name
        for key, partition in entry.get("partitions", {}).items():
            progress = progress_of(name, int(key))
            if progress is not None:
                assigned += 1
                partition |= _values(progress)
    if "cgrp" in statistics:
        statistics["cgrp"]["assignment_size"] = assigned
    for broker in statistics.get("brokers", {}).values():
        for place in broker.get("toppars", {}).values():
            place["topic"] = names.get(place["topic"], place["topic"])
    return json.dumps(statistics)


def _values(progress: PartitionProgress) -> dict[str, int]:
    committed, next_offset, end = progress
    lag = _UNKNOWN if committed is None or end < 0 else max(0, end - committed)
    return {
        "committed_offset": OFFSET_INVALID if committed is None else committed,
        "stored_offset": next_offset,
        "consumer_lag": lag,
        "consumer_lag_stored": _UNKNOWN if end < 0 else max(0, end - next_offset),
    }
