"""Batches of channels with exactly-once delivery: open, commit, abort, renew.

Each change locks the channel's ledger, reads, decides by `ledger/model.py` and stores, in one
transaction. Requests to Kafka come before.
"""

import contextlib
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel, Delivery, Phase
from sluiceway_gateway.channels.service import find_channel, require_usable
from sluiceway_gateway.channels.usage import UsageRecorder
from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db.engine import Database, ReadTransaction, WriteTransaction
from sluiceway_gateway.core.errors import (
    BatchNotFound,
    BeyondWatermark,
    ChannelClosed,
    ChannelNotFound,
    ChannelNotReady,
    Forbidden,
    InvalidManifest,
    KafkaUnavailable,
    ManifestConflict,
    NoLedger,
    SluicewayGatewayError,
    UidMismatch,
)
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.endpoints import position_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.model import PositionOwner
from sluiceway_gateway.endpoints.positions import Position, require_topic
from sluiceway_gateway.ledger import batch_store, store
from sluiceway_gateway.ledger.batches import (
    CommitRequest,
    OpenRequest,
    commit_batch,
    open_batch,
    require_previous,
    require_written,
)
from sluiceway_gateway.ledger.halting import LossCheck
from sluiceway_gateway.ledger.model import (
    LEASE,
    WRITER_ID_CHARACTERS,
    AbortDecision,
    Batch,
    BatchState,
    Ledger,
    Manifest,
    Owner,
    abort_batch,
    abort_instances,
    aborted_error,
    grow,
    renew,
    require_instance,
    require_intact,
)
from sluiceway_gateway.offsets.model import Commit, position_moved
from sluiceway_gateway.offsets.service import Advance, apply_advance, apply_commits

_log = structlog.get_logger(__name__)

#: Intervals and runs of a commit that take noticeable time.
_LARGE = 10_000
_RENEWED_BELOW = LEASE * 2 / 3
"""Remaining time of a lease at which a heartbeat renews it."""


@dataclass(frozen=True, kw_only=True)
class BatchInTopic:
    """A batch, and its topic."""

    batch: Batch
    topic_id: str


@dataclass(frozen=True, kw_only=True)
class MemberCommit:
    """The endpoint of a group's member, and the number of its commit."""

    endpoint: str
    epoch: int
    generation: int
    number: int


@dataclass(frozen=True, kw_only=True)
class PositionChange:
    """Positions of a reader, committed with a batch if the stored ones still equal `before`.

    `member` commits them; None for a reader that chose its partitions itself.
    """

    channel: str
    channel_uid: str
    group: str
    topic_id: str
    positions: tuple[Position, ...]
    before: Mapping[int, Position | None]
    member: MemberCommit | None


@dataclass(frozen=True, kw_only=True)
class CommittedBatch:
    """A commit's result, also for repeats."""

    batch: Batch
    stable: Mapping[int, int]


class Ledgers:
    """The ledgers of one database."""

    def __init__(
        self,
        database: Database,
        kafka: KafkaAdmin,
        *,
        ownership: Ownership,
        on_conflict: Callable[[], None] = lambda: None,
        max_age: timedelta,
        clock: Clock = system_clock,
    ) -> None:
        """`on_conflict` is called after each refused commit that lists offsets of others."""
        self._database = database
        self._kafka = kafka
        self._ownership = ownership
        self._on_conflict = on_conflict
        self._losses = LossCheck(database=database, kafka=kafka, clock=clock)
        self._max_age = max_age
        self._clock = clock
        self._usage = UsageRecorder(database, clock=clock)

    def open(
        self, name: str, request: OpenRequest, *, uid: str, principal: Principal
    ) -> BatchInTopic:
        """Return the key's batch: open, or committed before; idempotent by key and instance.

        The request's owner belongs to the first label that uses it. Raises Forbidden for another
        label, Fenced for a writer without its place, ChannelNotFound, UidMismatch, ChannelNotReady,
        ChannelClosed, NoLedger, and what `open_batch` raises.
        """
        with self._database.write() as tx:
            channel = self._channel(tx, name, uid)
            _require_writable(channel)
            was = store.hold(tx, channel)
            require_topic(channel.topic.id, was.topic_id)
            _require_place(tx, request.instance)
            # Added partitions get here on their first use.
            grown = grow(was, channel.topic.partitions or 0)
            previous = request.previous
            if previous is not None:
                times = store.times_of(tx, uid, [previous.number])
                require_previous(grown, previous, times.get(previous.number))
            now = self._clock()
            action = "take_over" if request.takeover else "open"
            decision = open_batch(
                grown,
                self._claimed(tx, channel, request.owner, principal, action),
                batch_store.latest(tx, uid, request.key),
                batch_store.open_batches(tx, uid),
                request,
                now,
                new_id=uuid.uuid4().hex,
                max_age=self._max_age,
                instance_epoch=batch_store.instance_epoch(tx, uid, request.owner, request.instance),
            )
            for batch in decision.aborted:
                batch_store.end(tx, uid, batch)
            if not decision.replayed:
                batch_store.put_owner(tx, uid, decision.owner)
                batch_store.insert(tx, uid, decision.batch)
            store.save(tx, decision.ledger, was=was, now=now)
        self._usage.record(channel)
        return BatchInTopic(batch=decision.batch, topic_id=was.topic_id)

    def upload(
        self,
        name: str,
        batch_id: str,
        number: int,
        manifest: Manifest,
        *,
        uid: str,
        instance: str,
        principal: Principal,
    ) -> BatchInTopic:
        """Store a part of an open batch's manifest; a repeat replaces it."""
        with self._database.write() as tx:
            channel = self._channel(tx, name, uid)
            ledger = store.hold(tx, channel)
            batch = _require_batch(tx, channel, batch_id)
            self._require_use(tx, channel, [batch.owner], principal, "commit")
            require_instance(batch, instance)
            if batch.state is BatchState.ABORTED:
                raise aborted_error(batch)
            # A committed batch needs no parts.
            if batch.state is BatchState.OPEN:
                batch_store.put_slice(tx, batch_id, number, manifest)
        return BatchInTopic(batch=batch, topic_id=ledger.topic_id)

    def topic_id(self, name: str, *, uid: str) -> str:
        """Return the id of the channel's topic."""
        with self._database.read() as tx:
            channel = require_ledger(tx, name, uid)
        return str(channel.topic.id)

    def commit(
        self,
        name: str,
        request: CommitRequest,
        *,
        uid: str,
        slices: int,
        positions: PositionChange | None,
        principal: Principal,
    ) -> CommittedBatch:
        """Make a batch visible, and commit the positions with it, or neither; idempotent.

        `slices` is the number of uploaded parts of the manifest, 0 if the request contains it.
        A manifest that lists offsets of others is refused and audited. If Kafka uses these offsets
        again, the channel is halted.

        Raises ChannelNotFound, UidMismatch, NoLedger, BatchNotFound, Forbidden, Fenced for a writer
        without its place, KafkaUnavailable, PositionMoved, and what `commit_batch`,
        `require_written` and a commit of positions raise.
        """
        if positions is not None:
            principal.require(Action.READ, positions.channel)
        with self._database.read() as tx:
            channel = require_ledger(tx, name, uid)
            batch = _require_batch(tx, channel, request.batch)
            self._require_use(tx, channel, [batch.owner], principal, "commit")
            if slices and batch.state is BatchState.OPEN:
                tx.allow_pauses()
                request = replace(request, manifest=_assembled(tx, batch, slices))
        if batch.state is BatchState.OPEN:
            self._require_written(channel, request.manifest)
        elif slices:
            # Only the digest of a repeated commit counts.
            request = replace(request, manifest={})
        try:
            return self._commit(name, request, uid=uid, positions=positions, principal=principal)
        except ManifestConflict as conflict:
            self._require_unused(channel, conflict.disputed)
            self._record_conflict(channel, batch, conflict, by=principal)
            raise

    def _commit(
        self,
        name: str,
        request: CommitRequest,
        *,
        uid: str,
        positions: PositionChange | None,
        principal: Principal,
    ) -> CommittedBatch:
        with self._database.write() as tx:
            uids = {uid} if positions is None else {uid, positions.channel_uid}
            store.share_channels(tx, uids)
            if positions is not None and positions.member is None:
                # Instead of an endpoint, whose lock serializes a member's commits.
                channels_store.hold_channels(tx, [positions.channel_uid])
            channel = require_ledger(tx, name, uid)
            require_usable(channel, writes=False)
            was = store.hold(tx, channel)
            require_topic(channel.topic.id, was.topic_id)
            batch = _require_batch(tx, channel, request.batch)
            if batch.state is BatchState.OPEN:
                _require_place(tx, batch.instance)
            runs = store.runs_from(tx, uid, _begins(batch, request.manifest))
            if sum(map(len, (*runs.values(), *request.manifest.values()))) > _LARGE:
                tx.allow_pauses()
            now = self._clock()
            decision = commit_batch(
                was,
                self._claimed(tx, channel, batch.owner, principal, "commit"),
                batch,
                batch_store.open_batches(tx, uid),
                runs,
                request,
                now,
            )
            stable = decision.ledger.stable
            if decision.repeated:
                assert decision.batch.number is not None  # noqa: S101 - it is committed
                # The current one, if the commit's snapshot was pruned.
                snapshot = store.snapshot(tx, uid, decision.batch.number)
                stable = was.stable if snapshot is None else snapshot.stable
            else:
                batch_store.end(tx, uid, decision.batch)
                batch_store.put_owner(tx, uid, decision.owner)
                store.replace_runs(
                    tx, uid, removed=decision.runs_removed, added=decision.runs_added
                )
                store.keep_batch_runs(tx, decision.ledger, decision.runs_above)
                # The time of the commit, so that it matches its snapshot.
                store.save(tx, decision.ledger, was=was, now=now)
                if positions is not None:
                    self._commit_positions(tx, positions, principal)
        return CommittedBatch(batch=decision.batch, stable=stable)

    def abort(
        self,
        name: str,
        batch_id: str,
        *,
        uid: str,
        instance: str | None,
        cause: str,
        principal: Principal,
    ) -> BatchInTopic:
        """Abort a batch; a repeat changes nothing.

        Without an instance, the batch may be any instance's: that needs the scope manage, or the
        label that it belongs to, and the audit trail gets an entry.

        Raises ChannelNotFound, UidMismatch, NoLedger, BatchNotFound, Forbidden, BatchFenced and
        BatchCommitted.
        """
        with self._database.write() as tx:
            channel = self._channel(tx, name, uid)
            was = store.hold(tx, channel)
            batch = _require_batch(tx, channel, batch_id)
            owners = self._require_use(tx, channel, [batch.owner], principal, "abort")
            if instance is None and not principal.owns(owners[batch.owner].label):
                principal.require(Action.MANAGE, name)
            now = self._clock()
            open_batches = batch_store.open_batches(tx, uid)
            decision = abort_batch(was, batch, open_batches, cause, now, instance)
            save_aborted(tx, decision, was=was, now=now)
            if instance is None and decision.aborted:
                audit_store.add(
                    tx,
                    channel,
                    AuditedAction.ABORT_BATCH,
                    by=principal,
                    at=now,
                    target=batch.key,
                    reason=cause,
                    old={f"batch of {batch.owner}": str(BatchState.OPEN)},
                    new={f"batch of {batch.owner}": str(BatchState.ABORTED)},
                )
        batch = decision.aborted[0] if decision.aborted else batch
        return BatchInTopic(batch=batch, topic_id=was.topic_id)

    def renew(
        self,
        name: str,
        instances: Mapping[str, str],
        *,
        uid: str,
        lease: timedelta,
        principal: Principal,
    ) -> list[Batch]:
        """Renew the leases of batches, given by id and instance; return the channel's batches.

        Without a `lease`, they are unchanged. Leaves out those of other labels, and raises
        Forbidden if all are.
        """
        renewed = []
        with self._database.write() as tx:
            channel = self._channel(tx, name, uid)
            store.hold(tx, channel)
            named = (batch_store.batch(tx, uid, id_) for id_ in sorted(instances))
            batches = [batch for batch in named if batch and batch.instance == instances[batch.id]]
            for batch in self._usable(tx, channel, batches, principal, "renew"):
                later = renew(batch, self._clock(), lease) if lease else batch
                if later != batch:
                    batch_store.renew(tx, uid, later)
                renewed.append(later)
        return renewed

    def renew_running(self, instances: Collection[str], principal: Principal) -> None:
        """Renew the open batches of running jobs, given by instance.

        Leases that are long enough are unchanged, because heartbeats are frequent. Batches of
        channels that the principal may not write, or of other labels, are skipped.
        """
        with self._database.read() as tx:
            before = self._clock() + _RENEWED_BELOW
            due = batch_store.open_of_instances(tx, instances, before=before)
        for batches in due:
            if principal.may(Action.WRITE, batches.channel):
                with _skipped("renew", batches.channel):
                    self.renew(
                        batches.channel,
                        batches.instances,
                        uid=batches.uid,
                        lease=LEASE,
                        principal=principal,
                    )

    def abort_ended(self, instances: Collection[str], principal: Principal) -> None:
        """Abort the open batches of ended jobs and queries, given by instance.

        Batches of channels that the principal may not write, or of other labels, are skipped.
        """
        with self._database.read() as tx:
            open_batches = batch_store.open_of_instances(tx, instances)
        for batches in open_batches:
            if principal.may(Action.WRITE, batches.channel):
                with _skipped("abort", batches.channel):
                    self._abort_instances(batches.channel, instances, batches.uid, principal)

    def _abort_instances(
        self, name: str, instances: Collection[str], uid: str, principal: Principal
    ) -> None:
        with self._database.write() as tx:
            channel = self._channel(tx, name, uid)
            was = store.hold(tx, channel)
            now = self._clock()
            open_batches = batch_store.open_batches(tx, uid)
            left = [batch for batch in open_batches if batch.instance in instances]
            usable = self._usable(tx, channel, left, principal, "abort")
            spared = {batch.owner for batch in left} - {batch.owner for batch in usable}
            decision = abort_instances(was, open_batches, instances, now, spared=spared)
            save_aborted(tx, decision, was=was, now=now)

    def transfer(
        self,
        name: str,
        *,
        writer: str | None,
        key: str | None,
        owner: str,
        reason: str | None,
        uid: str,
        principal: Principal,
    ) -> Owner:
        """Give the batches and keys of a writer, or of the writer of a key, to another label.

        Raises ChannelNotFound, UidMismatch, NoLedger, BatchNotFound and Forbidden.
        """
        principal.require(Action.MANAGE, name)
        with self._database.write() as tx:
            channel = self._channel(tx, name, uid)
            store.hold(tx, channel)
            if key is not None:
                batch = batch_store.latest(tx, uid, key)
                writer = None if batch is None else batch.owner
            current = None if writer is None else batch_store.owner(tx, uid, writer)
            if current is None:
                raise BatchNotFound(
                    f"The channel {name!r} has no batches of that writer or key: `sluiceway "
                    "channels commits` lists both."
                )
            transferred = replace(current, label=owner)
            if transferred != current:
                batch_store.put_owner(tx, uid, transferred)
                audit_store.add(
                    tx,
                    channel,
                    AuditedAction.TRANSFER_OWNER,
                    by=principal,
                    at=self._clock(),
                    target=current.name,
                    reason=reason,
                    old={"owner": current.label},
                    new={"owner": owner},
                )
        return transferred

    def _require_use(
        self,
        tx: ReadTransaction,
        channel: Channel,
        names: Collection[str],
        principal: Principal,
        action: str,
    ) -> Mapping[str, Owner]:
        """Return these owners of batches by name; raises Forbidden for one of another label."""
        stored = batch_store.owners_of(tx, channel.uid, names)
        owners = {name: stored.get(name) or Owner(name=name) for name in names}
        for owner in owners.values():
            self._ownership.require(principal, owner.owned(channel.name, channel.uid), action)
        return owners

    def _usable(
        self,
        tx: ReadTransaction,
        channel: Channel,
        batches: Sequence[Batch],
        principal: Principal,
        action: str,
    ) -> list[Batch]:
        """Return the batches without those of other labels; raises Forbidden if all are."""
        usable: set[str] = set()
        refusals: list[Forbidden] = []
        for name in sorted({batch.owner for batch in batches}):
            try:
                self._require_use(tx, channel, [name], principal, action)
            except Forbidden as error:
                refusals.append(error)
            else:
                usable.add(name)
        if refusals and not usable:
            raise refusals[0]
        for refusal in refusals:
            _log.info(f"{action} of batches skipped", channel=channel.name, reason=str(refusal))
        return [batch for batch in batches if batch.owner in usable]

    def _claimed(
        self,
        tx: WriteTransaction,
        channel: Channel,
        name: str,
        principal: Principal,
        action: str,
    ) -> Owner:
        """Return an owner of batches, which belongs to the principal's label if nobody had it.

        Raises Forbidden for one of another label.
        """
        owner = self._require_use(tx, channel, [name], principal, action)[name]
        if owner.label is not None or principal.subject is None:
            return owner
        claimed = replace(owner, label=principal.subject)
        # Otherwise it is new, and stored with its first batch.
        if owner.epoch:
            batch_store.put_owner(tx, channel.uid, claimed)
            audit_store.add(
                tx,
                channel,
                AuditedAction.CLAIM_OWNER,
                by=principal,
                at=self._clock(),
                target=name,
                old={"owner": None},
                new={"owner": principal.subject},
            )
        return claimed

    def _channel(self, tx: WriteTransaction, name: str, uid: str) -> Channel:
        """Return the channel, locked against deletion until `tx` ends."""
        store.share_channels(tx, [uid])
        channel = require_ledger(tx, name, uid)
        if channel.topic.id is None:
            require_usable(channel, writes=False)
        return channel

    def _require_written(self, channel: Channel, manifest: Manifest) -> None:
        # Partitions outside of the batch are refused later.
        partitions = range(channel.topic.partitions or 0)
        written = {
            partition: intervals
            for partition, intervals in manifest.items()
            if intervals and partition in partitions
        }
        if not written:
            return
        ends = self._kafka.end_offsets(channel.topic.name, written)
        silent = sorted(written.keys() - ends.keys())
        if silent:
            raise KafkaUnavailable(
                f"Kafka did not return the end offset of partition {silent[0]} of the channel "
                f"{channel.name!r}. Nothing was committed: repeat the commit."
            )
        try:
            require_written(written, ends)
        except BeyondWatermark:
            self._losses.note(channel.uid, channel.topic, written)
            raise

    def _require_unused(self, channel: Channel, disputed: Mapping[int, int]) -> None:
        """Halt the channel if Kafka uses these committed offsets again.

        Raises LedgerHalted for a halted channel, TopicChanged for a recreated topic, and
        KafkaUnavailable.
        """
        require_topic(self._losses.topic_id(channel.topic), str(channel.topic.id))
        with self._database.read() as tx:
            ledger = store.find(tx, channel.uid)
        if ledger is None:
            return
        lost = self._losses.reused(ledger, channel.topic, disputed)
        halted = self._losses.halt(ledger, channel.topic, lost)
        if halted is not None:
            require_intact(halted)
        # Another commit may have proven the same loss meanwhile.
        with self._database.read() as tx:
            now = store.find(tx, channel.uid)
        if now is not None:
            require_intact(now)

    def _record_conflict(
        self, channel: Channel, batch: Batch, conflict: ManifestConflict, *, by: Principal
    ) -> None:
        self._on_conflict()
        _log.warning(
            "a commit lists offsets of others",
            channel=channel.name,
            batch=batch.key,
            owner=batch.owner,
            disputed=conflict.disputed,
        )
        with self._database.write() as tx:
            audit_store.add(
                tx,
                channel,
                AuditedAction.REFUSE_COMMIT,
                by=by,
                at=self._clock(),
                target=batch.key,
                reason=str(conflict),
            )

    def _commit_positions(
        self, tx: WriteTransaction, change: PositionChange, principal: Principal
    ) -> None:
        owner: PositionOwner | None = (change.channel_uid, change.group, -1)
        if change.member is not None:
            endpoint = change.member.endpoint
            held = endpoints_store.hold(tx, [endpoint]).get(endpoint)
            owner = None if held is None else held.position_owner
        if owner is not None:
            stored = position_store.at(tx, owner, set(change.before))
            for partition, before in change.before.items():
                at = stored.get(partition)
                if (at and at.position.order) != (before and before.order):
                    raise position_moved(change.group, partition, at.position if at else None)
        now = self._clock()
        if change.member is None:
            advance = Advance(
                positions=change.positions,
                before={p: at for p, at in change.before.items() if at is not None},
                topic_id=change.topic_id,
            )
            apply_advance(
                tx,
                find_channel(tx, change.channel, change.channel_uid),
                change.group,
                advance,
                ownership=self._ownership,
                principal=principal,
                now=now,
            )
            return
        commit = Commit(
            channel=change.channel,
            channel_uid=change.channel_uid,
            group=change.group,
            topic_id=change.topic_id,
            positions=change.positions,
            **vars(change.member),
        )
        (result,) = apply_commits(tx, [(commit, principal)], ownership=self._ownership, now=now)
        if isinstance(result, SluicewayGatewayError):
            raise result
        after = {committed.position.partition: committed.position for committed in result.positions}
        for position in commit.positions:
            stands = after.get(position.partition)
            if stands is None or stands.order != position.order:
                # Its number was used before, so it changed nothing.
                raise position_moved(commit.group, position.partition, stands)


def save_aborted(
    tx: WriteTransaction, decision: AbortDecision, *, was: Ledger, now: datetime
) -> None:
    """Store aborted batches, and the ledger after them."""
    for batch in decision.aborted:
        batch_store.end(tx, was.channel_uid, batch)
    store.save(tx, decision.ledger, was=was, now=now)


def require_ledger(tx: ReadTransaction, name: str, uid: str | None) -> Channel:
    """Return the channel; raises ChannelNotFound, UidMismatch, and NoLedger without batches."""
    channel = find_channel(tx, name, uid)
    if channel.spec.delivery is not Delivery.EXACTLY_ONCE:
        raise NoLedger(
            f"The channel {name!r} has the delivery at_least_once, so it has no batches: write "
            "and read it without them, or make a channel with the delivery exactly_once."
        )
    return channel


@contextlib.contextmanager
def _skipped(action: str, channel: str) -> Iterator[None]:
    """Log and skip an action on a channel that was deleted, or on another owner's batches."""
    try:
        yield
    except (ChannelNotFound, ChannelNotReady, UidMismatch, Forbidden) as error:
        _log.info(f"{action} of batches skipped", channel=channel, reason=str(error))


def _require_writable(channel: Channel) -> None:
    """Raise ChannelClosed for a closed channel. While it is closing, writers can still commit."""
    require_usable(channel, writes=False)
    if channel.phase is Phase.CLOSED:
        raise ChannelClosed(
            f"The channel {channel.name!r} is closed: its records can be read, and no batch can "
            "be opened. Write to another channel, or delete and recreate this one."
        )


def _require_batch(tx: ReadTransaction, channel: Channel, batch_id: str) -> Batch:
    batch = batch_store.batch(tx, channel.uid, batch_id)
    if batch is None:
        raise BatchNotFound(
            f"The channel {channel.name!r} has no batch {batch_id}: the id is wrong, or the "
            "database was restored to an earlier state. Open the batch's key again, and write its "
            "records again; after a restore, also those of later commits than the backup."
        )
    return batch


def _require_place(tx: ReadTransaction, instance: str) -> None:
    """Raise Fenced if the writer of an instance has lost its place.

    Readers until the end of all writers do not wait for its batches. The transaction holds the
    ledger, so that a successor's commit comes after this one.
    """
    writer = endpoints_store.find(tx, instance[:WRITER_ID_CHARACTERS])
    if writer is not None:
        writer.require()


def _assembled(tx: ReadTransaction, batch: Batch, slices: int) -> Manifest:
    """Return the manifest that consists of the first uploaded parts."""
    stored = batch_store.slices(tx, batch.id)
    missing = [number for number in range(slices) if number not in stored]
    if missing:
        raise InvalidManifest(
            f"Slice {missing[0]} of {slices} of the batch {batch.key!r} was not uploaded. Upload "
            "it, and commit again."
        )
    manifest: dict[int, list[Interval]] = {}
    for number in range(slices):
        for partition, intervals in stored[number].items():
            manifest.setdefault(partition, []).extend(intervals)
    return {partition: tuple(intervals) for partition, intervals in sorted(manifest.items())}


def _begins(batch: Batch, manifest: Manifest) -> Mapping[int, int]:
    return {partition: batch.begin[partition] for partition in manifest if partition in batch.begin}
