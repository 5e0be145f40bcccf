"""The figures of a channel's input or output that pypz calls its metrics."""

import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Cycles"]


class Cycles:
    """Times between calls, and records in them, averaged over the last `length` of them.

    `kind` is Read or Output, as the names of the figures have it.
    """

    def __init__(
        self, kind: str, length: int, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._kind = kind
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._cycles: deque[tuple[float, int]] = deque(maxlen=length)
        self._last: tuple[float, int] | None = None

    def turn(self, records: int) -> None:
        """Note a call that moved so many records."""
        with self._lock:
            now_s = self._monotonic()
            if self._last is not None:
                since_s, before = self._last
                self._cycles.append((1000 * (now_s - since_s), before))
            self._last = (now_s, records)

    def figures(self) -> dict[str, float]:
        """Return the figures by pypz's names, times in milliseconds; 0 where there is none yet."""
        with self._lock:
            since_ms = 0.0 if self._last is None else 1000 * (self._monotonic() - self._last[0])
            passed_ms = sum(each for each, _ in self._cycles)
            records = sum(each for _, each in self._cycles)
            cycles = len(self._cycles)
        kind = self._kind
        return {
            f"elapsedTimeSinceLast{kind}CycleMs": round(since_ms),
            f"averageTimePer{kind}CycleMs": passed_ms / cycles if cycles else 0,
            f"averageTimePer{kind}RecordMs": passed_ms / records if records else 0,
            f"averageRecordPer{kind}Cycle": records / cycles if cycles else 0,
        }
