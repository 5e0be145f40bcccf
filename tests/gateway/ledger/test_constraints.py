"""Constraints of the database enforce the rules of the ledger."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from endpoints import Services
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import ConcurrentChange
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.ledger import batch_store, store
from sluiceway_gateway.ledger.model import Batch, BatchState, Ending, Ledger, Owner
from sluiceway_gateway.ledger.tables import batches, ledger_partitions, visible_runs

NOW = datetime(2030, 1, 1, tzinfo=UTC)
BATCH = Batch(
    id="1" * 32,
    key="k",
    owner="o",
    instance="i",
    epoch=1,
    begin={0: 0},
    opened_at=NOW,
    lease_until=NOW + timedelta(seconds=10),
    max_until=NOW + timedelta(days=1),
)
COMMITTED = replace(
    BATCH,
    state=BatchState.COMMITTED,
    ending=Ending.COMMIT,
    number=1,
    records=1,
    counts={0: 1},
    digest="d",
    ended_at=NOW,
)


@pytest.fixture
def ledger(database: Database) -> Ledger:
    """A ledger with one open batch."""
    name, uid = Services(database=database).channel()
    with database.write() as tx:
        channel = channels_store.find(tx, name)
        assert channel is not None
        stored = store.hold(tx, channel)
        batch_store.insert(tx, uid, BATCH)
    return stored


@pytest.mark.sample
@pytest.mark.parametrize(
    "values",
    [
        {"state": "gone"},
        {"state": "committed"},
        {"state": "aborted", "number": 1, "ending": "abort", "ended_at": NOW},
        {"number": 1},
        {"ended_at": NOW},
        {"digest": "d"},
        {"epoch": 0},
    ],
)
def test_a_batch_ends_completely_or_not_at_all(
    database: Database, ledger: Ledger, values: dict[str, Any]
) -> None:
    with pytest.raises(IntegrityError), database.write() as tx:
        tx.execute(update(batches).values(**values))


@pytest.mark.sample
def test_a_key_is_open_or_committed_once(database: Database, ledger: Ledger) -> None:
    again = replace(BATCH, id="2" * 32, epoch=2)
    with pytest.raises(IntegrityError), database.write() as tx:
        batch_store.insert(tx, ledger.channel_uid, again)
    with database.write() as tx:
        batch_store.end(tx, ledger.channel_uid, COMMITTED)
    with pytest.raises(IntegrityError), database.write() as tx:
        batch_store.insert(tx, ledger.channel_uid, again)


def test_a_batch_ends_once(database: Database, ledger: Ledger) -> None:
    with database.write() as tx:
        batch_store.end(tx, ledger.channel_uid, COMMITTED)
    with pytest.raises(ConcurrentChange), database.write() as tx:
        batch_store.end(tx, ledger.channel_uid, COMMITTED)


@pytest.mark.sample
@pytest.mark.parametrize(("visible_end", "stable"), [(4, 5), (-1, -1), (5, -1)])
def test_stable_never_exceeds_the_visible_end(
    database: Database, ledger: Ledger, visible_end: int, stable: int
) -> None:
    row = {"channel_uid": ledger.channel_uid, "partition": 0}
    row |= {"visible_end": visible_end, "stable": stable}
    with pytest.raises(IntegrityError), database.write() as tx:
        tx.execute(ledger_partitions.insert(), row)


@pytest.mark.sample
@pytest.mark.parametrize(("first", "end"), [(5, 5), (6, 5), (-1, 5)])
def test_runs_are_not_empty(database: Database, ledger: Ledger, first: int, end: int) -> None:
    row = {"channel_uid": ledger.channel_uid, "partition": 0}
    row |= {"first_offset": first, "end_offset": end}
    with pytest.raises(IntegrityError), database.write() as tx:
        tx.execute(visible_runs.insert(), row)


def test_stored_ends_and_numbers_never_fall(database: Database, ledger: Ledger) -> None:
    later = replace(ledger, number=1, visible_end={0: 9}, stable={0: 7})
    with database.write() as tx:
        store.save(tx, later, was=ledger, now=NOW)
    for worse in (
        replace(later, number=2, visible_end={0: 8}),
        replace(later, number=2, stable={0: 6}),
        replace(later, number=2, partitions=0),
    ):
        with pytest.raises(ConcurrentChange), database.write() as tx:
            store.save(tx, worse, was=later, now=NOW)
    with pytest.raises(ConcurrentChange), database.write() as tx:
        store.save(tx, replace(later, number=2), was=ledger, now=NOW)
    with database.read() as tx:
        assert store.find(tx, ledger.channel_uid) == later
        ends = store.Snapshot(stable={0: 7}, visible_end={0: 9})
        assert store.snapshot(tx, ledger.channel_uid, 1) == ends


def test_an_owners_numbers_never_fall(database: Database, ledger: Ledger) -> None:
    owner = Owner(name="o", epoch=3, fence=2, instance="i", ordinal=5)
    with database.write() as tx:
        batch_store.put_owner(tx, ledger.channel_uid, owner)
    for worse in (replace(owner, epoch=2), replace(owner, fence=1), replace(owner, ordinal=None)):
        with pytest.raises(ConcurrentChange), database.write() as tx:
            batch_store.put_owner(tx, ledger.channel_uid, worse)


def test_a_run_is_replaced_only_if_it_is_unchanged(database: Database, ledger: Ledger) -> None:
    uid = ledger.channel_uid
    with database.write() as tx:
        store.replace_runs(tx, uid, removed={}, added={0: [Interval(0, 5)]})
    with pytest.raises(ConcurrentChange), database.write() as tx:
        store.replace_runs(tx, uid, removed={0: [Interval(0, 4)]}, added={0: [Interval(0, 9)]})
    with database.read() as tx:
        assert store.runs_from(tx, uid, {0: 0}) == {0: [Interval(0, 5)]}
