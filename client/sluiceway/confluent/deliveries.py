"""Deliveries of a Producer: the queues, waiting for them, and callbacks."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError

from sluiceway.confluent.errors import PURGE_QUEUE, TIMED_OUT
from sluiceway.confluent.local_queue import LocalQueue

__all__ = ["SHORT_WAIT_S", "Deliveries"]

SHORT_WAIT_S: Final = 0.02
_SLICE_S: Final = 0.1


class Deliveries:
    """The local queue and librdkafka's producers; waits for what is in both.

    `lock` guards the queue, `changed` tells of its changes. `report` lets heartbeats report
    counts.
    """

    def __init__(self, queue: LocalQueue, report: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.queue = queue
        # The current one is the last; another thread may be in a call of one that was replaced.
        self.producers: tuple[Any, ...] = ()
        self._report = report
        self._report_due_s = 0.0

    def __len__(self) -> int:
        return len(self.queue) + self.handed_over

    @property
    def handed_over(self) -> int:
        """How many messages and reports librdkafka has."""
        return sum(map(len, self.producers))

    def poll(self, timeout_s: float) -> int:
        """Call callbacks for up to `timeout_s`; return how many were called."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            called = self._call()
            left_s = deadline_s - time.monotonic()
            wait_s = 0.0 if called else max(0.0, min(_SLICE_S, left_s))
            producers = self.producers
            if producers:
                for each in producers[:-1]:
                    called += each.poll(0) if len(each) else 0
                called += producers[-1].poll(wait_s)
                called += self._call() if self.queue.calls else 0
            else:
                # Without a message, as in confluent-kafka, a thread that only polls waits.
                self._wait(wait_s)
                called += self._call() if self.queue.calls else 0
            if called or left_s <= 0:
                return called

    def flush(self, timeout_s: float) -> int:
        """Wait until nothing is under way, calling callbacks; return how many messages are."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._call()
            left_s = max(0.0, deadline_s - time.monotonic())
            for each in self.producers:
                each.flush(min(_SLICE_S, left_s))
                left_s = max(0.0, deadline_s - time.monotonic())
            if not len(self) or not left_s:
                self._report()
                return len(self)
            if self.queue.waiting and not self.queue.calls:
                self._wait(min(SHORT_WAIT_S, left_s))

    def purge(self, *, in_queue: bool, in_flight: bool, blocking: bool) -> None:
        """Drop messages; their callbacks are called by the next `poll` or `flush`."""
        if in_queue:
            with self.lock:
                self.queue.purge()
        for each in self.producers:
            each.purge(in_queue=in_queue, in_flight=in_flight, blocking=blocking)

    def flush_or_fail(self, timeout_s: float) -> tuple[KafkaError | None, Exception | None, float]:
        """Flush, and fail what is left once no message was delivered for `timeout_s`.

        Return the error, the exception of a callback, and how long nothing was delivered.
        """
        raised: Exception | None = None
        failure: KafkaError | None = None

        def flushed(wait_s: float) -> int:
            nonlocal raised
            while True:
                try:
                    return self.flush(wait_s)
                except Exception as error:
                    # The other callbacks run as well, and the ends are reported.
                    raised = raised or error

        moved_s = time.monotonic()
        least = left = len(self)
        while left and (idle_s := time.monotonic() - moved_s) < timeout_s:
            left = flushed(min(_SLICE_S, timeout_s - idle_s))
            if left < least:
                least, moved_s = left, time.monotonic()
        if left:
            failure = KafkaError(
                TIMED_OUT,
                f"{left} messages were not delivered: nothing was for {timeout_s:g} s before "
                "close() gave up. They have failed, and their delivery callbacks were called",
            )
            with self.lock:
                self.queue.purge(
                    KafkaError(PURGE_QUEUE, f"Local: Purged in queue: {failure.str()}")
                )
            for each in self.producers:
                each.purge()
            flushed(1.0)
        elif self.queue.lost_error is not None:
            failure = KafkaError(
                self.queue.lost_error.code(),
                f"{self.queue.lost} messages without a delivery callback were not delivered; the "
                f"first: {self.queue.lost_error.str()}",
            )
        return failure, raised, time.monotonic() - moved_s if left else 0.0

    def _call(self) -> int:
        """Call the callbacks of failed messages; return how many. Reports counts, too."""
        now_s = time.monotonic()
        if now_s >= self._report_due_s:
            self._report_due_s = now_s + 1
            self._report()
        if self.queue.waiting:
            with self.lock:
                self.queue.expire()
        called = 0
        while True:
            try:
                call = self.queue.calls.popleft()
            except IndexError:
                return called
            call()
            called += 1

    def _wait(self, wait_s: float) -> None:
        with self.lock:
            if not self.queue.calls and wait_s > 0:
                self.changed.wait(wait_s)
