"""Answers that are kept as they were sent, for those who ask for the same state again."""

import threading
from collections import OrderedDict


class Rendered:
    """The last answers by what was asked for, each with its state's tag; bounded by their size."""

    def __init__(self, limit_bytes: int = 64 * 1024 * 1024) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._answers: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self._turn = threading.Lock()

    def get(self, key: str, tag: str) -> bytes | None:
        """Return the answer, if it is kept and of this state."""
        with self._turn:
            kept = self._answers.get(key)
            if kept is None or kept[0] != tag:
                return None
            self._answers.move_to_end(key)
            return kept[1]

    def put(self, key: str, tag: str, answer: bytes) -> None:
        """Keep an answer in the place of the one before; what was asked for longest ago goes."""
        with self._turn:
            before = self._answers.pop(key, None)
            self._bytes += len(answer) - (len(before[1]) if before else 0)
            self._answers[key] = (tag, answer)
            while self._bytes > self._limit_bytes:
                _, (_, gone) = self._answers.popitem(last=False)
                self._bytes -= len(gone)
