"""Two replicas on one database and one Kafka: delayed passes, leases, loops."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock

import pytest

from faults import at_call, failing_call
from reconciler_rig import Rig
from shared_kafka import SharedKafka
from sluiceway_gateway.channels.model import AdoptedTopic, Phase, Retention
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.leases import Leader
from sluiceway_gateway.core.errors import DatabaseUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin, Outcomes
from sluiceway_gateway.core.kafka.model import AlterConfig, CreateTopic, ObservedTopics
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.loops import Loop, Loops
from sluiceway_gateway.provisioning.reconciler import ReconcileCounts
from topics import Topics


class HookedKafka(KafkaAdmin):
    """The real Kafka, with hooks before or after one of its calls."""

    before_creation: Callable[[], object] | None = None
    before_configuration: Callable[[], object] | None = None
    after_observation: Callable[[], object] | None = None

    def create_topics(self, topics: Sequence[CreateTopic]) -> dict[str, object]:  # type: ignore[override]
        hook, self.before_creation = self.before_creation, None
        if hook is not None:
            hook()
        return dict(super().create_topics(topics))

    def alter_configs(self, changes: Sequence[AlterConfig]) -> Outcomes:
        hook, self.before_configuration = self.before_configuration, None
        if hook is not None:
            hook()
        return super().alter_configs(changes)

    def observe(self, names: Iterable[str]) -> ObservedTopics:
        observed = super().observe(names)
        hook, self.after_observation = self.after_observation, None
        if hook is not None:
            hook()
        return observed


@pytest.fixture
def hooked(kafka: SharedKafka) -> Iterator[HookedKafka]:
    client = HookedKafka(kafka.bootstrap_servers)
    yield client
    client.close()


@pytest.mark.sample
def test_two_concurrent_replicas_create_each_topic_once(rig: Rig) -> None:
    channels = [rig.add(partitions=2) for _ in range(10)]
    with ThreadPoolExecutor(2) as pool:
        counts = [run.result() for run in [pool.submit(rig.run_once) for _ in range(2)]]
    for _ in range(5):
        rig.clock.advance(60)
        rig.run_once()
    assert sum(pass_counts.created for pass_counts in counts) == 10
    for added_channel in channels:
        channel, topic = rig.get(added_channel), rig.topic(added_channel)
        assert topic is not None
        assert channel.phase is Phase.READY
        assert (channel.topic.id, channel.topic.partitions) == (topic.id, 2)


def test_a_delayed_pass_does_not_overwrite_a_newer_observation(
    rig: Rig, hooked: HookedKafka
) -> None:
    channel = rig.ready()
    rig.change_spec(channel, partitions=2)
    # During the delayed pass the spec changes again, and the new leader applies it.
    hooked.after_observation = lambda: (rig.change_spec(channel, partitions=4), rig.run_once())
    counts = rig.reconciler(kafka=hooked).run_once()
    assert (counts.conflicts, counts.changed) == (1, 0)
    current, topic = rig.get(channel), rig.topic(channel)
    assert topic is not None
    assert (topic.partitions, current.topic.partitions, current.observed_generation) == (4, 4, 3)


def test_a_delayed_pass_does_not_set_back_a_configuration(rig: Rig, hooked: HookedKafka) -> None:
    channel = rig.ready(retention=Retention(ms=60_000))
    rig.change_spec(channel, retention=Retention(ms=50_000))
    hooked.after_observation = lambda: (
        rig.change_spec(channel, retention=Retention(ms=90_000)),
        rig.run_once(),
    )
    counts = rig.reconciler(kafka=hooked).run_once()
    assert (counts.configured, counts.conflicts) == (0, 1)
    topic = rig.topic(channel)
    assert topic is not None
    assert topic.config["retention.ms"] == "90000"


def test_a_configuration_that_a_delayed_pass_set_back_is_corrected_at_once(
    rig: Rig, hooked: HookedKafka
) -> None:
    channel = rig.ready(retention=Retention(ms=60_000))
    rig.change_spec(channel, retention=Retention(ms=50_000))
    hooked.before_configuration = lambda: (
        rig.change_spec(channel, retention=Retention(ms=90_000)),
        rig.run_once(),
    )
    counts = rig.reconciler(kafka=hooked).run_once()
    assert (counts.configured, counts.conflicts) == (1, 1)
    assert rig.run_once().configured == 1
    topic = rig.topic(channel)
    assert topic is not None
    assert topic.config["retention.ms"] == "90000"


def test_a_topic_created_for_a_removed_channel_is_deleted(rig: Rig, hooked: HookedKafka) -> None:
    channel = rig.add()
    hooked.before_creation = lambda: (rig.delete(channel), rig.run_once())
    counts = rig.reconciler(kafka=hooked).run_once()
    assert (counts.created, counts.conflicts) == (1, 1)
    assert rig.find(channel) is None
    rig.await_topic(channel, lambda topic: topic is None)


@pytest.mark.parametrize("adopted", [False, True])
def test_a_delayed_pass_deletes_no_topic_that_was_kept_or_adopted(
    rig: Rig, hooked: HookedKafka, adopted: bool
) -> None:
    channel = rig.add()

    def lead() -> None:
        """Record the topic and delete the channel without it, as another replica."""
        topic = rig.created(channel.topic.name)
        rig.run_once()
        rig.delete(channel, keep_topic=True)
        rig.run_once()
        if adopted:
            rig.add(topic=AdoptedTopic(name=channel.topic.name), observed=topic)

    # Before the second observation, which follows the creation of the topic.
    hooked.before_creation = lambda: setattr(hooked, "after_observation", lead)
    counts = rig.reconciler(kafka=hooked).run_once()
    assert (counts.created, counts.conflicts) == (1, 1)
    assert rig.find(channel) is None
    assert rig.topic(channel) is not None


def test_a_topic_created_for_a_deleting_channel_is_deleted_with_it(
    rig: Rig, hooked: HookedKafka
) -> None:
    channel = rig.add()
    hooked.before_creation = lambda: rig.delete(channel)
    assert rig.reconciler(kafka=hooked).run_once().conflicts == 1
    assert rig.get(channel).phase is Phase.DELETING
    while rig.find(channel) is not None:
        rig.run_once()
        rig.clock.advance(60)
    rig.await_topic(channel, lambda topic: topic is None)


def test_a_delayed_deletion_does_not_affect_a_newer_channel(rig: Rig, operator: Topics) -> None:
    channel = rig.ready()
    rig.delete(channel)
    rig.run_once()
    younger = rig.ready()
    assert younger.topic.name != channel.topic.name
    # The delayed replica still has the former row of the deleted channel.
    from sluiceway_gateway.provisioning.reconcile_result import desired_topic
    from sluiceway_gateway.provisioning.reconciler import apply
    from sluiceway_gateway.provisioning.topic import plan

    late = desired_topic(replace(channel, phase=Phase.DELETING))
    operator.create(channel.topic.name)
    rig.await_topic(channel, lambda topic: topic is not None)
    apply(rig.kafka, plan(late, rig.topic(channel)).actions)
    assert rig.topic(channel) is not None
    operator.delete(channel.topic.name)


class ManualSeconds:
    """A monotonic clock that only tests advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


LEASE_MS = 60_000


def leader(
    database: Database, holder: str, seconds: ManualSeconds, lease_ms: int = LEASE_MS
) -> Leader:
    return Leader(
        database=database, name="test", holder=holder, lease_ms=lease_ms, monotonic=seconds
    )


def test_one_replica_leads_and_another_takes_over_when_it_resigns(database: Database) -> None:
    seconds = ManualSeconds()
    first, second = leader(database, "a", seconds), leader(database, "b", seconds)
    assert [first.has_lease, second.has_lease] == [False, False]
    assert [first.leads(), second.leads()] == [True, False]
    assert [first.has_lease, second.has_lease] == [True, False]
    seconds.now += first.renewal_s
    assert [first.leads(), second.leads()] == [True, False]
    second.resign()
    assert first.leads(), "resigning without the lease must change nothing"
    first.resign()
    assert not first.has_lease
    seconds.now += second.poll_s
    assert [second.leads(), first.leads()] == [True, False]


def test_one_lease_covers_all_loops_of_a_replica(database: Database) -> None:
    seconds, transactions = ManualSeconds(), list[None]()
    first, second = leader(database, "a", seconds), leader(database, "b", seconds)
    assert first.leads()
    with at_call(database, "write", lambda: transactions.append(None)):
        for times in (1, 2):
            assert [second.leads() for _ in range(7)] == [False] * 7
            assert len(transactions) == times
            seconds.now += second.poll_s


def time_until_leading(candidate: Leader, seconds: ManualSeconds) -> float:
    """Advance the clock until a replica leads, and return the time in seconds."""
    began_s = seconds.now
    while not candidate.leads():
        assert seconds.now - began_s < 600
        seconds.now += candidate.poll_s
    return seconds.now - began_s


def test_another_replica_takes_over_when_a_lease_ends(database: Database) -> None:
    seconds = ManualSeconds()
    dead, other = leader(database, "dead", seconds), leader(database, "other", seconds)
    assert [dead.leads(), other.leads()] == [True, False]
    assert time_until_leading(other, seconds) == LEASE_MS / 1000
    assert [dead.has_lease, other.has_lease] == [False, True]
    assert not dead.leads(), "the former leader must notice at its next renewal"


@pytest.mark.sample
def test_a_renewed_lease_is_kept(database: Database) -> None:
    seconds = ManualSeconds()
    first, other = leader(database, "a", seconds), leader(database, "b", seconds)
    for _ in range(5 * LEASE_MS // 1000):
        assert [first.leads(), other.leads()] == [True, False]
        seconds.now += other.poll_s


@pytest.mark.sample
def test_a_lease_expires_after_its_holders_term(database: Database) -> None:
    seconds = ManualSeconds()
    assert leader(database, "dead", seconds, lease_ms=3 * LEASE_MS).leads()
    other = leader(database, "other", seconds)
    assert time_until_leading(other, seconds) == 3 * LEASE_MS / 1000


@pytest.mark.parametrize("hours", [1, -1])
def test_setting_the_wall_clock_neither_ends_nor_extends_a_lease(
    database: Database, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = ManualSeconds()
    first, other = leader(database, "a", seconds), leader(database, "b", seconds)
    assert [first.leads(), other.leads()] == [True, False]
    wall_clock = time.time
    # The machine's clock is not the tests' to set.
    monkeypatch.setattr("time.time", lambda: wall_clock() + hours * 3600)
    seconds.now += first.renewal_s
    assert [first.leads(), other.leads()] == [True, False]
    # The leader is dead from here on.
    assert time_until_leading(other, seconds) <= LEASE_MS / 1000 + other.poll_s


def test_a_replica_with_a_slow_renewal_does_not_lead_beyond_its_lease(
    database: Database,
) -> None:
    """The leader counts its lease from before the request, others from when they saw it."""
    seconds = ManualSeconds()
    first, other = leader(database, "a", seconds), leader(database, "b", seconds)

    def wait() -> None:
        seconds.now += 7.0

    with at_call(database, "write", wait):
        assert first.leads()
    assert seconds.now == 7.0
    seconds.now = first.renewal_s
    with failing_call(database, "write", DatabaseUnavailable("unavailable"), arrives=False):
        first.leads()
    with at_call(database, "write", wait):
        assert not other.leads()
    seen_s = seconds.now
    time_until_leading(other, seconds)
    assert seconds.now - seen_s >= LEASE_MS / 1000


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_on_sqlite_a_process_takes_over_at_once_from_a_dead_one(database: Database) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    seconds, host = ManualSeconds(), socket.gethostname()
    assert leader(database, f"{host}:{dead.pid}:0", seconds).leads()
    assert leader(database, "other", seconds).leads()


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "holder_format", ["{host}:{pid}:0", "elsewhere:{dead}:0", "{host}:x:0", "?"]
)
def test_on_sqlite_a_process_waits_for_one_that_may_be_running(
    database: Database, holder_format: str
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    holder = holder_format.format(host=socket.gethostname(), pid=os.getpid(), dead=dead.pid)
    seconds = ManualSeconds()
    assert leader(database, holder, seconds).leads()
    assert time_until_leading(leader(database, "other", seconds), seconds) == LEASE_MS / 1000


def test_no_replica_leads_without_the_database(database: Database) -> None:
    seconds = ManualSeconds()
    first = leader(database, "a", seconds)
    assert first.leads()
    seconds.now += first.renewal_s
    with at_call(database, "write", Mock(side_effect=DatabaseUnavailable("unavailable"))):
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                first.leads()
        first.resign()


@pytest.mark.parametrize("error", [DatabaseUnavailable("locked"), RuntimeError("a bug")])
def test_a_loop_continues_after_an_error_and_reports_repeated_failures(
    database: Database, error: Exception
) -> None:
    outcomes = iter([error, error, 7.0, error, error, error, error, 7.0])
    reported: list[tuple[str, int]] = []

    def run_once() -> float:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    loop = Loop(
        name="test",
        leader=leader(database, "a", ManualSeconds()),
        run_once=run_once,
        stopping=threading.Event(),
        retry_s=3.0,
        on_pass=lambda name, failures: reported.append((name, failures)),
    )
    kind = type(error).__name__
    passes = [(loop.run_pass(), loop.failing) for _ in range(8)]
    assert passes == [
        *[(3.0, None), (3.0, None), (7.0, None)],
        *[(3.0, None), (3.0, None), (3.0, kind), (3.0, kind), (7.0, None)],
    ]
    assert reported == [("test", failures) for failures in (1, 2, 0, 1, 2, 3, 4, 0)]


def test_a_lasting_failure_is_logged_once_a_minute(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([*[DatabaseUnavailable("locked")] * 130, *[RuntimeError("a bug")] * 5])

    def run_once() -> float:
        raise next(failures)

    loop = Loop(
        name="test",
        leader=leader(database, "a", ManualSeconds()),
        run_once=run_once,
        stopping=threading.Event(),
    )
    for _ in range(135):
        loop.run_pass()
    logged = [vars(record)["failures"] for record in caplog.records if "failures" in vars(record)]
    assert logged == [1, 2, 3, 60, 120, 131]


def test_a_replica_without_the_lease_does_nothing(database: Database) -> None:
    seconds = ManualSeconds()
    assert leader(database, "a", seconds).leads()
    idle = leader(database, "b", seconds)

    def run_once() -> float:
        raise AssertionError

    loop = Loop(name="test", leader=idle, run_once=run_once, stopping=threading.Event())
    assert loop.run_pass() == idle.poll_s == 1.0


class Replica:
    """The loops of a replica, with a semaphore that counts passes with changes."""

    def __init__(self, rig: Rig, url: str, lease_ms: int = 60_000) -> None:
        self.changed = threading.Semaphore(0)
        self.loops = Loops(
            database=rig.database,
            kafka=rig.kafka,
            settings=Settings(database_url=url, lease_ms=lease_ms),
            clock=rig.clock,
            on_reconciled=self._on_reconciled,
        )

    def _on_reconciled(self, counts: ReconcileCounts) -> None:
        if counts.changed:
            self.changed.release()


@pytest.mark.sample
def test_a_replica_that_stops_releases_its_lease(rig: Rig, database_url: str) -> None:
    first, second = Replica(rig, database_url), Replica(rig, database_url)
    rig.add()
    first.loops.start()
    assert first.changed.acquire(timeout=30)
    second.loops.start()
    rig.add()
    first.loops.wake()
    assert first.changed.acquire(timeout=30)
    assert first.loops.stop()
    rig.add()
    second.loops.wake()
    began = time.monotonic()
    assert second.changed.acquire(timeout=50), "the lease of a minute was not released"
    assert time.monotonic() - began < 30
    assert second.loops.stop()


def test_loops_that_never_started_stop(rig: Rig, database_url: str) -> None:
    assert Replica(rig, database_url).loops.stop()
