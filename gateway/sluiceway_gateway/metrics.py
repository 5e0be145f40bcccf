"""Prometheus metrics, in a registry per application so that several can share a process."""

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluiceway import __version__
from sluiceway_gateway.endpoints.model import Health, Role
from sluiceway_gateway.status.lag import (
    ChannelOverview,
    GroupOverview,
    Overview,
    lag_seconds,
)

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

    def render(self, scrape: "Scrape") -> bytes:
        """Return all metrics as text."""
        return generate_latest(_Exposition(self._registry, scrape))


@dataclass(frozen=True, kw_only=True)
class Scrape(Collector):
    """The state of the gateway and of its channels at one scrape. Unknown values have no series."""

    overview: Overview | None
    """None while the database does not answer."""
    waiting: int
    leads: bool
    kafka_answers: bool | None
    """None if there was no recent request to Kafka."""

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. Channels and groups that are gone have no series."""
        yield _gauge(
            "sluiceway_database_up",
            "1 if the database answered this scrape, else 0.",
            int(self.overview is not None),
        )
        yield _gauge(
            "sluiceway_kafka_up",
            "1 if Kafka answered the last request of this replica, else 0. "
            "No value if there was none in the last two minutes.",
            None if self.kafka_answers is None else int(self.kafka_answers),
        )
        yield _gauge(
            "sluiceway_leader",
            "1 if this replica runs the background loops, else 0.",
            int(self.leads),
        )
        yield _gauge("sluiceway_waiting_reads", "Requests that wait for a change.", self.waiting)
        if self.overview is None:
            return
        yield _gauge(
            "sluiceway_metrics_omitted_channels",
            "Channels without series for all of their groups, because "
            "SLUICEWAY_METRICS_GROUPS is reached.",
            self.overview.omitted,
        )
        yield _family(
            "sluiceway_channels",
            "Channels by phase.",
            ("phase",),
            (((str(phase),), number) for phase, number in self.overview.phases.items()),
        )
        yield from _channel_metrics(self.overview.channels)
        yield from _ledger_metrics(self.overview.channels)
        yield from _group_metrics(
            [(channel, group) for channel in self.overview.channels for group in channel.groups]
        )


_Samples = Iterable[tuple[Sequence[str], float | None]]
"""Values by labels; None is unknown."""


def _channel_metrics(channels: Sequence[ChannelOverview]) -> Iterator[Metric]:
    yield _family(
        "sluiceway_channel_sampled_timestamp_seconds",
        "Unix time of the last sample of a channel, the source of its groups' metrics.",
        ("channel",),
        (((c.name,), c.sampled_at.timestamp() if c.sampled_at else None) for c in channels),
    )
    yield _family(
        "sluiceway_channel_written_messages_per_second",
        "Messages written to a channel per second, over the last 15 seconds or so.",
        ("channel",),
        (((c.name,), c.write_rate) for c in channels),
    )


def _ledger_metrics(channels: Sequence[ChannelOverview]) -> Iterator[Metric]:
    ledgers = [(channel.name, channel.ledger) for channel in channels if channel.ledger is not None]
    holders = [(name, ledger.held_back_by) for name, ledger in ledgers]
    held = [(name, batch) for name, batch in holders if batch is not None]
    yield _family(
        "sluiceway_channel_open_batches",
        "Open batches of an exactly-once channel.",
        ("channel",),
        (((name,), ledger.open_batches) for name, ledger in ledgers),
    )
    yield _family(
        "sluiceway_channel_halted",
        "1 if an exactly-once channel waits for a repair, else 0.",
        ("channel",),
        (((name,), int(ledger.halted is not None)) for name, ledger in ledgers),
    )
    yield _family(
        "sluiceway_channel_held_back_messages",
        "Committed messages that wait for the end of an open batch, by the owner of that batch.",
        ("channel", "owner"),
        (((name, batch.owner), batch.held_messages) for name, batch in held),
    )
    yield _family(
        "sluiceway_channel_held_back_since_timestamp_seconds",
        "Unix time at which the open batch that holds readers back was opened.",
        ("channel", "owner"),
        (((name, batch.owner), batch.since) for name, batch in held),
    )


def _group_metrics(groups: Sequence[tuple[ChannelOverview, GroupOverview]]) -> Iterator[Metric]:
    labels = ("channel", "group")
    read = [(c, g.name, g.lag) for c, g in groups if g.role is Role.READER and g.lag is not None]
    yield _family(
        "sluiceway_group_members",
        "Open members of a group by health.",
        ("channel", "group", "role", "health"),
        (
            ((channel.name, group.name, group.role, health), group.members.get(health, 0))
            for channel, group in groups
            for health in Health
        ),
    )
    yield _family(
        "sluiceway_group_failures",
        "Members of a group that failed within the last day, and have no successor.",
        ("channel", "group", "role"),
        (((channel.name, group.name, group.role), group.failures) for channel, group in groups),
    )
    yield _family(
        "sluiceway_group_lag_messages",
        "Messages that a group has not read yet.",
        labels,
        (((channel.name, name), lag.lag_messages) for channel, name, lag in read),
    )
    ages = [
        ((c.name, name), lag_seconds(c.sampled_at, lag.behind_since, lag.lag_messages), lag)
        for c, name, lag in read
        if c.sampled_at is not None
    ]
    yield _family(
        "sluiceway_group_lag_seconds",
        "Age of the oldest message that a group has not read yet.",
        labels,
        ((keys, age_s) for keys, age_s, _ in ages),
    )
    yield _family(
        "sluiceway_group_lag_seconds_at_least",
        "1 if sluiceway_group_lag_seconds is a lower bound, else 0.",
        labels,
        ((keys, int(lag.behind_or_before)) for keys, age_s, lag in ages if age_s is not None),
    )
    yield _family(
        "sluiceway_group_read_messages_per_second",
        "Messages that a group reads per second, over the last 15 seconds or so.",
        labels,
        (((channel.name, name), lag.read_rate) for channel, name, lag in read),
    )
    yield _family(
        "sluiceway_group_progress",
        "1 for the worst progress of a group's partitions: ok, held_back, falling_behind, stalled, "
        "stopped or rewound.",
        (*labels, "progress"),
        (((c.name, name, lag.progress), 1) for c, name, lag in read if lag.progress is not None),
    )
    yield _family(
        "sluiceway_group_partitions_out_of_range",
        "Partitions in which Kafka does not have the message at a group's committed position.",
        labels,
        (
            ((channel.name, group.name), group.partitions_out_of_range)
            for channel, group in groups
            if group.lag is not None
        ),
    )


def _gauge(name: str, text: str, value: float | None) -> Metric:
    return _family(name, text, (), [((), value)])


def _family(name: str, text: str, labels: Sequence[str], samples: _Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


@dataclass(frozen=True)
class _Exposition(Collector):
    """All metrics, without the `_created` series, which double the number of series.

    The library's own switch for them applies to all registries of the process.
    """

    registry: Collector
    scrape: Scrape

    def collect(self) -> Iterator[Metric]:
        for metric in chain(self.registry.collect(), self.scrape.collect()):
            if metric.type in ("counter", "histogram"):
                metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric
