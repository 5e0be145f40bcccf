"""Prometheus metrics, in a registry per application so that several can share a process."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0

from sluiceway_gateway.channels.model import Phase

CONTENT_TYPE = CONTENT_TYPE_PLAIN_1_0_0
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class Metrics:
    """The metrics of one gateway."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        labels = ("route", "method", "status")
        self._requests = Counter(
            "sluiceway_http_requests",
            "Requests by route, method and status.",
            labels,
            registry=self._registry,
        )
        self._seconds = Histogram(
            "sluiceway_http_request_seconds",
            "Time from a request to the end of its response, including the wait of long polls.",
            ("route", "method"),
            registry=self._registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
        )
        self._channels = Gauge(
            "sluiceway_channels", "Channels by phase.", ("phase",), registry=self._registry
        )
        self._database_up = Gauge(
            "sluiceway_database_up",
            "1 if the database answered this scrape.",
            registry=self._registry,
        )
        self._waiters = Gauge(
            "sluiceway_waiting_reads", "Requests that wait for a change.", registry=self._registry
        )
        self._open_batches = Gauge(
            "sluiceway_open_batches",
            "Open batches of exactly-once channels.",
            registry=self._registry,
        )
        self._oldest_batch = Gauge(
            "sluiceway_oldest_open_batch_seconds",
            "Time since the oldest open batch was opened; 0 without one.",
            registry=self._registry,
        )
        self._held_back = Gauge(
            "sluiceway_held_back_channels",
            "Channels with committed messages that wait for the end of an open batch.",
            registry=self._registry,
        )
        self._halted = Gauge(
            "sluiceway_halted_channels",
            "Exactly-once channels that wait for a repair.",
            registry=self._registry,
        )
        self._reconciled = Counter(
            "sluiceway_reconciled_channels",
            "Channels that the reconcile loop processed, by outcome.",
            ("outcome",),
            registry=self._registry,
        )

        self._loop_failures = Gauge(
            "sluiceway_loop_consecutive_failures",
            "Consecutive failed passes of a background loop.",
            ("loop",),
            registry=self._registry,
        )

    def count_request(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. `route` is the template of its path."""
        method = method if method in _METHODS else "other"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route, method).observe(seconds)

    def count_reconciled(self, counts: Mapping[str, int]) -> None:
        """Count the channels of one pass of the reconcile loop, by outcome."""
        for outcome, number in counts.items():
            self._reconciled.labels(outcome).inc(number)

    def set_loop_failures(self, loop: str, failures: int) -> None:
        """Set the number of consecutive failed passes of a loop."""
        self._loop_failures.labels(loop).set(failures)

    def set_batches(
        self, *, open_batches: int, oldest_s: float, held_back: int, halted: int
    ) -> None:
        """Set the figures of all open batches, and of the channels that wait for them."""
        self._open_batches.set(open_batches)
        self._oldest_batch.set(oldest_s)
        self._held_back.set(held_back)
        self._halted.set(halted)

    def render(self, *, channels: Mapping[Phase, int] | None, waiting: int) -> bytes:
        """Return all metrics as text. `channels` is None while the database does not answer."""
        self._database_up.set(0 if channels is None else 1)
        self._waiters.set(waiting)
        if channels is None:
            self._channels.clear()
        else:
            for phase, number in channels.items():
                self._channels.labels(str(phase)).set(number)
        return generate_latest(self._registry)
