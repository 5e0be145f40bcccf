"""Tables of schemas. CHECK constraints repeat the rules of the models."""

from sqlalchemy import CheckConstraint, Column, ForeignKey, Integer, Table, Text

from sluiceway_gateway.core.db.types import EnumText, Serial, UtcTime, Word, metadata, one_of
from sluiceway_gateway.schemas.model import Format

schemas = Table(
    "schemas",
    metadata,
    # Never reused, because messages carry it.
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("fingerprint", Word, nullable=False, unique=True),
    Column("definition", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    sqlite_autoincrement=True,
)
channel_schemas = Table(
    "channel_schemas",
    metadata,
    Column("channel_uid", Word, ForeignKey("channels.uid", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("schema_id", Serial, ForeignKey("schemas.id"), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    # The schema with aliases, documentation and other attributes; NULL without any.
    Column("annotated", Text),
    CheckConstraint("version >= 1", name="version"),
)
# Schemas of topics whose channels were deleted, for a later adoption of the topics.
kept_schemas = Table(
    "kept_schemas",
    metadata,
    Column("topic_id", Word, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("schema_id", Serial, ForeignKey("schemas.id"), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("format", EnumText(Format), nullable=False),
    # The schema with aliases, documentation and other attributes; NULL without any.
    Column("annotated", Text),
    CheckConstraint("version >= 1", name="version"),
    CheckConstraint(one_of("format", Format), name="format"),
)
