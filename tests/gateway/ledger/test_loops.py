"""Leases of batches, runs below the log start, and offsets that Kafka uses again."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from unittest.mock import Mock

import pytest

from faults import at_call, at_statements
from gateways import code
from ledger_sites import LedgerSite, ledger_site, written_topic
from shared_kafka import SharedKafka
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Watermarks
from sluiceway_gateway.ledger import store
from sluiceway_gateway.ledger.halting import LedgerComparer
from sluiceway_gateway.ledger.leases import LeaseReaper
from topics import Topics


class Clocks:
    """The gateway's wall clock and a monotonic clock, which go together."""

    def __init__(self, site: LedgerSite) -> None:
        self.wall = site.rig.clock
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def go_on(self, seconds: float) -> None:
        self.wall.advance(seconds)
        self.now_s += seconds


@pytest.fixture
def clocks(ledger: LedgerSite) -> Clocks:
    return Clocks(ledger)


@pytest.fixture
def reap(ledger: LedgerSite, clocks: Clocks) -> Callable[[float], int]:
    """Let time pass, with a pass of the reaper each second; return the number of reaped batches."""
    reaper = LeaseReaper(
        database=ledger.rig.database, clock=clocks.wall, monotonic=clocks.monotonic
    )

    def run(seconds: float) -> int:
        reaped = 0
        for _ in range(round(seconds)):
            clocks.go_on(1)
            reaped += reaper.run_once().reaped
        return reaped

    run(20)
    return run


@pytest.mark.sample
def test_a_vanished_writers_batch_ends_with_its_lease(
    ledger: LedgerSite, reap: Callable[[float], int]
) -> None:
    vanished = ledger.open("lost", "one", lease_ms=10_000)
    ledger.commit(ledger.open("k2", "two"), {0: [(5, 10)]})
    assert reap(8) == 0
    assert ledger.committed()["stable"]["0"] == 0
    assert reap(4) == 1
    visible = ledger.committed()
    assert (visible["number"], visible["runs"]["0"], visible["open"]) == (2, [[5, 10]], [])
    assert code(ledger.post_commit(vanished, {0: [(0, 5)]})) == "batch_aborted"
    (reaped, _) = ledger.rig.http.get(f"{ledger.path}/commits").json()["commits"]
    assert (reaped["kind"], reaped["state"], reaped["key"]) == ("reap", "aborted", "lost")
    assert reap(5) == 0


@pytest.mark.sample
def test_a_renewed_batch_stays_open_up_to_the_largest_age(
    ledger: LedgerSite, reap: Callable[[float], int]
) -> None:
    batch = ledger.open(lease_ms=10_000)
    named = [{"id": batch["id"], "instance": "run-1"}]
    for _ in range(5):
        assert reap(5) == 0
        ledger.post("batches/renew", batches=named, lease_ms=10_000)
    later = ledger.post("batches/renew", batches=named, lease_ms=3_600_000).json()["batches"]
    assert later[0]["state"] == "open"
    ledger.rig.clock.advance(86_400)
    late = ledger.post("batches/renew", batches=named, lease_ms=3_600_000).json()["batches"]
    assert late[0]["lease_until"] == "2030-01-02T00:00:20.000Z"


@pytest.mark.sample
def test_no_batch_ends_because_the_clock_was_set(
    ledger: LedgerSite, clocks: Clocks, reap: Callable[[float], int]
) -> None:
    batch = ledger.open(lease_ms=10_000)
    clocks.wall.advance(3600)
    assert reap(5) == 0
    ledger.post("batches/renew", batches=[{"id": batch["id"], "instance": "run-1"}])
    assert reap(25) == 0
    assert ledger.committed()["open"][0]["key"] == "k1"


@pytest.mark.sample
def test_a_clock_that_was_set_back_holds_readers_by_as_much_longer(
    ledger: LedgerSite, clocks: Clocks, reap: Callable[[float], int]
) -> None:
    ledger.open("lost", lease_ms=10_000)
    clocks.wall.advance(-60)
    assert reap(60) == 0
    assert reap(12) == 1


@pytest.mark.sample
def test_a_leader_whose_clock_is_ahead_reaps_vanished_writers_only(
    ledger: LedgerSite, clocks: Clocks
) -> None:
    def ahead() -> datetime:
        return clocks.wall() + timedelta(seconds=25)

    reaper = LeaseReaper(database=ledger.rig.database, clock=ahead, monotonic=clocks.monotonic)
    reaper.run_once()
    ledger.open("live", "one")
    ledger.open("lost", "two", instance="run-2")
    reaped = []
    for second in range(1, 61):
        clocks.go_on(1)
        body = {"session": "5" * 32, "beat": second, "endpoints": [], "renews": ["run-1"]}
        assert ledger.rig.http.post("/v1/heartbeats", json=body).status_code == 200
        reaped += [second] * reaper.run_once().reaped
    assert reaped == [31]
    assert [batch["key"] for batch in ledger.committed()["open"]] == ["live"]


@pytest.mark.sample
def test_writers_can_renew_after_an_outage_of_the_gateway(
    ledger: LedgerSite, clocks: Clocks, reap: Callable[[float], int]
) -> None:
    ledger.open(lease_ms=10_000)
    clocks.go_on(60)
    assert reap(10) == 0
    assert reap(10) == 1


@pytest.mark.sample
def test_a_new_leader_reaps_a_vanished_writers_batch_after_fifteen_seconds(
    ledger: LedgerSite, clocks: Clocks
) -> None:
    ledger.open("lost")
    clocks.go_on(29)
    leader = LeaseReaper(
        database=ledger.rig.database, clock=clocks.wall, monotonic=clocks.monotonic
    )
    reaped = []
    for second in range(20):
        reaped += [second] * leader.run_once().reaped
        clocks.go_on(1)
    assert reaped == [15]


@pytest.fixture
def comparer(
    ledger: LedgerSite, clocks: Clocks, kafka: SharedKafka
) -> Iterator[Callable[..., LedgerComparer]]:
    admin = KafkaAdmin(kafka.bootstrap_servers)

    def make(kafka: KafkaAdmin = admin) -> LedgerComparer:
        return LedgerComparer(
            database=ledger.rig.database,
            kafka=kafka,
            clock=clocks.wall,
            monotonic=clocks.monotonic,
        )

    yield make
    admin.close()


@pytest.mark.long
def test_runs_below_the_log_start_are_removed(
    ledger: LedgerSite, kafka: SharedKafka, comparer: Callable[..., LedgerComparer]
) -> None:
    topic = written_topic(kafka.bootstrap_servers, partitions=2, records=100)
    short = ledger_site(ledger.rig, topic, "short")
    short.commit(short.open(), {0: [(0, 10), (20, 60)], 1: [(0, 5)]})
    compare = comparer()
    assert compare.run_once().clipped == 0
    Topics(kafka.bootstrap_servers).truncate(topic.name, 0, 30)
    assert compare.run_once().clipped == 1
    visible = short.committed()
    assert visible["runs"] == {"0": [[30, 60]], "1": [[0, 5]]}
    assert visible["stable"] == visible["visible_end"] == {"0": 60, "1": 5}
    assert compare.run_once().clipped == 0
    short.commit(short.open("k2"), {0: [(60, 70)], 1: [(5, 10)]})
    # Only the first snapshot has lost records since its commit.
    assert [short.committed(snapshot=snapshot)["removed"] for snapshot in (0, 1, 2)] == [
        [],
        [0],
        [],
    ]
    Topics(kafka.bootstrap_servers).truncate(topic.name, 0, 100)
    assert compare.run_once().clipped == 1
    assert [short.committed(snapshot=snapshot)["removed"] for snapshot in (1, 2)] == [[0], [0]]
    assert short.committed()["stable"]["0"] == 70
    assert short.open("k3")["begin"] == {"0": 70, "1": 10}


class Behind(KafkaAdmin):
    """The real Kafka, with a watermark that trails or has lost records."""

    is_behind = True
    end = 7

    def watermarks_of(self, topics: dict[str, int]) -> dict[str, dict[int, Watermarks | None]]:  # type: ignore[override]
        watermarks = super().watermarks_of(topics)
        if self.is_behind:
            for marks in watermarks.values():
                marks[0] = Watermarks(begin_offset=0, end_offset=self.end)
        return watermarks

    def end_offsets(self, name: str, partitions: Iterable[int]) -> dict[int, int]:
        ends = super().end_offsets(name, partitions)
        return ends | {0: self.end} if self.is_behind and 0 in ends else ends


@pytest.mark.sample
def test_a_ledger_whose_records_are_lost_is_halted(
    ledger: LedgerSite,
    clocks: Clocks,
    kafka: SharedKafka,
    comparer: Callable[..., LedgerComparer],
) -> None:
    ledger.commit(ledger.open(), {0: [(0, 10)]})
    etag = ledger.get_committed().headers["etag"]
    behind = Behind(kafka.bootstrap_servers)
    compare = comparer(behind)
    for is_behind in (True, False, True):
        behind.is_behind = is_behind
        assert compare.run_once().halted == 0
        clocks.go_on(20)
    assert compare.run_once().halted == 0
    clocks.go_on(20)
    assert compare.run_once().halted == 1
    behind.close()
    response = ledger.get_committed(etag=etag)
    assert "partition 0" in response.json()["halted"]
    assert code(ledger.post_open("k2")) == "ledger_halted"


@pytest.mark.sample
def test_two_moments_without_a_look_between_them_halt_no_channel(
    ledger: LedgerSite,
    clocks: Clocks,
    kafka: SharedKafka,
    comparer: Callable[..., LedgerComparer],
) -> None:
    ledger.commit(ledger.open(), {0: [(0, 10)]})
    with closing(Behind(kafka.bootstrap_servers)) as behind:
        compare = comparer(behind)
        assert compare.run_once().halted == 0
        # As while another replica led.
        clocks.go_on(40)
        assert compare.run_once().halted == 0
        away = Mock(side_effect=KafkaUnavailable("a test"))
        for call in ("watermarks_of", "end_offsets"):
            with at_call(Behind, call, away):
                for _ in range(4):
                    clocks.go_on(10)
                    assert compare.run_once().halted == 0
            assert compare.run_once().halted == 0
        for _ in range(2):
            clocks.go_on(10)
            assert compare.run_once().halted == 0
        clocks.go_on(10)
        assert compare.run_once().halted == 1


@pytest.mark.long
def test_the_loss_begins_at_the_lowest_observed_watermark(
    ledger: LedgerSite,
    clocks: Clocks,
    kafka: SharedKafka,
    comparer: Callable[..., LedgerComparer],
) -> None:
    ledger.commit(ledger.open(), {0: [(0, 10)]})
    behind = Behind(kafka.bootstrap_servers)
    compare = comparer(behind)
    # Others write there before the loss is certain, and then further records are lost.
    for seconds, end, halted, lost_from in (
        (0, 5, 0, {}),
        (20, 8, 0, {}),
        (20, 9, 1, {0: 5}),
        (10, 4, 0, {0: 5}),
        (10, 10, 0, {0: 5}),
        (10, 4, 0, {0: 5}),
        (20, 4, 0, {0: 5}),
        (20, 4, 1, {0: 4}),
    ):
        clocks.go_on(seconds)
        behind.end = end
        assert compare.run_once().halted == halted
        with ledger.rig.database.read() as tx:
            stored = store.find(tx, ledger.uid)
        assert stored is not None
        assert stored.lost_from == lost_from
    behind.close()


@pytest.mark.sample
def test_another_topic_of_the_same_name_changes_no_ledger(
    ledger: LedgerSite,
    clocks: Clocks,
    kafka: SharedKafka,
    comparer: Callable[..., LedgerComparer],
) -> None:
    topic = written_topic(kafka.bootstrap_servers, partitions=2, records=100)
    site = ledger_site(ledger.rig, topic, "elsewhere")
    site.commit(site.open(), {0: [(0, 10), (20, 60)], 1: [(0, 60)]})
    # As in another cluster that the gateway was pointed at.
    topics = Topics(kafka.bootstrap_servers)
    topics.delete(topic.name)
    topics.create(topic.name, 2)
    topics.produce(topic.name, 0, [b"x"] * 70)
    topics.truncate(topic.name, 0, 30)
    compare = comparer()
    for _ in range(3):
        counts = compare.run_once()
        assert (counts.clipped, counts.halted) == (0, 0)
        clocks.go_on(40)
    visible = site.committed()
    assert visible["runs"] == {"0": [[0, 10], [20, 60]], "1": [[0, 60]]}
    assert visible["halted"] is None


class Busy(KafkaAdmin):
    """The real Kafka, with a commit right after it has answered with watermarks."""

    commit: Callable[[], None] = staticmethod(lambda: None)

    def watermarks_of(self, topics: dict[str, int]) -> dict[str, dict[int, Watermarks | None]]:  # type: ignore[override]
        marks = super().watermarks_of(topics)
        self.commit()
        return marks


@pytest.mark.long
def test_commits_during_the_passes_halt_no_channel(
    ledger: LedgerSite,
    clocks: Clocks,
    kafka: SharedKafka,
    comparer: Callable[..., LedgerComparer],
) -> None:
    topic = written_topic(kafka.bootstrap_servers, partitions=1, records=1)
    site = ledger_site(ledger.rig, topic, "busy")
    numbers = iter(range(1, 100))

    def commit() -> None:
        number = next(numbers)
        Topics(kafka.bootstrap_servers).produce(topic.name, 0, [b"x"])
        site.commit(site.open(f"k{number}"), {0: [(number, number + 1)]})

    with closing(Busy(kafka.bootstrap_servers)) as busy:
        busy.commit = commit
        compare = comparer(busy)
        for _ in range(6):
            assert compare.run_once().halted == 0
            with ledger.rig.database.read() as tx:
                stored = store.find(tx, site.uid)
            assert stored is not None
            assert stored.low_end == {}
            clocks.go_on(10)
    assert site.committed()["halted"] is None


@pytest.mark.sample
def test_a_ledger_that_cannot_be_compared_delays_no_other(
    ledger: LedgerSite,
    kafka: SharedKafka,
    comparer: Callable[..., LedgerComparer],
) -> None:
    sites = [
        ledger_site(
            ledger.rig, written_topic(kafka.bootstrap_servers, partitions=1, records=9), name
        )
        for name in ("one", "two")
    ]
    for site in sites:
        site.commit(site.open(), {0: [(0, 9)]})
        Topics(kafka.bootstrap_servers).truncate(site.topic.name, 0, 5)
    bad, good = sorted(sites, key=lambda site: site.uid)
    fail = Mock(side_effect=ValueError("a defect"))
    with (
        at_statements(ledger.rig.database, "UPDATE", fail, values=bad.uid),
        pytest.raises(ValueError, match="a defect"),
    ):
        comparer().run_once()
    assert [site.committed()["runs"]["0"] for site in (bad, good)] == [[[0, 9]], [[5, 9]]]
