"""What is known of topics that outlived their channels, for when somebody adopts them."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import delete, func, select

from sluiceway_gateway.channels.model import Format, Phase, SchemaVersion
from sluiceway_gateway.channels.rows import in_phases
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channel_schemas, channels, kept_schemas, schemas
from sluiceway_gateway.store.inserts import by_dialect


@dataclass(frozen=True, kw_only=True)
class KeptTopic:
    """The format of a topic's records and the schemas that they may have, the oldest first."""

    format: Format
    versions: tuple[SchemaVersion, ...]


def keep(tx: WriteTransaction, channel_uid: str, *, phases: Collection[Phase]) -> None:
    """Note the schemas of a channel that is about to go while its topic stays."""
    created_at = func.coalesce(channel_schemas.c.created_at, schemas.c.created_at)
    kept = (
        select(
            channels.c.topic_id,
            channel_schemas.c.version,
            channel_schemas.c.schema_id,
            created_at,
            channels.c.format,
        )
        .join(channel_schemas, channel_schemas.c.channel_uid == channels.c.uid)
        .join(schemas, schemas.c.id == channel_schemas.c.schema_id)
        .where(
            channels.c.uid == channel_uid,
            in_phases(phases),
            channels.c.keep_topic,
            channels.c.topic_id.is_not(None),
        )
    )
    columns = ["topic_id", "version", "schema_id", "created_at", "format"]
    statements = by_dialect(
        lambda insert: insert(kept_schemas).from_select(columns, kept).on_conflict_do_nothing()
    )
    tx.execute(statements[tx.dialect])


def find(tx: ReadTransaction, topic_id: str) -> KeptTopic | None:
    """Return what is known of the topic; None if it never belonged to a channel."""
    rows = tx.execute(
        select(kept_schemas, schemas.c.definition)
        .join(schemas, schemas.c.id == kept_schemas.c.schema_id)
        .where(kept_schemas.c.topic_id == topic_id)
        .order_by(kept_schemas.c.version)
    ).all()
    if not rows:
        return None
    return KeptTopic(
        format=Format(rows[0].format),
        versions=tuple(
            SchemaVersion(
                id=row.schema_id,
                version=row.version,
                definition=row.definition,
                created_at=row.created_at,
            )
            for row in rows
        ),
    )


def remove(tx: WriteTransaction, topic_id: str) -> None:
    """Forget it: the topic has a channel again, which knows."""
    tx.execute(delete(kept_schemas).where(kept_schemas.c.topic_id == topic_id))
