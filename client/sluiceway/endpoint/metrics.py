"""Endpoint metrics: records, cycle times and positions for heartbeats."""

import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from sluiceway.rest.endpoint_models import Position, Role

__all__ = ["CycleCounter", "EndpointMetrics", "Progress"]

Progress = Callable[[], tuple[int, Mapping[int, Position]]]
"""Returns the number of records that a reader has returned, and its positions."""


class CycleCounter:
    """Times between calls that read or write, and the records of each cycle.

    `kind` is part of the averages' names, which are those of pypz. Averages are over the last
    `length` cycles. Thread-safe.
    """

    def __init__(
        self,
        kind: Literal["Read", "Output"],
        *,
        length: int = 10,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kind = kind
        self._monotonic = monotonic
        # Time and total records at the end of each cycle; the first one starts the first cycle.
        self._marks: deque[tuple[float, int]] = deque(maxlen=length + 1)

    def record(self, total_records: int) -> None:
        """Begin a cycle; `total_records` is the number of records moved before it."""
        self._marks.append((self._monotonic(), total_records))

    @property
    def elapsed_s(self) -> float:
        """The time since the current cycle began; 0 before the first one."""
        marks = list(self._marks)
        return self._monotonic() - marks[-1][0] if marks else 0.0

    def averages(self) -> dict[str, float]:
        """Return the averages by pypz's names; without a finished cycle there are none."""
        marks = list(self._marks)
        cycles = len(marks) - 1
        if cycles < 1:
            return {}
        elapsed_ms = 1000 * (marks[-1][0] - marks[0][0])
        records = max(0, marks[-1][1] - marks[0][1])
        found = {
            f"averageTimePer{self.kind}CycleMs": round(elapsed_ms / cycles, 3),
            f"averageRecordPer{self.kind}Cycle": round(records / cycles, 3),
        }
        if records:
            found[f"averageTimePer{self.kind}RecordMs"] = round(elapsed_ms / records, 6)
        return found


class EndpointMetrics:
    """The counters and positions that heartbeats report for an endpoint.

    The heartbeat thread reads `records` and `positions`, so they are replaced, never changed.
    """

    def __init__(
        self,
        role: Role,
        *,
        cycles: int = 10,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.records = 0
        self.positions: Mapping[int, Position] | None = None
        reads = role == "reader"
        self._count_name = "receivedRecordCount" if reads else "sentRecordCount"
        self.cycles = CycleCounter(
            "Read" if reads else "Output", length=cycles, monotonic=monotonic
        )
        self._progress: weakref.ref[Progress] | None = None
        # The positions known to the gateway, and those of the heartbeat in flight.
        self._delivered: Mapping[int, Position] | None = None
        self._in_flight: Mapping[int, Position] | None = None

    def record_cycle(self, records: int) -> None:
        """Count a call that reads or writes; `records` is the total before it."""
        self.cycles.record(records)
        self.records = records

    def observe(self, progress: Progress) -> None:
        """Take records and positions from `progress`, a method called in the heartbeat thread.

        The reference to its object is weak, so an abandoned reader can be garbage-collected.
        """
        self._progress = weakref.WeakMethod(progress)

    def heartbeat_fields(self, accepted: Collection[str]) -> dict[str, Any]:
        """Return the fields of the next heartbeat; positions only if the gateway lacks them.

        `accepted` has the optional fields that the gateway accepts.
        """
        self._update()
        self._in_flight = self.positions
        return self._fields(accepted, positions=self._in_flight != self._delivered)

    def mark_delivered(self) -> None:
        """Record that the gateway has received the last heartbeat."""
        self._delivered = self._in_flight

    def final_fields(self, accepted: Collection[str]) -> dict[str, Any]:
        """Return all fields, for the detach request."""
        self._update()
        return self._fields(accepted, positions=True)

    def counters(self) -> dict[str, float]:
        """Return the counters by pypz's names."""
        return {
            "records": self.records,
            self._count_name: self.records,
            **self.cycles.averages(),
        }

    def _update(self) -> None:
        progress = None if self._progress is None else self._progress()
        if progress is not None:
            self.records, self.positions = progress()

    def _fields(self, accepted: Collection[str], *, positions: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {"counters": self.counters()}
        if positions and self.positions is not None and "positions" in accepted:
            current = self.positions.items()
            fields["positions"] = {str(p): [at.offset, at.records] for p, at in current}
        return fields
