"""How far this process has been given messages, which is how far it may commit."""

import os
import threading
from collections.abc import Mapping

__all__ = ["Reach"]


class Reach:
    """By topic id and partition, the offset up to which messages were fetched or asked for.

    One for the process: what fetches and what commits may be two Brokers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._furthest: dict[tuple[int, str | None], dict[int, int]] = {}

    def extend(self, topic_id: str | None, partition: int, offset: int) -> None:
        """Note that messages up to there may be committed."""
        with self._lock:
            found = self._furthest.setdefault((os.getpid(), topic_id), {})
            found[partition] = max(offset, found.get(partition, 0))

    def of(self, topic_id: str | None) -> Mapping[int, int]:
        """Return how far each partition of a topic was fetched."""
        with self._lock:
            return dict(self._furthest.get((os.getpid(), topic_id), {}))


REACH = Reach()
