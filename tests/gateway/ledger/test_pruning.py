"""Pruning of ledgers: what goes, what stays for good, and what is answered then."""

from datetime import timedelta

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import func, select, text

from gateways import code
from ledger_sites import LedgerSite
from sluiceway_gateway.core.db import revision
from sluiceway_gateway.ledger.pruning import LedgerPruneCounts, LedgerPruner, delete_history
from sluiceway_gateway.tables import metadata

DAYS = 30


@pytest.fixture
def pruner(ledger: LedgerSite) -> LedgerPruner:
    return pruner_of(ledger)


def pruner_of(ledger: LedgerSite, **limits: int) -> LedgerPruner:
    rig = ledger.rig
    return LedgerPruner(database=rig.database, days=DAYS, clock=rig.clock, **limits)


def later(ledger: LedgerSite) -> None:
    ledger.rig.clock.advance(timedelta(days=DAYS, seconds=1))


def rows(ledger: LedgerSite, table: str) -> int:
    with ledger.rig.database.read() as tx:
        count = select(func.count()).select_from(metadata.tables[table])
        return int(tx.execute(count).scalar_one())


@pytest.mark.long
def test_a_committed_key_stays_for_good_with_its_number_of_records(
    ledger: LedgerSite, pruner: LedgerPruner
) -> None:
    first = ledger.open("day-1")
    done = ledger.commit(first, {0: [(0, 10)]})
    assert pruner.run_once() == LedgerPruneCounts()
    later(ledger)
    assert pruner.run_once() == LedgerPruneCounts(shortened=1)
    assert pruner.run_once() == LedgerPruneCounts()

    again = ledger.open("day-1", instance="run-2")
    assert (again["state"], again["records"], again["number"]) == ("committed", 10, 1)
    assert (again["counts"], again["begin"]) == (None, {})
    assert ledger.commit(first, {0: [(0, 10)]}) == done
    assert code(ledger.post_open("day-1", "other")) == "batch_key_taken"
    assert ledger.committed()["runs"]["0"] == [[0, 10]]


def test_a_stream_keeps_its_highest_batch(ledger: LedgerSite, pruner: LedgerPruner) -> None:
    for number in range(3):
        batch = ledger.open(f"q-{number}", "query", takeover=True, ordinal=number)
        ledger.commit(batch, {0: [(number, number + 1)]})
    later(ledger)
    assert pruner.run_once() == LedgerPruneCounts(batches=2, snapshots=2)
    assert pruner.run_once() == LedgerPruneCounts()

    again = ledger.open("q-2", "query", "run-2", takeover=True, ordinal=2)
    assert (again["state"], again["records"]) == ("committed", 1)
    for number in (0, 1):
        response = ledger.post_open(f"q-{number}", "query", "run-2", takeover=True, ordinal=number)
        assert code(response) == "stale_batch"
    assert ledger.committed()["runs"]["0"] == [[0, 3]]


@pytest.mark.long
def test_keys_of_one_instance_and_aborted_batches_are_pruned_with_their_owners(
    ledger: LedgerSite, pruner: LedgerPruner
) -> None:
    ledger.commit(ledger.open("w-1", "w", "w", own_key=True), {0: [(0, 5)]}, instance="w")
    ledger.post_abort(ledger.open("failed", "job"))
    later(ledger)
    ledger.commit(ledger.open("w-2", "w2", "w2", own_key=True), {0: [(5, 9)]}, instance="w2")
    still_open = ledger.open("late", "slow")
    assert pruner.run_once() == LedgerPruneCounts(batches=2, snapshots=2, owners=2)

    assert ledger.committed()["runs"]["0"] == [[0, 9]]
    assert [batch["key"] for batch in ledger.committed()["open"]] == ["late"]
    assert ledger.open("late", "slow") == still_open
    listed = ledger.rig.http.get(f"{ledger.path}/commits").json()["commits"]
    assert [batch["key"] for batch in listed] == ["w-2"]
    assert ledger.open("failed", "job", "run-2")["epoch"] == 1


def test_a_pruned_snapshot_is_distinguished_from_an_unknown_one(
    ledger: LedgerSite, pruner: LedgerPruner
) -> None:
    early = "2029-12-31T00:00:00Z"
    assert ledger.committed(snapshot_at=early)["number"] == 0
    ledger.commit(ledger.open("k1"), {0: [(0, 5)]})
    ledger.commit(ledger.open("k2"), {0: [(5, 9)]})
    assert ledger.committed(snapshot_at=early)["number"] == 0
    later(ledger)
    ledger.commit(ledger.open("k3"), {0: [(9, 12)]})
    assert pruner.run_once().snapshots == 2

    for asked in ({"snapshot": 1}, {"snapshot": 2}, {"snapshot_at": early}):
        response = ledger.get_committed(**asked)
        assert (response.status_code, code(response)) == (404, "snapshot_not_found")
        assert "was pruned" in response.json()["detail"]
        assert "oldest one is that of commit 3, of 2030-01-31" in response.json()["detail"]
    assert ledger.committed(snapshot=3)["stable"]["0"] == 12
    assert "no commit 4" in ledger.get_committed(snapshot=4).json()["detail"]


@pytest.mark.long
def test_runs_of_batches_stay_while_a_snapshot_needs_them(
    ledger: LedgerSite, pruner: LedgerPruner
) -> None:
    slow = ledger.open("slow", "slow")
    ledger.commit(ledger.open("k1"), {0: [(5, 10)]})
    ledger.commit(ledger.open("k2"), {0: [(10, 15)]})
    assert rows(ledger, "batch_runs") == 2
    later(ledger)
    assert (pruner.run_once().snapshots, rows(ledger, "batch_runs")) == (1, 2)
    assert ledger.committed(snapshot=2)["runs"]["0"] == [[5, 15]]

    ledger.commit(slow, {0: [(0, 5)]})
    assert ledger.committed(snapshot=2)["runs"]["0"] == [[5, 10], [10, 15]]
    assert rows(ledger, "batch_runs") == 2
    later(ledger)
    counts = pruner.run_once()
    assert (counts.snapshots, counts.runs, rows(ledger, "batch_runs")) == (1, 2, 0)
    assert ledger.committed(snapshot=3)["runs"]["0"] == [[0, 15]]


@pytest.mark.long
def test_all_unneeded_runs_of_batches_are_pruned_with_their_snapshots(
    ledger: LedgerSite,
) -> None:
    pruner = pruner_of(ledger, max_rows=3)
    slow = ledger.open("slow", "slow")
    for number in range(4):
        runs = [(first, first + 1) for first in range(10 * number + 1, 10 * number + 10, 2)]
        ledger.commit(ledger.open(f"k{number}"), {0: runs})
    assert rows(ledger, "batch_runs") == 20
    ledger.commit(slow, {})
    later(ledger)
    ledger.commit(ledger.open("last"), {})
    while pruner.run_once().pause_s == 0:
        pass
    assert (rows(ledger, "ledger_snapshots"), rows(ledger, "batch_runs")) == (1, 0)


def test_a_migration_keeps_the_runs_that_later_snapshots_need(ledger: LedgerSite) -> None:
    ledger.commit(ledger.open("first"), {0: [(0, 3)]})
    slow, other = ledger.open("slow", "slow"), ledger.open("other", "other")
    ledger.commit(ledger.open("k1"), {0: [(3, 5), (7, 9)], 1: [(0, 4)]})
    script = ScriptDirectory.from_config(revision.alembic_config())
    migration = script.get_revision("0010").module
    with ledger.rig.database.write() as tx:
        tx.execute(text("DELETE FROM batch_runs"))
        tx.execute(text(migration.KEEP_RUNS_ABOVE_STABLE))
        tx.execute(text("UPDATE ledger_snapshots SET visible_end = NULL"))

    # A snapshot of the earlier version is a prefix; later ones have all batches wholly.
    ledger.commit(other, {0: [(5, 6)]})
    ledger.commit(slow, {0: [(6, 7)]})
    assert ledger.committed(snapshot=2)["runs"]["0"] == [[0, 3]]
    later = ledger.committed(snapshot=3)
    assert later["runs"] == {"0": [[0, 3], [3, 5], [5, 6], [7, 9]], "1": [[0, 4]], "2": [], "3": []}


@pytest.mark.long
def test_later_snapshots_have_the_batches_that_a_gateway_of_the_earlier_version_committed(
    ledger: LedgerSite,
) -> None:
    slow, slower = ledger.open("slow", "slow"), ledger.open("slower", "slower")
    ledger.commit(ledger.open("k1"), {0: [(3, 5)]})
    for number in (2, 3):
        ledger.commit(ledger.open(f"k{number}"), {0: [(3 * number - 1, 3 * number + 1)]})
        with ledger.rig.database.write() as tx:
            for statement in (
                "DELETE FROM batch_runs WHERE number = :number",
                "UPDATE ledger_snapshots SET visible_end = NULL WHERE number = :number",
            ):
                tx.execute(text(statement), {"number": number})
    ledger.post_abort(slow)
    assert whole_records(ledger, 4) == {*range(3, 7), 8, 9}
    ledger.commit(ledger.open("k5"), {0: [(12, 14)]})
    ledger.commit(slower, {0: [(1, 3)]})
    assert whole_records(ledger, 1) == {3, 4}
    assert whole_records(ledger, 5) == {*range(3, 7), 8, 9, 12, 13}
    assert whole_records(ledger, 6) == {*range(1, 7), 8, 9, 12, 13}


def whole_records(ledger: LedgerSite, snapshot: int) -> set[int]:
    runs = ledger.committed(snapshot=snapshot)["runs"]["0"]
    records = [offset for first, end in runs for offset in range(first, end)]
    assert len(records) == len(set(records))
    return set(records)


def test_the_last_snapshot_stays(ledger: LedgerSite, pruner: LedgerPruner) -> None:
    ledger.commit(ledger.open("k1"), {0: [(0, 5)]})
    later(ledger)
    assert pruner.run_once().snapshots == 0
    assert ledger.committed(snapshot=1)["runs"]["0"] == [[0, 5]]


def test_a_pass_is_limited_and_the_next_one_continues(ledger: LedgerSite) -> None:
    pruner = pruner_of(ledger, max_rows=2)
    for number in range(5):
        ledger.commit(ledger.open(f"k-{number}", own_key=True), {})
    later(ledger)
    counts = [pruner.run_once() for _ in range(4)]
    assert [pruned.batches for pruned in counts] == [2, 2, 1, 0]
    assert [pruned.snapshots for pruned in counts] == [2, 2, 0, 0]
    assert [pruned.pause_s > 0 for pruned in counts] == [False, False, True, True]
    assert (rows(ledger, "batches"), rows(ledger, "ledger_snapshots")) == (0, 1)


def test_readers_get_the_same_runs_while_the_history_of_a_deleted_channel_is_deleted(
    ledger: LedgerSite,
) -> None:
    slow = ledger.open("slow", "slow")
    for number in range(1, 4):
        ledger.commit(ledger.open(f"k{number}"), {0: [(5 * number, 5 * number + 5)]})
    ledger.post_abort(ledger.open("failed"))
    ledger.rig.http.delete(ledger.path, params={"uid": ledger.uid, "force": True})
    before, deleted = ledger.committed(), []
    more = True
    while more:
        with ledger.rig.database.write() as tx:
            more = delete_history(tx, ledger.uid, limit=2)
        assert ledger.committed() == before
        deleted.append(rows(ledger, "batches"))
    assert deleted == [3, 1, 1]
    assert [batch["id"] for batch in before["open"]] == [slow["id"]]
    # The last snapshot, and the runs above its stable offsets.
    assert (rows(ledger, "ledger_snapshots"), rows(ledger, "batch_runs")) == (1, 3)
    assert code(ledger.get_committed(snapshot=2)) == "snapshot_not_found"
