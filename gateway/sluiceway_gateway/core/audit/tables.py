"""The table of the audit trail."""

from sqlalchemy import CheckConstraint, Column, Index, Integer, Table, Text

from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.db.types import (
    Document,
    EnumText,
    Serial,
    UtcTime,
    Word,
    metadata,
    one_of,
)

# Without a foreign key: entries outlive their channels.
audit_entries = Table(
    "audit_entries",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    Column("channel", Word, nullable=False),
    Column("channel_uid", Word, nullable=False),
    Column("at", UtcTime, nullable=False),
    # Label of the token.
    Column("by", Text, nullable=False),
    Column("token_id", Word),
    Column("action", EnumText(AuditedAction), nullable=False),
    Column("target", Text),
    Column("reason", Text),
    Column("fields", Document, nullable=False),
    Column("omitted", Integer, nullable=False),
    CheckConstraint(one_of("action", AuditedAction), name="action"),
    Index("ix_audit_entries_channel", "channel", "seq"),
    sqlite_autoincrement=True,
)
