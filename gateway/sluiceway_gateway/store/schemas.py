"""Schemas: each has one id for good, whatever channels use it."""

from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from sluiceway_gateway.store.engine import WriteTransaction
from sluiceway_gateway.store.tables import channel_schemas, schemas


def register(tx: WriteTransaction, *, fingerprint: str, definition: str, now: datetime) -> int:
    """Return the id of this schema; the same schema always has the same."""
    known = select(schemas.c.id).where(schemas.c.fingerprint == fingerprint)
    found: int | None = tx.execute(known).scalar_one_or_none()
    if found is None:
        make: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[tx.dialect]
        tx.execute(
            make(schemas)
            .values(fingerprint=fingerprint, definition=definition, created_at=now)
            .on_conflict_do_nothing(index_elements=["fingerprint"])
        )
        found = tx.execute(known).scalar_one()
    return found


def assign(tx: WriteTransaction, *, channel_uid: str, version: int, schema_id: int) -> None:
    """Note that this is the channel's schema of this version."""
    tx.execute(
        channel_schemas.insert().values(
            channel_uid=channel_uid, version=version, schema_id=schema_id
        )
    )
