"""Opening of batches: one for each key and instance, takeovers, replays. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sluiceway_gateway.errors import (
    BatchFenced,
    BatchKeyTaken,
    BatchOpen,
    LedgerRestored,
    StaleBatch,
    UnknownPartition,
)
from sluiceway_gateway.ledger.model import (
    Batch,
    BatchState,
    Ending,
    Ledger,
    Owner,
    aborted_error,
    end_batches,
    expired,
    require_intact,
)


@dataclass(frozen=True, kw_only=True)
class PreviousCommit:
    """The last commit that a writer knows, by its number and time."""

    number: int
    at: datetime


@dataclass(frozen=True, kw_only=True)
class OpenRequest:
    """A request for the batch of a key. All tasks of one instance get the same batch."""

    key: str
    owner: str
    instance: str
    takeover: bool = False
    """Replace the owner's other instances at once, instead of waiting for their leases."""
    ordinal: int | None = None
    partitions: tuple[int, ...] | None = None
    own_key: bool = False
    previous: PreviousCommit | None = None
    lease: timedelta


@dataclass(frozen=True, kw_only=True)
class OpenDecision:
    """Values that an open stores: `aborted` first, then the batch, the owner and the ledger."""

    batch: Batch
    owner: Owner
    aborted: tuple[Batch, ...]
    ledger: Ledger
    replayed: bool
    """Whether the batch is stored already: committed, or opened by this instance."""


def open_batch(
    ledger: Ledger,
    owner: Owner | None,
    found: Batch | None,
    open_batches: Sequence[Batch],
    request: OpenRequest,
    now: datetime,
    *,
    new_id: str,
    max_age: timedelta,
    instance_epoch: int | None = None,
) -> OpenDecision:
    """Return the batch of the key: a new one, the instance's open one, or the committed one.

    `found` is the key's latest batch; `open_batches` are all open ones of the channel, including
    `found`; `instance_epoch` is the highest epoch of a batch of this owner and instance.

    Raises LedgerHalted, BatchKeyTaken, StaleBatch, BatchFenced, BatchAborted, BatchOpen and
    UnknownPartition.
    """
    require_intact(ledger)
    owner = owner or Owner(name=request.owner)
    _require_key(found, request)
    _require_order(owner, found, request)
    if found is not None and found.state is BatchState.COMMITTED:
        return _replayed(ledger, owner, found)
    epoch = owner.epoch if owner.instance == request.instance else instance_epoch
    _require_unfenced(owner, found, request, epoch)
    if found is not None and found.instance == request.instance:
        if found.state is BatchState.ABORTED:
            raise aborted_error(found)
        return _replayed(ledger, owner, found)
    displaced = _displaced(found, open_batches, request, now, new=epoch is None)
    gone = {each.id for each in displaced}
    others = [each for each in open_batches if each.id not in gone]
    ended = end_batches(
        ledger, displaced, others, now, Ending.ABORT, f"Taken over by {request.instance!r}."
    )
    if epoch is None:
        epoch = owner.epoch + 1
        owner = replace(
            owner,
            epoch=epoch,
            instance=request.instance,
            fence=epoch if request.takeover else owner.fence,
        )
    batch = Batch(
        id=new_id,
        key=request.key,
        owner=request.owner,
        instance=request.instance,
        epoch=epoch,
        ordinal=request.ordinal,
        begin=_begin(ended.ledger, request),
        partitions=request.partitions,
        own_key=request.own_key,
        opened_at=now,
        lease_until=min(now + request.lease, now + max_age),
        max_until=now + max_age,
    )
    return OpenDecision(
        batch=batch, owner=owner, aborted=ended.aborted, ledger=ended.ledger, replayed=False
    )


def require_previous(ledger: Ledger, previous: PreviousCommit, found_at: datetime | None) -> None:
    """Raise LedgerRestored unless the ledger has this commit.

    `found_at` is the time of its number in the ledger; None if it was pruned, or never ended.
    """
    # Clients see milliseconds.
    same = found_at is None or abs(found_at - previous.at) < timedelta(milliseconds=1)
    if same and previous.number <= ledger.number:
        return
    raise LedgerRestored(
        f"The channel does not have the commit {previous.number} of "
        f"{previous.at.isoformat(timespec='milliseconds')} that this writer has made: the database "
        "was restored to an earlier state. The records of this commit, and maybe of earlier ones, "
        "are invisible: write them again, with a new writer."
    )


def _replayed(ledger: Ledger, owner: Owner, batch: Batch) -> OpenDecision:
    return OpenDecision(batch=batch, owner=owner, aborted=(), ledger=ledger, replayed=True)


def _require_key(found: Batch | None, request: OpenRequest) -> None:
    if found is not None and found.owner != request.owner:
        raise BatchKeyTaken(
            f"The batch {request.key!r} belongs to {found.owner!r}, not to {request.owner!r}. Give "
            "each job keys of its own, and each query with a new checkpoint."
        )


def _require_order(owner: Owner, found: Batch | None, request: OpenRequest) -> None:
    """Raise StaleBatch for an ordinal below the highest committed one, or another key at it."""
    if request.ordinal is None or owner.ordinal is None or request.ordinal > owner.ordinal:
        return
    committed = found is not None and found.state is BatchState.COMMITTED
    if committed and request.ordinal == owner.ordinal:
        return
    raise StaleBatch(
        f"{owner.name!r} has committed the batch {owner.ordinal} already, so its batch "
        f"{request.ordinal} cannot be written again. If the query's checkpoint was restored from "
        "an older copy, start the query with a new checkpoint and with the offsets where the "
        "committed batches end."
    )


def _require_unfenced(
    owner: Owner, found: Batch | None, request: OpenRequest, epoch: int | None
) -> None:
    current = max(owner.fence, 0 if found is None else found.epoch)
    if epoch is not None and epoch < current:
        raise BatchFenced(
            f"Instance {current} of {owner.name!r} has replaced this one, which is number {epoch} "
            f"({request.instance!r}), or the channel was repaired. Stop it; a newer one goes on."
        )


def _displaced(
    found: Batch | None,
    open_batches: Sequence[Batch],
    request: OpenRequest,
    now: datetime,
    *,
    new: bool,
) -> list[Batch]:
    """Return the open batches that are aborted because this instance opens the key."""
    if request.takeover and new:
        return [each for each in open_batches if each.owner == request.owner]
    if found is None or found.state is not BatchState.OPEN:
        return []
    if not expired(found, now):
        raise BatchOpen(
            f"The batch {found.key!r} is open in another instance, {found.instance!r}, until "
            f"{found.lease_until.isoformat()} at least. Wait until it ends, or stop that job."
        )
    return [found]


def _begin(ledger: Ledger, request: OpenRequest) -> Mapping[int, int]:
    named = range(ledger.partitions) if request.partitions is None else request.partitions
    unknown = [each for each in named if not 0 <= each < ledger.partitions]
    if unknown:
        raise UnknownPartition(
            f"The channel has {ledger.partitions} partitions, from 0 on, and none with the number "
            f"{unknown[0]}. Name partitions that exist."
        )
    return {each: ledger.visible_end.get(each, 0) for each in sorted(named)}
