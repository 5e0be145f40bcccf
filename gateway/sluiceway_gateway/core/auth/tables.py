"""The table of tokens."""

from sqlalchemy import Column, Table, Text

from sluiceway_gateway.core.db.types import Document, UtcTime, Word, metadata

tokens = Table(
    "tokens",
    metadata,
    Column("id", Word, primary_key=True),
    Column("label", Text, nullable=False),
    Column("hash", Word, nullable=False),
    Column("scopes", Document, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
    Column("key_fingerprint", Word),
)
