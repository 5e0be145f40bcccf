"""Storage of channels. Every change of phase names the allowed previous phases."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row, Select, and_, bindparam, func, not_, or_, select, update

from sluiceway_gateway.channels.labels import Requirement, Selector
from sluiceway_gateway.channels.model import (
    KEPT_BY_CHANNEL,
    Channel,
    Condition,
    Phase,
    Spec,
    SpecModel,
    TopicRef,
)
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.db.engine import ChangeKind, ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import by_dialect, columns_of, starts_with
from sluiceway_gateway.schemas.tables import channel_schemas, schemas

#: Columns of a channel that was created or changed: the reconciler checks it first.
DUE_AT_ONCE: Mapping[str, Any] = {"due_at": datetime(1970, 1, 1, tzinfo=UTC), "refusals": 0}

#: Columns with the name and the value of a field of `Channel`.
_OWN = (
    *("name", "uid", "labels", "generation", "revision", "created_at", "phase", "schema_id"),
    *("schema_version", "observed_generation", "adopted", "keep_topic"),
)
_DEFAULTS = Spec()
SpecModelT = TypeVar("SpecModelT", bound=SpecModel)


def selection() -> Select[Any]:
    """Select whole channels, with their schemas."""
    return (
        select(
            channels,
            func.coalesce(channel_schemas.c.annotated, schemas.c.definition).label("definition"),
        )
        .join(schemas, schemas.c.id == channels.c.schema_id)
        .outerjoin(
            channel_schemas,
            and_(
                channel_schemas.c.channel_uid == channels.c.uid,
                channel_schemas.c.version == channels.c.schema_version,
            ),
        )
    )


def channel_of(row: Row[Any]) -> Channel:
    """Return the channel of a row of `selection()`."""
    own: dict[str, Any] = {name: getattr(row, name) for name in _OWN}
    return Channel(
        **own,
        conditions=tuple(_condition(condition) for condition in row.conditions),
        topic=TopicRef(name=row.topic_name, id=row.topic_id, partitions=row.topic_partitions),
        spec=_with_columns(_DEFAULTS, row),
        schema=row.definition,
    )


def _with_columns(model: SpecModelT, row: Row[Any], prefix: str = "") -> SpecModelT:
    """Return the model with a row's values, which were validated as they came."""
    values = {
        name: _with_columns(value, row, f"{prefix}{name}_")
        if isinstance(value, SpecModel)
        else getattr(row, prefix + name)
        for name, value in vars(model).items()
        if name not in KEPT_BY_CHANNEL
    }
    return model.model_copy(update=values)


def values_of(channel: Channel) -> dict[str, Any]:
    """Return the columns of a channel, without the next check and the last use."""
    topic = channel.topic
    return {
        **{name: getattr(channel, name) for name in _OWN},
        **{field.replace(".", "_"): value for field, value in channel.spec.fields()},
        "conditions": [
            asdict(condition) | {"last_transition_at": condition.last_transition_at.isoformat()}
            for condition in channel.conditions
        ],
        "topic_name": topic.name,
        "topic_id": topic.id,
        "topic_partitions": topic.partitions,
    }


def _condition(value: Mapping[str, Any]) -> Condition:
    changed_at = datetime.fromisoformat(value["last_transition_at"])
    return Condition(**{**value, "last_transition_at": changed_at})


def in_phases(phases: Collection[Phase]) -> ColumnElement[bool]:
    """Return the condition that a channel is in one of these phases."""
    return channels.c.phase.in_(phases)


_NAMED = selection().where(channels.c.name == bindparam("name"))
# Locks only the channel's row, and permits KEY SHARE locks, which inserts of rows that refer to the
# channel take. The schema is read afterwards: PostgreSQL joins a row that it waited for with the
# rows of before, so that a channel with a new schema would not be found.
_LOCK = (
    select(channels.c.uid)
    .where(channels.c.name == bindparam("name"))
    .with_for_update(key_share=True)
)
_LOCK_NAMED = {
    wait: select(channels.c.uid)
    .where(channels.c.name.in_(bindparam("names", expanding=True)))
    .order_by(channels.c.uid)
    .with_for_update(key_share=True, skip_locked=not wait)
    for wait in (True, False)
}
_OF_UIDS = selection().where(channels.c.uid.in_(bindparam("uids", expanding=True)))
_HOLD_THESE = (
    select(channels.c.uid)
    .where(channels.c.uid.in_(bindparam("uids", expanding=True)))
    .order_by(channels.c.uid)
    .with_for_update(key_share=True)
)
_INSERT = by_dialect(
    lambda insert: insert(channels).on_conflict_do_nothing().returning(channels.c.uid)
)
_REVISIONS = ("generation", "revision", "endpoints_revision", "samples_revision")
_ALL_TAGS = select(channels.c.name, channels.c.uid, *(channels.c[name] for name in _REVISIONS))
_TAGS = _ALL_TAGS.where(channels.c.name.in_(bindparam("names", expanding=True)))


@dataclass(frozen=True, kw_only=True)
class Tag:
    """Identity and revisions of a channel, which differ between any two states."""

    uid: str
    generation: int
    revision: int
    endpoints_revision: int
    samples_revision: int


_UPDATE = update(channels).where(
    channels.c.uid == bindparam("was_uid"),
    channels.c.generation == bindparam("was_generation"),
    channels.c.revision == bindparam("was_revision"),
    channels.c.phase == bindparam("was_phase"),
)


def find(tx: ReadTransaction, name: str) -> Channel | None:
    """Return the channel of this name."""
    row = tx.execute(_NAMED, {"name": name}).one_or_none()
    return None if row is None else channel_of(row)


def name_of_topic(tx: ReadTransaction, topic: str) -> str | None:
    """Return the name of the channel that owns this topic."""
    statement = select(channels.c.name).where(channels.c.topic_name == topic)
    name: str | None = tx.execute(statement).scalar_one_or_none()
    return name


def hold(tx: WriteTransaction, name: str) -> Channel | None:
    """Return the channel of this name, locked until `tx` ends."""
    return None if tx.execute(_LOCK, {"name": name}).first() is None else find(tx, name)


def hold_named(tx: WriteTransaction, names: Collection[str], *, wait: bool) -> dict[str, Channel]:
    """Lock channels and return them by name; without `wait`, skip those that are locked."""
    held = tx.execute(_LOCK_NAMED[wait], {"names": sorted(names)}).scalars().all()
    return {row.name: channel_of(row) for row in tx.in_parts(_OF_UIDS, uids=held)}


def hold_channels(tx: WriteTransaction, uids: Collection[str]) -> set[str]:
    """Lock channels against attaching, detaching and liveness changes; return the uids found."""
    return {row.uid for row in tx.in_parts(_HOLD_THESE, uids=sorted(uids))}


def insert(tx: WriteTransaction, channel: Channel) -> bool:
    """Insert the channel; return False if its name or its topic is taken."""
    added = tx.execute(_INSERT[tx.dialect], {**values_of(channel), **DUE_AT_ONCE})
    tx.publish(ChangeKind.CHANNEL, [channel.uid])
    return added.first() is not None


def save(
    tx: WriteTransaction, channel: Channel, *, was: Channel, from_phases: Collection[Phase]
) -> bool:
    """Replace `was` by `channel` and make it due; return False if `was` is outdated."""
    return was.phase in from_phases and replace_row(tx, channel, was=was, **DUE_AT_ONCE)


def replace_row(tx: WriteTransaction, channel: Channel, *, was: Channel, **columns: Any) -> bool:
    """Replace `was` by `channel` and set further columns; return False if `was` is outdated."""
    expected = {
        "was_uid": was.uid,
        "was_generation": was.generation,
        "was_revision": was.revision,
        "was_phase": was.phase,
    }
    if channel.revision != was.revision:
        tx.publish(ChangeKind.CHANNEL, [channel.uid])
    return tx.execute(_UPDATE, {**values_of(channel), **expected, **columns}).rowcount == 1


_MAKE_DUE = update(channels).where(channels.c.uid == bindparam("of_uid")).values(**DUE_AT_ONCE)


def make_due(tx: WriteTransaction, uids: Collection[str]) -> None:
    """Let the reconciler compare these channels with Kafka now."""
    if uids:
        tx.execute(_MAKE_DUE, [{"of_uid": uid} for uid in sorted(uids)])


def page(
    tx: ReadTransaction,
    *,
    limit: int,
    after: str = "",
    selector: Selector | None = None,
    prefixes: Collection[str] = ("",),
) -> list[Channel]:
    """Return up to `limit` channels ordered by name, with names after `after`."""
    statement = selection().where(channels.c.name > after, starts_with(channels.c.name, prefixes))
    if selector is not None:
        statement = statement.where(*matches(channels.c.labels, selector))
    rows = tx.execute(statement.order_by(channels.c.name).limit(limit))
    return [channel_of(row) for row in rows]


def tags(tx: ReadTransaction, names: Sequence[str]) -> Mapping[str, Tag]:
    """Return the tags of the existing channels of these names."""
    return {row.name: tag_of(row) for row in tx.in_parts(_TAGS, names=names)}


def all_tags(tx: ReadTransaction, *, known: Mapping[str, Tag]) -> dict[str, Tag]:
    """Return the tags of all channels by name; those in `known` that are equal, as they are."""
    tags: dict[str, Tag] = {}
    for row in tx.execute(_ALL_TAGS):
        tag = known.get(row[0])
        if tag is None or (tag.uid, *(getattr(tag, name) for name in _REVISIONS)) != row[1:]:
            tag = tag_of(row)
        tags[row[0]] = tag
    return tags


def tag_of(row: Row[Any]) -> Tag:
    """Return the tag of a channel's row."""
    return Tag(**columns_of(row, Tag))


def count_by_phase(tx: ReadTransaction, *, prefixes: Collection[str]) -> dict[Phase, int]:
    """Return the number of channels with one of the prefixes in every phase."""
    counts = dict.fromkeys(Phase, 0)
    statement = select(channels.c.phase, func.count().label("number")).group_by(channels.c.phase)
    for row in tx.execute(statement.where(starts_with(channels.c.name, prefixes))):
        counts[row.phase] = row.number
    return counts


def matches(labels: ColumnElement[object], selector: Selector) -> list[ColumnElement[bool]]:
    """Return the conditions of a selector on a JSON column of labels."""
    return [_matches(labels, requirement) for requirement in selector.requirements]


def _matches(labels: ColumnElement[object], requirement: Requirement) -> ColumnElement[bool]:
    value: ColumnElement[str] = labels[requirement.key].as_string()
    if requirement.operator == "exists":
        return value.is_not(None)
    if requirement.operator == "absent":
        return value.is_(None)
    if requirement.operator == "in":
        return value.in_(requirement.values)
    return or_(value.is_(None), not_(value.in_(requirement.values)))


def record_use(
    tx: WriteTransaction, uid: str, at: datetime, *, interval: timedelta = timedelta(0)
) -> None:
    """Save a use, unless a later one, or one at most `interval` earlier, is saved."""
    tx.execute(
        update(channels)
        .where(
            channels.c.uid == uid,
            or_(channels.c.used_at.is_(None), channels.c.used_at < at - interval),
        )
        .values(used_at=at)
    )
