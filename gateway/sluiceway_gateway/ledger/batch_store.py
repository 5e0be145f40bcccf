"""Storage of batches, their owners, and parts of manifests.

Callers that change them hold the lock of the channel's ledger.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Exists,
    Row,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from sluiceway_gateway.channels.model import Delivery, Phase
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import columns_of, upsert
from sluiceway_gateway.endpoints.tables import endpoints
from sluiceway_gateway.ledger.model import (
    Batch,
    BatchState,
    Manifest,
    Owner,
    Settlement,
    manifest_of,
    settlement,
)
from sluiceway_gateway.ledger.store import numbers_of, require_held
from sluiceway_gateway.ledger.tables import batch_owners, batches, manifest_slices

_IS_OPEN = batches.c.state == BatchState.OPEN
_OWNER = select(batch_owners).where(
    batch_owners.c.channel_uid == bindparam("uid"), batch_owners.c.name == bindparam("owner")
)


_OWNERS = select(batch_owners).where(
    tuple_(batch_owners.c.channel_uid, batch_owners.c.name).in_(bindparam("keys", expanding=True))
)


_PUT_OWNER = upsert(
    batch_owners,
    ("channel_uid", "name"),
    where=lambda new: (
        (batch_owners.c.epoch <= new.epoch)
        & (batch_owners.c.fence <= new.fence)
        & (func.coalesce(batch_owners.c.ordinal, -1) <= func.coalesce(new.ordinal, -1))
    ),
)


def owner(tx: ReadTransaction, uid: str, name: str) -> Owner | None:
    """Return an owner of batches."""
    row = tx.execute(_OWNER, {"uid": uid, "owner": name}).one_or_none()
    return None if row is None else Owner(**columns_of(row, Owner))


def owners_of(tx: ReadTransaction, uid: str, names: Collection[str]) -> dict[str, Owner]:
    """Return these owners of batches by name."""
    rows = tx.in_parts(_OWNERS, keys=[(uid, name) for name in sorted(names)])
    return {row.name: Owner(**columns_of(row, Owner)) for row in rows}


def put_owner(tx: WriteTransaction, uid: str, owner: Owner) -> None:
    """Store an owner; its numbers never fall."""
    stored = tx.execute(_PUT_OWNER[tx.dialect], vars(owner) | {"channel_uid": uid})
    require_held(stored.rowcount == 1, "owner of batches")


_OF_CHANNEL = batches.c.channel_uid == bindparam("uid")
_BATCH = select(batches).where(_OF_CHANNEL, batches.c.id == bindparam("batch"))
_LATEST = (
    select(batches)
    .where(_OF_CHANNEL, batches.c.key == bindparam("key"))
    .order_by(batches.c.epoch.desc())
    .limit(1)
)
_OPEN = select(batches).where(_OF_CHANNEL, _IS_OPEN).order_by(batches.c.opened_at, batches.c.id)
_EPOCH = select(func.max(batches.c.epoch)).where(
    _OF_CHANNEL, batches.c.owner == bindparam("owner"), batches.c.instance == bindparam("instance")
)
_ENDED = (
    select(batches)
    .where(_OF_CHANNEL, batches.c.number < bindparam("before"))
    .order_by(batches.c.number.desc())
    .limit(bindparam("most"))
)
_ENDED_OF_KEY = _ENDED.where(batches.c.key == bindparam("key"))
_OF_END = ("state", "ending", "number", "records", "counts", "digest", "cause", "ended_at")
# Sets the columns that its parameters name.
_CHANGE = update(batches).where(_OF_CHANNEL, batches.c.id == bindparam("batch"), _IS_OPEN)
_OF_INSTANCES = (
    select(channels.c.name, batches.c.channel_uid, batches.c.id, batches.c.instance)
    .join(channels, channels.c.uid == batches.c.channel_uid)
    .where(_IS_OPEN, batches.c.instance.in_(bindparam("instances", expanding=True)))
)
_DUE = _OF_INSTANCES.where(
    batches.c.lease_until < bindparam("before", type_=batches.c.lease_until.type)
)
_LEASES = select(
    batches.c.channel_uid, batches.c.id, batches.c.opened_at, batches.c.lease_until
).where(_IS_OPEN)


def batch(tx: ReadTransaction, uid: str, id_: str) -> Batch | None:
    """Return a batch of the channel."""
    row = tx.execute(_BATCH, {"uid": uid, "batch": id_}).one_or_none()
    return None if row is None else _batch_of(row)


def latest(tx: ReadTransaction, uid: str, key: str) -> Batch | None:
    """Return the batch of the highest epoch of a key."""
    row = tx.execute(_LATEST, {"uid": uid, "key": key}).one_or_none()
    return None if row is None else _batch_of(row)


def open_batches(tx: ReadTransaction, uid: str) -> list[Batch]:
    """Return the channel's open batches, the oldest first."""
    return [_batch_of(row) for row in tx.execute(_OPEN, {"uid": uid})]


def instance_epoch(tx: ReadTransaction, uid: str, owner: str, instance: str) -> int | None:
    """Return the highest epoch of an instance's batches."""
    keys = {"uid": uid, "owner": owner, "instance": instance}
    epoch: int | None = tx.execute(_EPOCH, keys).scalar_one()
    return epoch


def ended(
    tx: ReadTransaction, uid: str, *, before: int, limit: int, key: str | None = None
) -> list[Batch]:
    """Return ended batches, newest first, or only those of a key."""
    statement, parameters = _ENDED, {"uid": uid, "before": before, "most": limit}
    if key is not None:
        statement, parameters = _ENDED_OF_KEY, parameters | {"key": key}
    return [_batch_of(row) for row in tx.execute(statement, parameters)]


@dataclass(frozen=True, kw_only=True)
class InstanceBatches:
    """Open batches of some instances in one channel: instances by batch id."""

    channel: str
    uid: str
    instances: Mapping[str, str]


def open_of_instances(
    tx: ReadTransaction, instances: Collection[str], *, before: datetime | None = None
) -> list[InstanceBatches]:
    """Return the open batches of these instances, or those whose leases end before a time."""
    statement, parameters = _OF_INSTANCES, dict[str, Any](instances=list(instances))
    if before is not None:
        statement, parameters = _DUE, parameters | {"before": before}
    by_channel: dict[tuple[str, str], dict[str, str]] = {}
    for row in tx.execute(statement, parameters):
        by_channel.setdefault((row.name, row.channel_uid), {})[row.id] = row.instance
    return [
        InstanceBatches(channel=name, uid=uid, instances=named)
        for (name, uid), named in sorted(by_channel.items())
    ]


def _has_batch(state: BatchState | None, *where: ColumnElement[bool]) -> Exists:
    """Return whether a writer, a row of `endpoints`, has such a batch."""
    return exists().where(
        batches.c.channel_uid == endpoints.c.channel_uid,
        # Its id, or its id and a suffix after "-", which is the character before ".".
        batches.c.instance >= endpoints.c.id,
        batches.c.instance < endpoints.c.id + literal_column("'.'"),
        *([] if state is None else [batches.c.state == state]),
        *where,
    )


_OF_KEY = batches.alias("of_key")
_KEY_IS_COMMITTED = exists().where(
    _OF_KEY.c.channel_uid == batches.c.channel_uid,
    _OF_KEY.c.key == batches.c.key,
    _OF_KEY.c.state == BatchState.COMMITTED,
)
_SETTLEMENTS = (
    select(
        endpoints.c.id,
        _has_batch(BatchState.OPEN).label("is_open"),
        _has_batch(BatchState.COMMITTED).label("committed"),
        _has_batch(BatchState.ABORTED).label("aborted"),
        _has_batch(None, or_(batches.c.own_key, ~_KEY_IS_COMMITTED)).label("abandoned"),
    )
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .where(
        channels.c.delivery == Delivery.EXACTLY_ONCE,
        # Whose batches are deleted before it.
        channels.c.phase != Phase.DELETING,
        endpoints.c.id.in_(bindparam("ids", expanding=True)),
    )
)


def settlements(tx: ReadTransaction, writers: Collection[str]) -> dict[str, Settlement]:
    """Return the settlements of writers of exactly-once channels, by endpoint id.

    Writers of channels that are being deleted have none.
    """
    return {
        row.id: settlement(
            is_open=row.is_open,
            committed=row.committed,
            aborted=row.aborted,
            abandoned=row.abandoned,
        )
        for row in tx.in_parts(_SETTLEMENTS, ids=sorted(writers))
    }


class OpenLease(NamedTuple):
    """The lease of an open batch; its times are of the clocks of replicas."""

    channel_uid: str
    batch: str
    opened_at: datetime
    until: datetime

    @property
    def longest(self) -> timedelta:
        """The longest time that its writer may have requested."""
        return self.until - self.opened_at


def open_leases(tx: ReadTransaction) -> list[OpenLease]:
    """Return the leases of all open batches."""
    return [OpenLease._make(row) for row in tx.execute(_LEASES)]


def insert(tx: WriteTransaction, uid: str, batch: Batch) -> None:
    """Store an open batch."""
    tx.execute(
        batches.insert(),
        vars(batch)
        | {
            "channel_uid": uid,
            "partitions": None if batch.partitions is None else list(batch.partitions),
            "brief": False,
        },
    )


def end(tx: WriteTransaction, uid: str, batch: Batch) -> None:
    """Store the end of an open batch."""
    _change(tx, uid, batch.id, {column: getattr(batch, column) for column in _OF_END})
    tx.execute(delete(manifest_slices).where(manifest_slices.c.batch_id == batch.id))


def renew(tx: WriteTransaction, uid: str, batch: Batch) -> None:
    """Store the lease of an open batch."""
    _change(tx, uid, batch.id, {"lease_until": batch.lease_until})


def _change(tx: WriteTransaction, uid: str, id_: str, columns: Mapping[str, Any]) -> None:
    changed = tx.execute(_CHANGE, {"uid": uid, "batch": id_, **columns}).rowcount
    require_held(changed == 1, "batch")


def _batch_of(row: Row[Any]) -> Batch:
    converted = {
        "begin": numbers_of(row.begin),
        "partitions": None if row.partitions is None else tuple(row.partitions),
        "counts": None if row.counts is None else numbers_of(row.counts),
    }
    return Batch(**columns_of(row, Batch) | converted)


_PUT_SLICE = upsert(manifest_slices, ("batch_id", "slice"))


def put_slice(tx: WriteTransaction, batch_id: str, number: int, manifest: Manifest) -> None:
    """Store a part of an open batch's manifest."""
    row = {"batch_id": batch_id, "slice": number, "manifest": manifest}
    tx.execute(_PUT_SLICE[tx.dialect], row)


def slices(tx: ReadTransaction, batch_id: str) -> dict[int, Manifest]:
    """Return the stored parts of a batch's manifest, by their numbers."""
    statement = select(manifest_slices).where(manifest_slices.c.batch_id == batch_id)
    return {
        row.slice: manifest_of({int(partition): pairs for partition, pairs in row.manifest.items()})
        for row in tx.execute(statement)
    }
