"""Schemas by the channels that have them; schemas kept for topics of deleted channels."""

from collections.abc import Collection

from sqlalchemy import ColumnElement, case, exists, func, select, true

from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.channels.store import in_phases
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import by_dialect, starts_with
from sluiceway_gateway.schemas.model import Format
from sluiceway_gateway.schemas.tables import channel_schemas, kept_schemas, schemas


def find(
    tx: ReadTransaction,
    schema_id: int,
    *,
    prefixes: Collection[str] | None,
    format_: Format | None = None,
) -> str | None:
    """Return a schema's definition if a channel whose name starts with one of `prefixes` has it.

    The annotations are those of the channel that got the schema last, of those with the `format_`
    if there are any. With `prefixes` None, any schema is returned.
    """
    statement = select(schemas.c.definition).where(schemas.c.id == schema_id, _visible(prefixes))
    definition: str | None = tx.execute(statement).scalar_one_or_none()
    if definition is None:
        return None
    latest = (
        select(channel_schemas.c.annotated)
        .join(channels, channels.c.uid == channel_schemas.c.channel_uid)
        .where(
            channel_schemas.c.schema_id == schema_id,
            channel_schemas.c.annotated.is_not(None),
            true() if prefixes is None else starts_with(channels.c.name, prefixes),
        )
        .order_by(
            case((channels.c.format == format_, 0), else_=1),
            channel_schemas.c.created_at.desc(),
            channels.c.name,
        )
        .limit(1)
    )
    annotated: str | None = tx.execute(latest).scalar_one_or_none()
    return annotated or definition


def formats(
    tx: ReadTransaction, schema_id: int, *, prefixes: Collection[str] | None
) -> set[Format]:
    """Return the formats of the channels that have a schema, as `find` sees them."""
    statement = (
        select(channels.c.format)
        .distinct()
        .join(channel_schemas, channel_schemas.c.channel_uid == channels.c.uid)
        .where(
            channel_schemas.c.schema_id == schema_id,
            true() if prefixes is None else starts_with(channels.c.name, prefixes),
        )
    )
    return set(tx.execute(statement).scalars())


def max_id(tx: ReadTransaction, *, prefixes: Collection[str] | None) -> int:
    """Return the highest id of the schemas that `find` returns with `prefixes`; 0 without any."""
    return int(tx.execute(select(func.max(schemas.c.id)).where(_visible(prefixes))).scalar() or 0)


def _visible(prefixes: Collection[str] | None) -> ColumnElement[bool]:
    if prefixes is None:
        return true()
    return (
        exists()
        .where(channel_schemas.c.schema_id == schemas.c.id)
        .where(channels.c.uid == channel_schemas.c.channel_uid)
        .where(starts_with(channels.c.name, prefixes))
    )


def keep_for_topic(tx: WriteTransaction, channel_uid: str, *, phases: Collection[Phase]) -> None:
    """Keep the schemas of a channel that is deleted without its topic."""
    kept = (
        select(
            channels.c.topic_id,
            channel_schemas.c.version,
            channel_schemas.c.schema_id,
            channel_schemas.c.created_at,
            channel_schemas.c.annotated,
            channels.c.format,
        )
        .join(channel_schemas, channel_schemas.c.channel_uid == channels.c.uid)
        .where(
            channels.c.uid == channel_uid,
            in_phases(phases),
            channels.c.keep_topic,
            channels.c.topic_id.is_not(None),
        )
    )
    columns = ["topic_id", "version", "schema_id", "created_at", "annotated", "format"]
    statements = by_dialect(
        lambda insert: insert(kept_schemas).from_select(columns, kept).on_conflict_do_nothing()
    )
    tx.execute(statements[tx.dialect])
