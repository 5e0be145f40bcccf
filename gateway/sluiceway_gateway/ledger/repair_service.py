"""Repairs of halted ledgers: plans, and their execution in Kafka and in the database."""

from collections.abc import Mapping
from dataclasses import dataclass

from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.service import require_usable
from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.auth.model import Principal
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db.engine import Database, ReadTransaction, WriteTransaction
from sluiceway_gateway.core.errors import Conflict, LedgerIntact
from sluiceway_gateway.core.kafka.admin import KafkaAdmin, require_watermarks
from sluiceway_gateway.core.kafka.model import NewMessage, Rejection
from sluiceway_gateway.endpoints.positions import require_topic
from sluiceway_gateway.ledger import batch_store, repair_store, store
from sluiceway_gateway.ledger.halting import LossCheck
from sluiceway_gateway.ledger.model import Ledger, Owner, Runs, lowest_offsets
from sluiceway_gateway.ledger.repairing import (
    Repair,
    RepairPlan,
    RepairRequest,
    known_losses,
    plan_repair,
    repair_ledger,
    require_planned,
    unfilled,
)
from sluiceway_gateway.ledger.service import require_ledger


@dataclass(eq=False, repr=False)
class Repairs:
    """Repairs of one database's ledgers."""

    database: Database
    kafka: KafkaAdmin
    clock: Clock = system_clock

    def plan(self, name: str, *, uid: str) -> RepairPlan:
        """Return the plan of a repair; changes nothing.

        Raises ChannelNotFound, UidMismatch, NoLedger, LedgerIntact and KafkaUnavailable.
        """
        with self.database.read() as tx:
            channel = require_ledger(tx, name, uid)
            ledger = known_losses(_stored_ledger(tx, channel), {})
        lost = self._lost(channel, ledger, self._ends(channel, ledger))
        with self.database.read() as tx:
            ledger = known_losses(_stored_ledger(tx, channel), lost)
            open_batches = batch_store.open_batches(tx, uid)
            return plan_repair(ledger, open_batches, _lost_runs(tx, ledger))

    def repair(self, name: str, request: RepairRequest, *, uid: str, by: Principal) -> Repair:
        """Give up the lost records, and end the halt; a repeat changes nothing.

        First the losses are stored, then the partitions are filled in Kafka, and then the ledger is
        repaired. Raises the errors of `plan`, RepairChanged and BeyondWatermark, and Conflict if
        Kafka refuses the messages that fill the partitions.
        """
        with self.database.read() as tx:
            channel = require_ledger(tx, name, uid)
            ledger = _stored_ledger(tx, channel)
            done = repair_store.repairs(tx, uid, before=repair_store.AFTER_ALL, limit=1)
        if ledger.halted is None and done and done[0].lost_from == dict(request.lost_from):
            return done[0]
        ledger = known_losses(ledger, {})
        ends = self._ends(channel, ledger)
        lost = self._lost(channel, ledger, ends)
        with self.database.write() as tx:
            was = self._hold(tx, channel)
            ledger = known_losses(was, lost)
            require_planned(ledger, request)
            # Filling the partitions hides the losses.
            store.save(tx, ledger, was=was, now=self.clock())
        missing = unfilled(ledger, ends)
        if missing:
            empty = (
                NewMessage(partition=at) for at, number in missing.items() for _ in range(number)
            )
            filled = self.kafka.produce(
                channel.topic.name, empty, max_message_bytes=channel.max_message_bytes
            )
            if isinstance(filled, Rejection):
                raise Conflict(
                    "The channel was not repaired: a repair fills partitions with empty messages "
                    f"that have no key. {filled.message}. Change these settings of the topic, and "
                    "repair the channel again."
                )
            ends = self._ends(channel, ledger)
        with self.database.write() as tx:
            was = self._hold(tx, channel)
            open_batches = batch_store.open_batches(tx, uid)
            owners = [
                batch_store.owner(tx, uid, owner) or Owner(name=owner)
                for owner in sorted({batch.owner for batch in open_batches})
            ]
            now = self.clock()
            runs = _lost_runs(tx, was)
            decision = repair_ledger(was, owners, open_batches, runs, ends, request, now)
            for batch in decision.aborted:
                batch_store.end(tx, uid, batch)
            for owner in decision.owners:
                batch_store.put_owner(tx, uid, owner)
            store.replace_runs(tx, uid, removed=decision.runs_removed, added=decision.runs_added)
            repair_store.save_repair(tx, decision.ledger, decision.repair, was=was, now=now)
            audit_store.add(
                tx,
                channel,
                AuditedAction.REPAIR_LEDGER,
                by=by,
                at=now,
                reason=request.reason,
                # Records from the new value on are given up.
                old={f"partition {p}": was.visible_end.get(p) for p in sorted(request.lost_from)},
                new={f"partition {p}": at for p, at in sorted(request.lost_from.items())},
            )
        return decision.repair

    def _hold(self, tx: WriteTransaction, channel: Channel) -> Ledger:
        store.share_channels(tx, [channel.uid])
        current = require_ledger(tx, channel.name, channel.uid)
        require_usable(current, writes=False)
        was = store.hold(tx, current)
        require_topic(current.topic.id, was.topic_id)
        return was

    def _ends(self, channel: Channel, ledger: Ledger) -> Mapping[int, int]:
        """Return Kafka's watermarks, of all partitions with committed records."""
        require_usable(channel, writes=False)
        partitions = max(ledger.visible_end, default=0) + 1
        marks = require_watermarks(
            self.kafka, channel.topic.name, partitions, unknown="The channel was not repaired."
        )
        return {partition: mark.end_offset for partition, mark in marks.items()}

    def _lost(self, channel: Channel, ledger: Ledger, ends: Mapping[int, int]) -> Mapping[int, int]:
        """Return, by partition, the watermark or the first offset that Kafka uses again."""
        check = LossCheck(database=self.database, kafka=self.kafka, clock=self.clock)
        return lowest_offsets(ends, check.all_reused(ledger, channel.topic, ledger.lost_from))


def _stored_ledger(tx: ReadTransaction, channel: Channel) -> Ledger:
    ledger = store.find(tx, channel.uid)
    if ledger is None:
        raise LedgerIntact(
            f"The channel {channel.name!r} is not halted: no batch was opened yet, so there is "
            "nothing to repair."
        )
    return ledger


def _lost_runs(tx: ReadTransaction, ledger: Ledger) -> Runs:
    return store.runs_from(tx, ledger.channel_uid, ledger.lost_from)
