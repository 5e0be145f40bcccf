"""The metrics for Prometheus, as its own parser reads them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry, Counter, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event, update

from endpoints import Site, report, site
from gateways import Rig, running
from sluiceway import __version__
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.endpoints.model import Mode
from sluiceway_gateway.endpoints.tables import endpoints
from sluiceway_gateway.provisioning.store import remove
from sluiceway_gateway.status import sample_store
from sluiceway_gateway.status.lag import Sample, group_lag, write_rate
from sluiceway_gateway.status.reader_progress import (
    WINDOW,
    ReaderProgress,
    offset_tracks,
    partitions_read,
)
from sluiceway_gateway.status.sample_store import SampleWrite, StoredSample
from waiting import until

EVERY_S = 5.0
OPERATING = Path(__file__).parents[3] / "docs/operating.md"


def scraped(rig: Rig, headers: Mapping[str, str] | None = None) -> dict[str, Metric]:
    response = rig.http.get("/metrics", headers=headers)
    assert response.status_code == 200, response.text
    return {metric.name: metric for metric in text_string_to_metric_families(response.text)}


def values(
    rig: Rig, name: str, headers: Mapping[str, str] | None = None
) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by the values of its labels, in the order of their names."""
    metric = scraped(rig, headers).get(name)
    samples = metric.samples if metric is not None else ()
    return {tuple(series.labels.values()): series.value for series in samples}


def reader(group: str, position: int, index: int = 0, mode: Mode = Mode.SHARED) -> ReaderProgress:
    return ReaderProgress(
        group=group,
        index=index,
        size=1,
        mode=mode,
        epoch=1,
        alive=True,
        positions={0: position},
    )


def sample(flights: Site, *passes: tuple[int, list[ReaderProgress]]) -> None:
    """Store samples as the sampler does: ends of partition 0, and readers."""
    window: list[Sample] = []
    for number, (end, readers) in enumerate(passes, 1):
        flights.rig.clock.advance(timedelta(seconds=EVERY_S))
        tracks = offset_tracks(readers, [], partitions=1)
        window.append(Sample(at=flights.rig.clock(), starts=[0], ends=[end], tracks=tracks))
        history = [(past_sample.at.timestamp(), past_sample.ends) for past_sample in window]
        alive = partitions_read(readers, partitions=1)
        lags = {key: group_lag(key, window, history, alive=alive[key]) for key in tracks}
        stored = StoredSample(
            number=number, sample=window[-1], lags=lags, write_rate=write_rate(window)
        )
        taken = SampleWrite(
            channel_uid=flights.uid, stored=stored, is_new=True, changes_status=True
        )
        with flights.rig.database.write() as tx:
            assert sample_store.write(tx, [taken]) == 1


@pytest.mark.long
def test_lag_rates_progress_and_members_of_groups_are_metrics(rig: Rig) -> None:
    flights = site(rig, partitions=1)
    member = flights.member(group="delays")
    flights.member(0, 2, group="load", role="writer")
    flights.detach(flights.member(1, 2, group="load", role="writer"), "error", cause="x")
    flights.beat(report(member, "started"))
    sample(flights, *((100 + 50 * n, [reader("delays", 100 + 10 * n)]) for n in range(4)))
    key = ("flights", "delays")
    assert values(rig, "sluiceway_group_lag_messages") == {key: 120}
    assert values(rig, "sluiceway_group_read_messages_per_second") == {key: 2}
    # Message 130 came between the first two samples.
    assert values(rig, "sluiceway_group_lag_seconds") == {key: 12}
    assert values(rig, "sluiceway_group_lag_seconds_at_least") == {key: 0}
    assert values(rig, "sluiceway_channel_written_messages_per_second") == {("flights",): 10}
    sampled_at_s = rig.clock().timestamp()
    assert values(rig, "sluiceway_channel_sampled_timestamp_seconds") == {
        ("flights",): sampled_at_s
    }
    members = values(rig, "sluiceway_group_members")
    assert {key for key, number in members.items() if number} == {
        ("flights", "delays", "healthy", "reader"),
        ("flights", "load", "healthy", "writer"),
    }
    assert values(rig, "sluiceway_group_failures") == {
        ("flights", "delays", "reader"): 0,
        ("flights", "load", "writer"): 1,
    }
    assert members["flights", "delays", "lost", "reader"] == 0
    assert values(rig, "sluiceway_metrics_omitted_channels") == {(): 0}


def test_a_member_that_failed_a_day_ago_is_no_failure(rig: Rig) -> None:
    flights = site(rig, partitions=1)
    flights.detach(flights.member(group="load", role="writer"), "error", cause="x")
    assert values(rig, "sluiceway_group_failures") == {("flights", "load", "writer"): 1}
    rig.clock.advance(timedelta(days=1))
    assert values(rig, "sluiceway_group_failures") == {}


@pytest.mark.long
def test_a_lost_endpoint_without_a_group_is_a_failure_and_no_member(rig: Rig) -> None:
    flights = site(rig, partitions=1)
    flights.attach("writer")
    flights.member(group="load", role="writer")
    with rig.database.write() as tx:
        tx.execute(update(endpoints).values(health="lost"))
    members = values(rig, "sluiceway_group_members")
    assert {key: number for key, number in members.items() if number} == {
        ("flights", "load", "lost", "writer"): 1
    }
    failures = values(rig, "sluiceway_group_failures")
    assert {key: number for key, number in failures.items() if number} == {
        ("flights", "", "writer"): 1
    }


def test_the_age_of_messages_older_than_the_samples_is_marked_as_a_lower_bound(rig: Rig) -> None:
    flights = site(rig, partitions=1)
    flights.member(group="delays")
    sample(flights, *((100, [reader("delays", 10)]) for _ in range(3)))
    key = ("flights", "delays")
    assert values(rig, "sluiceway_group_lag_seconds") == {key: 2 * EVERY_S}
    assert values(rig, "sluiceway_group_lag_seconds_at_least") == {key: 1}
    assert values(rig, "sluiceway_group_progress") == {}


@pytest.mark.long
def test_unknown_figures_have_no_series(rig: Rig) -> None:
    flights = site(rig, partitions=1)
    flights.member(group="delays")
    assert values(rig, "sluiceway_group_members")["flights", "delays", "healthy", "reader"] == 1
    assert values(rig, "sluiceway_group_lag_messages") == {}
    # Without a position the lag is unknown.
    sample(flights, (100, [ReaderProgress(**{**vars(reader("delays", 0)), "positions": {}})]))
    assert values(rig, "sluiceway_group_lag_messages") == {}
    assert values(rig, "sluiceway_group_lag_seconds") == {}
    assert values(rig, "sluiceway_channel_written_messages_per_second") == {}


def test_groups_with_slashes_have_their_own_figures(rig: Rig) -> None:
    flights = site(rig, partitions=1)
    flights.member(group="team/0")
    readers = [
        reader("team", 90, mode=Mode.BROADCAST),
        reader("team/0", 80),
        reader("team/a/b", 70),
    ]
    sample(flights, (100, readers))
    assert values(rig, "sluiceway_group_lag_messages") == {
        ("flights", "team"): 10,
        ("flights", "team/0"): 20,
        ("flights", "team/a/b"): 30,
    }


def test_a_broadcast_group_has_the_lag_of_its_last_member(rig: Rig) -> None:
    flights = site(rig, partitions=1)
    flights.member(group="all", mode="broadcast")
    readers = [reader("all", 90, 0, Mode.BROADCAST), reader("all", 40, 1, Mode.BROADCAST)]
    sample(flights, (100, readers))
    assert values(rig, "sluiceway_group_lag_messages") == {("flights", "all"): 60}


@pytest.mark.long
def test_series_of_deleted_channels_and_of_groups_that_left_disappear(rig: Rig) -> None:
    kept, gone = site(rig, "kept", partitions=1), site(rig, "gone", partitions=1)
    for channel in (kept, gone):
        channel.member(group="a")
        sample(channel, (9, [reader("a", 5), reader("b", 5)]))
    groups = {("gone", "a"), ("gone", "b"), ("kept", "a"), ("kept", "b")}
    assert values(rig, "sluiceway_group_lag_messages").keys() == groups
    with rig.database.write() as tx:
        assert remove(tx, gone.uid, from_phases=tuple(Phase))
    assert values(rig, "sluiceway_group_lag_messages").keys() == {("kept", "a"), ("kept", "b")}
    text = rig.http.get("/metrics").text
    assert "gone" not in text
    left = site(rig, "left", partitions=1)
    left.detach(left.member(group="a"))
    left.member(group="c")
    sample(left, (9, [reader("a", 5), reader("c", 5)]), (9, [reader("c", 5)]))
    of_left = {key for key in values(rig, "sluiceway_group_lag_messages") if key[0] == "left"}
    assert of_left == {("left", "c")}
    assert {key[1] for key in values(rig, "sluiceway_group_members") if key[0] == "left"} == {"c"}


def test_a_channel_without_endpoints_and_positions_has_no_series(rig: Rig) -> None:
    # The channel is no longer sampled, so its last figures would stay forever.
    flights = site(rig, partitions=1)
    sample(flights, (9, [reader("a", 5)]))
    assert values(rig, "sluiceway_group_lag_messages") == {}
    assert values(rig, "sluiceway_channel_sampled_timestamp_seconds") == {}


def test_the_number_of_series_is_limited_and_omitted_channels_are_counted(
    database: Database, database_url: str
) -> None:
    with running(database, database_url, metrics_groups=3) as rig:
        for name in ("a", "b", "c", "d"):
            channel = site(rig, name, partitions=1)
            channel.member(group="x")
            channel.member(group="y")
            sample(channel, (9, [reader("x", 5), reader("y", 5)]))
        lags = values(rig, "sluiceway_group_lag_messages")
        assert list(lags) == [("a", "x"), ("a", "y"), ("b", "x")]
        members = values(rig, "sluiceway_group_members")
        assert {key[:2] for key in members} == set(lags)
        assert values(rig, "sluiceway_metrics_omitted_channels") == {(): 3}


@pytest.mark.long
def test_only_channels_that_the_token_may_see_have_series(rig: Rig) -> None:
    for name in ("flights", "secret"):
        channel = site(rig, name, partitions=1)
        channel.member(group="g")
        sample(channel, (9, [reader("g", 5)]))
    hers, every = rig.token("read:fl"), rig.token("admin")
    assert values(rig, "sluiceway_group_lag_messages", hers).keys() == {("flights", "g")}
    assert values(rig, "sluiceway_metrics_omitted_channels", hers) == {(): 0}
    assert "secret" not in rig.http.get("/metrics", headers=hers).text
    assert len(values(rig, "sluiceway_group_lag_messages", every)) == 2


def test_only_channels_that_the_token_may_see_are_counted(rig: Rig) -> None:
    for name in ("flights", "secret"):
        site(rig, name, partitions=1)
    hers, every = rig.token("read:fl"), rig.token("admin")
    counted = [values(rig, "sluiceway_channels", headers) for headers in (hers, every)]
    assert [numbers["ready",] for numbers in counted] == [1, 2]
    assert [sum(numbers.values()) for numbers in counted] == [1, 2]


@contextmanager
def selects(database: Database) -> Iterator[list[str]]:
    """Record the statements that read channels, endpoints or samples."""
    statements: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if any(f"FROM {table}" in statement for table in ("channels", "endpoints", "samples")):
            statements.append(statement)

    event.listen(database.engine, "before_cursor_execute", record)
    try:
        yield statements
    finally:
        event.remove(database.engine, "before_cursor_execute", record)


@pytest.mark.long
def test_a_scrape_reads_the_database_once_and_sends_nothing_to_kafka(rig: Rig) -> None:
    kafka = Mock(answered=lambda _within_s: None)
    rig.replace(kafka=kafka)
    numbers = []
    for number in range(3):
        channel = site(rig, f"channel-{number}", partitions=1)
        channel.member(group="g")
        sample(channel, (9, [reader("g", 5)]))
        with selects(rig.app.state.parts.database) as statements:
            assert len(values(rig, "sluiceway_group_lag_messages")) == number + 1
        numbers.append(len(statements))
    # Channels with their samples, members, and the numbers by phase, for any number of channels.
    assert numbers == [3, 3, 3]
    assert kafka.mock_calls == []


@pytest.mark.long
def test_the_state_of_the_gateway_and_its_process_are_metrics(rig: Rig) -> None:
    metrics = scraped(rig)
    (build,) = metrics["sluiceway_build_info"].samples
    assert (build.labels["version"], build.value) == (__version__, 1)
    assert metrics["process_resident_memory_bytes"].samples[0].value > 1_000_000
    assert metrics["process_start_time_seconds"].samples[0].value > 0
    # The test has the lease, so the loops do not run.
    assert values(rig, "sluiceway_leader") == {(): 0}
    # There was no request to Kafka yet.
    assert values(rig, "sluiceway_kafka_up") == {}
    ask_kafka(rig)
    assert values(rig, "sluiceway_database_up") == {(): 1}


def ask_kafka(rig: Rig) -> None:
    """Have the gateway send a request to Kafka, and wait until it has failed."""
    assert rig.http.get("/readyz").status_code == 503
    until(lambda: values(rig, "sluiceway_kafka_up") == {(): 0})


def test_counters_of_the_reconcile_loop_exist_before_its_first_pass(rig: Rig) -> None:
    (counter,) = [metric for name, metric in scraped(rig).items() if "reconciled" in name]
    counts = {series.labels["outcome"]: series.value for series in counter.samples}
    assert counts["checked"] == counts["unreachable"] == 0


def test_names_help_texts_and_labels_are_prometheus_style(rig: Rig) -> None:
    flights = site(rig, partitions=1)
    flights.member(group="g")
    sample(flights, (9, [reader("g", 5)]))
    text = rig.http.get("/metrics").text
    assert "_created" not in text
    for metric in scraped(rig).values():
        assert metric.name.startswith(("sluiceway_", "process_")), metric.name
        assert metric.documentation
        assert not metric.name.endswith(("_ms", "_bytes_total_total"))
        for series in metric.samples:
            if metric.type == "counter":
                assert series.name.endswith("_total")
            keys = (series.name, tuple(series.labels.items()))
            assert [(s.name, tuple(s.labels.items())) for s in metric.samples].count(keys) == 1


def test_metrics_of_other_registries_keep_their_times_of_creation(rig: Rig) -> None:
    others = CollectorRegistry()
    Counter("jobs", "Jobs of the program around the gateway.", registry=others).inc()
    assert "_created" not in rig.http.get("/metrics").text
    assert "jobs_created" in generate_latest(others).decode()


@pytest.mark.long
def test_every_metric_is_documented_and_a_group_has_at_most_ten_series(rig: Rig) -> None:
    flights = site(rig, partitions=1)
    flights.member(group="delays")
    sample(flights, *((100, [reader("delays", 10)]) for _ in range(WINDOW)))
    rig.app.state.parts.metrics.set_loop_failures("sample", 0)
    rig.app.state.parts.metrics.count_reconciled({"checked": 1})
    rig.app.state.parts.metrics.count_foreign_use("join")
    ask_kafka(rig)
    metrics = scraped(rig)
    names = {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for metric in metrics.values()
        if metric.name.startswith("sluiceway_")
    }
    assert names == set(re.findall(r"^\| `(sluiceway_\w+)`", OPERATING.read_text(), re.MULTILINE))
    of_group = [s for metric in metrics.values() for s in metric.samples if "group" in s.labels]
    assert len(of_group) == 10
