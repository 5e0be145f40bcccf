"""Removal of deleted channels with much history."""

from contextlib import closing
from functools import partial
from unittest.mock import Mock

import pytest
from sqlalchemy import func, select, text

from databases import Postgres
from faults import at_statements
from reconciler_rig import Rig
from sluiceway_gateway.channels.model import Channel, Delivery, Phase
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import DatabaseUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.ledger.pruning import delete_history
from sluiceway_gateway.ledger.tables import ledger_snapshots, ledgers
from sluiceway_gateway.provisioning.reconciler import Reconciler


def with_history(rig: Rig, snapshots: int) -> Channel:
    """Return a ready channel with snapshots of its ledger."""
    channel = rig.ready(delivery=Delivery.EXACTLY_ONCE)
    own = {"channel_uid": channel.uid}
    ledger = {"topic_id": channel.topic.id, "partitions": 1, "number": snapshots}
    rows = [
        own | {"number": number, "at": rig.clock.now, "stable": {}}
        for number in range(1, snapshots + 1)
    ]
    with rig.database.write() as tx:
        tx.execute(ledgers.insert(), own | ledger)
        tx.execute(ledger_snapshots.insert(), rows)
    return channel


def in_parts(rig: Rig, rows: int) -> Reconciler:
    """Return a reconciler that deletes this many rows of a kind at once."""
    return rig.reconciler(delete_history=partial(delete_history, limit=rows))


def test_a_long_history_is_deleted_in_parts(rig: Rig) -> None:
    channel = with_history(rig, snapshots=8)
    rig.delete(channel, keep_topic=True)
    reconciler, left, pauses_s = in_parts(rig, 3), [], []
    while rig.find(channel) is not None:
        pauses_s.append(reconciler.run_once().pause_s)
        with rig.database.read() as tx:
            statement = select(func.count()).select_from(ledger_snapshots)
            left.append(tx.execute(statement).scalar_one())
    assert left == [5, 2, 0]
    assert pauses_s == [0.0, 0.0, 0.5]


def test_channels_with_a_long_history_take_turns_with_others(rig: Rig) -> None:
    deleted = with_history(rig, snapshots=8)
    rig.delete(deleted)
    reconciler = rig.reconciler(delete_history=partial(delete_history, limit=3), page_size=1)
    assert reconciler.run_once().more
    added = rig.add()
    reconciler.run_once()
    assert rig.get(added).phase is Phase.READY
    assert rig.get(deleted).phase is Phase.DELETING


def test_a_channel_that_cannot_be_removed_delays_no_other(rig: Rig) -> None:
    doomed, removed = rig.ready(), rig.ready()
    rig.delete(doomed, keep_topic=True)
    rig.delete(removed, keep_topic=True)
    added = rig.add()
    fail = Mock(side_effect=DatabaseUnavailable("The statement takes too long."))
    with (
        at_statements(rig.database, "DELETE FROM channels", fail, values=doomed.uid),
        pytest.raises(DatabaseUnavailable),
    ):
        rig.run_once()
    assert rig.get(added).phase is Phase.READY
    assert rig.find(removed) is None
    assert rig.get(doomed).phase is Phase.DELETING
    assert rig.run_once().removed == 1


#: Deleting all rows takes longer than one statement may, 2.1 s here.
_SLOW_DELETION = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(0.05); RETURN OLD; END $$;
CREATE TRIGGER slow BEFORE DELETE ON ledger_snapshots FOR EACH ROW EXECUTE FUNCTION slow();
"""


def test_a_history_that_no_statement_can_delete_stops_no_channel(
    postgres: Postgres, admin: KafkaAdmin
) -> None:
    with closing(Database(postgres.migrated(), wait_ms=100)) as database:
        rig = Rig(database=database, kafka=admin)
        channel = with_history(rig, snapshots=60)
        with database.write() as tx:
            tx.execute(text(_SLOW_DELETION))
        rig.delete(channel, keep_topic=True)
        added = rig.add()
        reconciler = in_parts(rig, 20)
        reconciler.run_once()
        assert rig.get(added).phase is Phase.READY
        while rig.find(channel) is not None:
            reconciler.run_once()
