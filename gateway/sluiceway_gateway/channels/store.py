"""Storage of channels. Every state change names the states it may come from."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, func, or_, select

from sluiceway_gateway.channels.model import Channel, Phase
from sluiceway_gateway.channels.rows import (
    CHANGE,
    as_it_was,
    channel_of,
    selection,
    values_of,
)
from sluiceway_gateway.channels.selector import Selector
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channels
from sluiceway_gateway.db.statements import PreparedSelect, by_dialect, chunks, matches, starts_with
from sluiceway_gateway.provisioning.store import DUE_AT_ONCE

# What every request asks is put together once.
_NAMED = selection().where(channels.c.name == bindparam("name"))
# What refers to the row may still be added: commits of positions need not wait for this.
_HOLD = _NAMED.with_for_update(of=channels, key_share=True)
_ALL_NAMED = (
    selection()
    .where(channels.c.name.in_(bindparam("names", expanding=True)))
    .order_by(channels.c.uid)
)
_HOLD_NAMED = {
    wait: PreparedSelect(
        _ALL_NAMED.with_for_update(of=channels, key_share=True, skip_locked=not wait), keys="names"
    )
    for wait in (True, False)
}
_HOLD_THESE = (
    select(channels.c.uid)
    .where(channels.c.uid.in_(bindparam("uids", expanding=True)))
    .order_by(channels.c.uid)
    .with_for_update(key_share=True)
)
_INSERT = by_dialect(
    lambda insert: insert(channels).on_conflict_do_nothing().returning(channels.c.uid)
)
_TAGS = select(
    *(channels.c.name, channels.c.uid, channels.c.generation, channels.c.revision),
    *(channels.c.endpoints_revision, channels.c.samples_revision),
).where(channels.c.name.in_(bindparam("names", expanding=True)))


@dataclass(frozen=True, kw_only=True)
class Tag:
    """What tells two states of a name apart."""

    uid: str
    generation: int
    revision: int
    endpoints_revision: int
    samples_revision: int


def find(tx: ReadTransaction, name: str) -> Channel | None:
    """Return the channel that has this name now."""
    row = tx.execute(_NAMED, {"name": name}).one_or_none()
    return None if row is None else channel_of(row)


def name_of_topic(tx: ReadTransaction, topic: str) -> str | None:
    """Return the name of the channel whose topic this is, if it is a channel's."""
    statement = select(channels.c.name).where(channels.c.topic_name == topic)
    name: str | None = tx.execute(statement).scalar_one_or_none()
    return name


def hold(tx: WriteTransaction, name: str) -> Channel | None:
    """Return the channel of this name and keep others from changing it until `tx` ends."""
    row = tx.execute(_HOLD, {"name": name}).one_or_none()
    return None if row is None else channel_of(row)


def hold_named(tx: WriteTransaction, names: Collection[str], *, wait: bool) -> dict[str, Channel]:
    """Lock channels and return them by name; without `wait`, skip those that are locked."""
    return {row.name: channel_of(row) for row in tx.look_up(_HOLD_NAMED[wait], sorted(names))}


def hold_channels(tx: WriteTransaction, uids: Collection[str]) -> set[str]:
    """Keep others from attaching to these channels, detaching or judging, until `tx` ends.

    Returns the uids of those that there are.
    """
    held: set[str] = set()
    for part in chunks(sorted(uids)):
        held.update(tx.execute(_HOLD_THESE, {"uids": part}).scalars())
    return held


def insert(tx: WriteTransaction, channel: Channel) -> bool:
    """Add the channel; False if its name or its topic is taken."""
    added = tx.execute(_INSERT[tx.dialect], {**values_of(channel), **DUE_AT_ONCE})
    return added.first() is not None


def save(
    tx: WriteTransaction, channel: Channel, *, was: Channel, from_phases: Collection[Phase]
) -> bool:
    """Put `channel` in the place of `was`; False if that is not how it stands any more."""
    if was.phase not in from_phases:
        return False
    changed = tx.execute(CHANGE, {**values_of(channel), **as_it_was(was), **DUE_AT_ONCE})
    return changed.rowcount == 1


def page(
    tx: ReadTransaction,
    *,
    limit: int,
    after: str = "",
    selector: Selector | None = None,
    prefixes: Collection[str] = ("",),
) -> list[Channel]:
    """Return up to `limit` channels by name, those after `after` that fit all the rest."""
    statement = selection().where(
        channels.c.name > after, or_(False, *(starts_with(channels.c.name, p) for p in prefixes))
    )
    if selector is not None:
        statement = statement.where(*matches(channels.c.labels, selector))
    rows = tx.execute(statement.order_by(channels.c.name).limit(limit))
    return [channel_of(row) for row in rows]


def tags(tx: ReadTransaction, names: Sequence[str]) -> Mapping[str, Tag]:
    """Return how each of these names stands; names without a channel are left out."""
    found: dict[str, Tag] = {}
    for start in range(0, len(names), 500):
        chunk = names[start : start + 500]
        for row in tx.execute(_TAGS, {"names": chunk}):
            found[row.name] = Tag(
                uid=row.uid,
                generation=row.generation,
                revision=row.revision,
                endpoints_revision=row.endpoints_revision,
                samples_revision=row.samples_revision,
            )
    return found


def overall(tx: ReadTransaction) -> Tag:
    """Return what tells two states of all channels together apart: sums, without a uid."""
    table = channels.c
    sums = (table.generation, table.revision, table.endpoints_revision, table.samples_revision)
    columns = (func.coalesce(func.sum(each), 0).label(each.name) for each in sums)
    row = tx.execute(select(func.count().label("number"), *columns)).one()
    return Tag(
        uid=str(row.number),
        generation=int(row.generation),
        revision=int(row.revision),
        endpoints_revision=int(row.endpoints_revision),
        samples_revision=int(row.samples_revision),
    )


def count_by_phase(tx: ReadTransaction) -> dict[Phase, int]:
    """Return how many channels are in each phase, 0 included."""
    counts = dict.fromkeys(Phase, 0)
    statement = select(channels.c.phase, func.count().label("number")).group_by(channels.c.phase)
    for row in tx.execute(statement):
        counts[Phase(row.phase)] = row.number
    return counts
