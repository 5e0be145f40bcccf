"""SQL of the audit trail. Entries outlive their channels."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Row, delete, insert, select

from sluiceway_gateway.core.audit.model import (
    MAX_FIELDS,
    AuditedAction,
    AuditEntry,
    FieldChange,
    Scalar,
    changes,
)
from sluiceway_gateway.core.audit.tables import audit_entries
from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import columns_of

MAX_ENTRIES = 1_000
"""Entries of channels of one name that are kept, the last ones."""
# Principal of changes of idle channels.
_GATEWAY = "gateway"

_table = audit_entries.c


class ChannelName(NamedTuple):
    """The name and the uid of a channel that the caller has not read."""

    name: str
    uid: str


class ChannelId(Protocol):
    """A channel's name and uid."""

    @property
    def name(self) -> str:
        """The channel's name."""

    @property
    def uid(self) -> str:
        """The channel's uid."""


class Author(Protocol):
    """The principal of an action."""

    @property
    def id(self) -> str:
        """Id of the token, or another id without one."""

    @property
    def subject(self) -> str | None:
        """Label of the token; None without one."""


def add(
    tx: WriteTransaction,
    channel: ChannelId,
    action: AuditedAction,
    *,
    by: Author | None,
    at: datetime,
    target: str | None = None,
    reason: str | None = None,
    old: Mapping[str, Scalar] | None = None,
    new: Mapping[str, Scalar] | None = None,
) -> None:
    """Store an entry with the fields that differ between `old` and `new`.

    Without `by`, the gateway itself acted. The oldest entries of the channel's name are deleted
    beyond `MAX_ENTRIES`.
    """
    changed = changes(old or {}, new or {})
    values = {
        "channel": channel.name,
        "channel_uid": channel.uid,
        "at": at,
        "by": _GATEWAY if by is None else by.subject or by.id,
        "token_id": None if by is None or by.subject is None else by.id,
        "action": action,
        "target": target,
        "reason": reason,
        "fields": [asdict(change) for change in changed[:MAX_FIELDS]],
        "omitted": max(0, len(changed) - MAX_FIELDS),
    }
    tx.execute(insert(audit_entries), values)
    of_name = select(_table.seq).where(_table.channel == channel.name)
    oldest_kept = of_name.order_by(_table.seq.desc()).offset(MAX_ENTRIES - 1).limit(1)
    tx.execute(
        delete(audit_entries).where(
            _table.channel == channel.name, _table.seq < oldest_kept.scalar_subquery()
        )
    )


def page(tx: ReadTransaction, channel: str, *, before: int | None, limit: int) -> list[AuditEntry]:
    """Return up to `limit` entries of channels of this name, the last first."""
    statement = select(
        audit_entries, _table.seq.label("number"), _table.channel_uid.label("uid")
    ).where(_table.channel == channel)
    if before is not None:
        statement = statement.where(_table.seq < before)
    return [
        _entry_of(row) for row in tx.execute(statement.order_by(_table.seq.desc()).limit(limit))
    ]


def delete_old(tx: WriteTransaction, *, before: datetime, limit: int) -> int:
    """Delete entries older than `before` among the `limit` oldest ones; return the number."""
    oldest = select(_table.seq).order_by(_table.seq).limit(limit)
    return tx.execute(
        delete(audit_entries).where(_table.seq.in_(oldest), _table.at < before)
    ).rowcount


def _entry_of(row: Row[Any]) -> AuditEntry:
    fields = tuple(FieldChange(**change) for change in row.fields)
    return AuditEntry(**columns_of(row, AuditEntry) | {"fields": fields})
