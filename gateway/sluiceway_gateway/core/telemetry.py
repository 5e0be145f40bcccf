"""Counters for Prometheus, in a registry per application so that several can share a process."""

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sluiceway import __version__

CONTENT_TYPE = CONTENT_TYPE_PLAIN_1_0_0
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class Metrics:
    """The metrics of one gateway."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        Info(
            "sluiceway_build", "Version of the gateway and of Python.", registry=self._registry
        ).info({"version": __version__, "python": platform.python_version()})
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
        self._reconciled = Counter(
            "sluiceway_reconciled_channels",
            "Channels that the reconcile loop processed, by outcome.",
            ("outcome",),
            registry=self._registry,
        )
        self._conflicts = Counter(
            "sluiceway_manifest_conflicts",
            "Commits that were refused because they list offsets of other batches.",
            registry=self._registry,
        )
        self._loop_failures = Gauge(
            "sluiceway_loop_consecutive_failures",
            "Consecutive failed passes of a background loop.",
            ("loop",),
            registry=self._registry,
        )

        self._foreign_uses = Counter(
            "sluiceway_foreign_uses",
            "Uses of groups, batches and keys by other labels than the owner's, by action.",
            ("action",),
            registry=self._registry,
        )

    def count_foreign_use(self, action: str) -> None:
        """Count a use of another label's group or batches, refused or permitted."""
        self._foreign_uses.labels(action).inc()

    def count_request(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. `route` is the template of its path."""
        method = method if method in _METHODS else "other"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route, method).observe(seconds)

    def count_reconciled(self, counts: Mapping[str, int]) -> None:
        """Count the channels of one pass of the reconcile loop, by outcome."""
        for outcome, number in counts.items():
            self._reconciled.labels(outcome).inc(number)

    def count_conflict(self) -> None:
        """Count a commit that was refused because it lists offsets of other batches."""
        self._conflicts.inc()

    def set_loop_failures(self, loop: str, failures: int) -> None:
        """Set the number of consecutive failed passes of a loop."""
        self._loop_failures.labels(loop).set(failures)

    def render(self, scrape: Collector) -> bytes:
        """Return all metrics as text, with those of `scrape`."""
        return generate_latest(_Exposition(self._registry, scrape))


@dataclass(frozen=True)
class _Exposition(Collector):
    """All metrics, without the `_created` series, which double the number of series.

    The library's own switch for them applies to all registries of the process.
    """

    registry: Collector
    scrape: Collector

    def collect(self) -> Iterator[Metric]:
        for metric in chain(self.registry.collect(), self.scrape.collect()):
            if metric.type in ("counter", "histogram"):
                metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric
