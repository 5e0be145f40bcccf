"""Metrics of the gateway's state and of its channels, at a scrape."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluiceway_gateway.endpoints.model import Health, Role
from sluiceway_gateway.status.lag import ChannelOverview, GroupOverview, Overview, lag_seconds


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
