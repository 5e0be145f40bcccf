"""Committed offsets that Kafka uses again: suspected by a conflict or a low watermark, and proven.

Kafka appends the records at the time of the test. By a gateway whose clock was an hour behind at
the commit, they replaced what was committed; by one whose clock is years ahead, they did not.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateways import code
from ledger_sites import LedgerSite, halt_ledger, ledger_site, lose_records, written_topic
from shared_kafka import SharedKafka
from sluiceway_gateway.core.auth.model import OwnershipMode
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Watermarks
from sluiceway_gateway.ledger import store
from sluiceway_gateway.ledger.halting import CLOCK_TOLERANCE, LedgerComparer
from sluiceway_gateway.ledger.service import Ledgers
from topics import Topics

AN_HOUR_AGO = timedelta(hours=-1)


@pytest.fixture
def site(ledger: LedgerSite, kafka: SharedKafka) -> LedgerSite:
    """A channel with 20 records in each of two partitions, at the time of the broker."""
    topic = written_topic(
        kafka.bootstrap_servers, partitions=2, records=20, message_timestamp_type="LogAppendTime"
    )
    return ledger_site(ledger.rig, topic, "tails")


@pytest.fixture
def replaced(site: LedgerSite) -> LedgerSite:
    """[0, 10) of both partitions was committed before Kafka appended the present records."""
    site.rig.clock.now = datetime.now(UTC) + AN_HOUR_AGO
    site.commit(site.open("before"), {0: [(0, 10)], 1: [(0, 10)]})
    return site


def lost_from(site: LedgerSite) -> dict[int, int]:
    with site.rig.database.read() as tx:
        ledger = store.find(tx, site.uid)
    assert ledger is not None
    return dict(ledger.lost_from)


def low_ends(site: LedgerSite) -> dict[int, int]:
    with site.rig.database.read() as tx:
        ledger = store.find(tx, site.uid)
    assert ledger is not None
    return dict(ledger.low_end)


def conflicts(site: LedgerSite) -> float:
    lines = site.rig.http.get("/metrics").text.splitlines()
    name = "sluiceway_manifest_conflicts_total "
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def refusals(site: LedgerSite) -> list[Any]:
    entries = site.rig.http.get(f"{site.path}/changes").json()["items"]
    return [entry for entry in entries if entry["action"] == "refuse_commit"]


@pytest.mark.sample
def test_a_commit_of_offsets_that_kafka_uses_again_halts_the_channel(replaced: LedgerSite) -> None:
    batch = replaced.open("after")
    # Only the offsets of partition 1 conflict.
    refused = replaced.post_commit(batch, {0: [(10, 12)], 1: [(7, 12)]})
    assert code(refused) == "ledger_halted"
    assert "partition 0 from offset 0" in refused.json()["detail"]
    assert lost_from(replaced) == {0: 0, 1: 0}
    assert replaced.committed()["halted"] is not None
    assert code(replaced.post_open("later")) == "ledger_halted"


@pytest.mark.sample
def test_an_overlap_with_replaced_records_halts_the_channel(site: LedgerSite) -> None:
    site.rig.clock.now = datetime.now(UTC) + AN_HOUR_AGO
    late = site.open("late")
    site.commit(site.open("early", instance="run-2"), {0: [(5, 10)]}, instance="run-2")
    assert code(site.post_commit(late, {0: [(8, 12)]})) == "ledger_halted"
    assert lost_from(site) == {0: 0}


@pytest.mark.long
def test_an_open_batch_hides_no_loss(site: LedgerSite) -> None:
    site.rig.clock.now = datetime.now(UTC) + AN_HOUR_AGO
    site.open("slow", "slow")
    site.commit(site.open("before"), {0: [(0, 10)]})
    assert site.committed()["stable"]["0"] == 0
    site.rig.clock.advance(timedelta(hours=2))
    site.post_abort(site.open("later"))
    assert code(site.post_commit(site.open("after"), {0: [(7, 12)]})) == "ledger_halted"
    assert lost_from(site) == {0: 0}


@pytest.mark.long
def test_a_faulty_clients_conflict_is_refused_counted_and_audited(site: LedgerSite) -> None:
    # The clocks differ by as much as is tolerated.
    site.rig.clock.now = datetime.now(UTC) - CLOCK_TOLERANCE + timedelta(seconds=1)
    site.commit(site.open("before"), {0: [(0, 10)]})
    site.rig.clock.advance(CLOCK_TOLERANCE)
    before = conflicts(site)
    assert code(site.post_commit(site.open("bad"), {0: [(8, 12)]})) == "manifest_conflict"
    assert conflicts(site) == before + 1
    (entry,) = refusals(site)
    assert (entry["target"], "begins at 10" in entry["reason"]) == ("bad", True)
    site.commit(site.open("good"), {0: [(10, 20)]})
    assert site.committed()["halted"] is None


@pytest.mark.sample
def test_a_conflict_below_the_log_start_is_refused(
    replaced: LedgerSite, kafka: SharedKafka
) -> None:
    batch = replaced.open("bad")
    Topics(kafka.bootstrap_servers).truncate(replaced.topic.name, 0, 15)
    assert code(replaced.post_commit(batch, {0: [(8, 20)]})) == "manifest_conflict"
    assert lost_from(replaced) == {}


@pytest.mark.sample
def test_a_conflict_in_a_recreated_topic_names_the_topic(
    replaced: LedgerSite, kafka: SharedKafka
) -> None:
    batch = replaced.open("after")
    topics = Topics(kafka.bootstrap_servers)
    topics.delete(replaced.topic.name)
    topics.create(replaced.topic.name, 2)
    topics.produce(replaced.topic.name, 0, [b"x"] * 12)
    assert code(replaced.post_commit(batch, {0: [(8, 12)]})) == "topic_changed"
    assert lost_from(replaced) == {}


@pytest.mark.sample
def test_times_of_writers_prove_nothing(ledger: LedgerSite, kafka: SharedKafka) -> None:
    topic = written_topic(
        kafka.bootstrap_servers, partitions=2, records=20, message_timestamp_type="CreateTime"
    )
    site = ledger_site(ledger.rig, topic, "times")
    site.rig.clock.now = datetime.now(UTC) + AN_HOUR_AGO
    site.commit(site.open("before"), {0: [(0, 10)]})
    assert code(site.post_commit(site.open("bad"), {0: [(8, 12)]})) == "manifest_conflict"


@pytest.mark.long
def test_records_of_a_repair_are_no_loss(site: LedgerSite, kafka: SharedKafka) -> None:
    site.rig.clock.now = datetime.now(UTC) + AN_HOUR_AGO
    site.commit(site.open("before"), {0: [(0, 10)], 1: [(0, 5)]})
    lose_records(site, {0: 30})
    halt_ledger(site, {0: 20})
    site.rig.clock.advance(timedelta(hours=2))
    repair(site, {"0": 0, "1": 0})
    batch = site.open("bad")
    Topics(kafka.bootstrap_servers).produce(site.topic.name, 0, [b"x"] * 2)
    assert code(site.post_commit(batch, {0: [(25, 32)]})) == "manifest_conflict"
    assert site.committed()["halted"] is None


@pytest.mark.sample
def test_a_commit_above_a_low_watermark_stores_it(site: LedgerSite) -> None:
    site.commit(site.open("before"), {0: [(0, 10)]})
    lose_records(site, {0: 30})
    assert code(site.post_commit(site.open("k2"), {0: [(30, 40)]})) == "beyond_watermark"
    assert low_ends(site) == {0: 20}


class Trailing(KafkaAdmin):
    """The real Kafka, with a watermark of partition 0 that trails at first."""

    end: int | None = 7
    may_read = True

    def offsets_at(self, name: str, partitions: Iterable[int], time_ms: int) -> dict[int, int]:
        if not self.may_read:
            raise KafkaUnavailable("the operation READ is not allowed")
        return super().offsets_at(name, partitions, time_ms)

    def watermarks_of(self, topics: dict[str, int]) -> dict[str, dict[int, Watermarks | None]]:  # type: ignore[override]
        marks = super().watermarks_of(topics)
        if self.end is not None:
            for of_topic in marks.values():
                of_topic[0] = Watermarks(begin_offset=0, end_offset=self.end)
        return marks

    def end_offsets(self, name: str, partitions: Iterable[int]) -> dict[int, int]:
        ends = super().end_offsets(name, partitions)
        return ends if self.end is None or 0 not in ends else ends | {0: self.end}


def repair(site: LedgerSite, lost_from: dict[str, int]) -> None:
    response = site.post("ledger/repair", lost_from=lost_from, reason="a disk failed")
    assert response.status_code == 200, response.text


@pytest.mark.long
def test_a_repair_gives_up_reused_offsets_of_all_partitions(replaced: LedgerSite) -> None:
    # An open batch has filled the lost end of partition 1; only that of partition 0 was noticed.
    halt_ledger(replaced, {0: 5})
    plan = replaced.rig.http.get(f"{replaced.path}/ledger/repair", params={"uid": replaced.uid})
    assert [(lost["partition"], lost["first"]) for lost in plan.json()["lost"]] == [(0, 0), (1, 0)]
    changed = replaced.post("ledger/repair", lost_from={"0": 5}, reason="a disk failed")
    assert code(changed) == "repair_changed"
    repair(replaced, {"0": 0, "1": 0})
    assert replaced.committed()["runs"] == {"0": [], "1": []}


@pytest.mark.sample
def test_a_commit_whose_conflict_another_one_has_proven_is_told_of_the_halt(
    replaced: LedgerSite, kafka: SharedKafka
) -> None:
    before = conflicts(replaced)

    class Proving(KafkaAdmin):
        """The real Kafka, by whose answer another commit halts the ledger meanwhile."""

        def offsets_at(self, name: str, partitions: Iterable[int], time_ms: int) -> dict[int, int]:
            offsets = super().offsets_at(name, partitions, time_ms)
            halt_ledger(replaced, {0: 0, 1: 0})
            return offsets

    rig, parts = replaced.rig, replaced.rig.app.state.parts
    with closing(Proving(kafka.bootstrap_servers)) as proving:
        ledgers = Ledgers(
            rig.database,
            proving,
            ownership=Ownership(rig.database, mode=OwnershipMode.ENFORCE),
            on_conflict=parts.metrics.count_conflict,
            max_age=timedelta(days=1),
            clock=rig.clock,
        )
        rig.replace(ledgers=ledgers)
        refused = replaced.post_commit(replaced.open("after"), {0: [(7, 12)]})
    assert code(refused) == "ledger_halted"
    assert (conflicts(replaced), refusals(replaced)) == (before, [])


@pytest.fixture
def trailing(kafka: SharedKafka) -> Iterator[Trailing]:
    admin = Trailing(kafka.bootstrap_servers)
    yield admin
    admin.close()


@pytest.fixture
def compare(site: LedgerSite, trailing: Trailing) -> Callable[[], int]:
    """Run a pass in a gateway that has just started; return the number of halted ledgers."""

    def run() -> int:
        comparer = LedgerComparer(
            database=site.rig.database,
            kafka=trailing,
            clock=site.rig.clock,
            monotonic=lambda: 0.0,
        )
        return comparer.run_once().halted

    return run


@pytest.mark.long
def test_a_watermark_that_caught_up_by_other_records_halts_the_channel(
    replaced: LedgerSite, trailing: Trailing, compare: Callable[[], int]
) -> None:
    for end in (9, 7, 8):
        trailing.end = end
        assert compare() == 0
    assert low_ends(replaced) == {0: 7}
    trailing.end = None
    assert compare() == 1
    assert lost_from(replaced) == {0: 0, 1: 0}
    assert low_ends(replaced) == {}


@pytest.mark.long
def test_records_below_a_low_watermark_that_lasts_are_lost_too(
    replaced: LedgerSite, trailing: Trailing
) -> None:
    passes_s = iter((0.0, 20.0, 40.0))
    comparer = LedgerComparer(
        database=replaced.rig.database,
        kafka=trailing,
        clock=replaced.rig.clock,
        monotonic=lambda: next(passes_s),
    )
    assert [comparer.run_once().halted for _ in range(3)] == [0, 0, 1]
    assert lost_from(replaced) == {0: 0, 1: 0}


@pytest.mark.sample
def test_a_watermark_that_stays_low_halts_the_channel_without_the_permission_to_read(
    replaced: LedgerSite, trailing: Trailing
) -> None:
    trailing.may_read = False
    passes_s = iter((0.0, 20.0, 40.0))
    comparer = LedgerComparer(
        database=replaced.rig.database,
        kafka=trailing,
        clock=replaced.rig.clock,
        monotonic=lambda: next(passes_s),
    )
    assert [comparer.run_once().halted for _ in range(3)] == [0, 0, 1]
    assert lost_from(replaced) == {0: 7}


@pytest.mark.sample
def test_later_commits_do_not_hide_a_loss(
    replaced: LedgerSite, trailing: Trailing, compare: Callable[[], int]
) -> None:
    assert compare() == 0
    replaced.rig.clock.advance(timedelta(hours=2))
    replaced.commit(replaced.open("later"), {0: [(10, 20)]})
    trailing.end = None
    assert compare() == 1


@pytest.mark.sample
def test_a_watermark_that_trailed_is_forgotten(
    site: LedgerSite, trailing: Trailing, compare: Callable[[], int]
) -> None:
    site.commit(site.open("before"), {0: [(0, 10)]})
    assert compare() == 0
    assert low_ends(site) == {0: 7}
    trailing.end = None
    assert compare() == 0
    assert low_ends(site) == {}
    site.commit(site.open("later"), {0: [(10, 20)]})
