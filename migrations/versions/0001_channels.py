"""Channels, schemas, leases, tokens and remembered requests."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "schemas",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("fingerprint", WORD, nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schemas"),
        sa.UniqueConstraint("fingerprint", name="uq_schemas_fingerprint"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "channels",
        sa.Column("uid", WORD, nullable=False),
        sa.Column("name", WORD, nullable=False),
        sa.Column("labels", DOCUMENT, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("schema_id", SERIAL, nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("format", WORD, nullable=False),
        sa.Column("partitions", sa.Integer(), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("replication", sa.Integer()),
        sa.Column("retention_ms", sa.BigInteger()),
        sa.Column("retention_bytes", sa.BigInteger()),
        sa.Column("config", DOCUMENT, nullable=False),
        sa.Column("phase", WORD, nullable=False),
        sa.Column("observed_generation", sa.BigInteger(), nullable=False),
        sa.Column("conditions", DOCUMENT, nullable=False),
        sa.Column("topic_name", WORD, nullable=False),
        sa.Column("topic_id", WORD),
        sa.Column("topic_partitions", sa.Integer()),
        sa.Column("keep_topic", sa.Boolean(), nullable=False),
        sa.Column("due_at", TIME, nullable=False),
        sa.Column("refusals", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "phase IN ('provisioning', 'ready', 'failed', 'deleting')",
            name=op.f("ck_channels_phase"),
        ),
        sa.CheckConstraint("format IN ('avro', 'arrow')", name=op.f("ck_channels_format")),
        sa.CheckConstraint("partitions BETWEEN 1 AND 10000", name=op.f("ck_channels_partitions")),
        sa.CheckConstraint(
            "replication IS NULL OR replication >= 1", name=op.f("ck_channels_replication")
        ),
        sa.CheckConstraint(
            "generation >= 1 AND revision >= generation", name=op.f("ck_channels_generation")
        ),
        sa.CheckConstraint(
            "observed_generation BETWEEN 0 AND generation",
            name=op.f("ck_channels_observed_generation"),
        ),
        sa.CheckConstraint(
            "phase <> 'ready' OR topic_id IS NOT NULL", name=op.f("ck_channels_ready_has_topic")
        ),
        sa.CheckConstraint(
            "phase = 'deleting' OR NOT keep_topic", name=op.f("ck_channels_kept_when_deleting")
        ),
        sa.ForeignKeyConstraint(["schema_id"], ["schemas.id"], name="fk_channels_schema_id"),
        sa.PrimaryKeyConstraint("uid", name="pk_channels"),
        sa.UniqueConstraint("name", name="uq_channels_name"),
        sa.UniqueConstraint("topic_name", name="uq_channels_topic_name"),
    )
    op.create_index("ix_channels_phase", "channels", ["phase"])
    op.create_index("ix_channels_due_at", "channels", ["due_at"])
    op.create_table(
        "channel_schemas",
        sa.Column("channel_uid", WORD, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("schema_id", SERIAL, nullable=False),
        sa.CheckConstraint("version >= 1", name=op.f("ck_channel_schemas_version")),
        sa.ForeignKeyConstraint(
            ["channel_uid"],
            ["channels.uid"],
            name="fk_channel_schemas_channel_uid",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["schema_id"], ["schemas.id"], name="fk_channel_schemas_schema_id"),
        sa.PrimaryKeyConstraint("channel_uid", "version", name="pk_channel_schemas"),
    )
    op.create_table(
        "leases",
        sa.Column("name", WORD, nullable=False),
        sa.Column("holder", WORD, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("epoch >= 1", name=op.f("ck_leases_epoch")),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", WORD, nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("hash", WORD, nullable=False),
        sa.Column("scopes", DOCUMENT, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME),
        sa.Column("revoked_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )
    op.create_table(
        "requests",
        sa.Column("principal", WORD, nullable=False),
        sa.Column("key", WORD, nullable=False),
        sa.Column("digest", WORD, nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("headers", DOCUMENT),
        sa.Column("body", sa.Text()),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("principal", "key", name="pk_requests"),
    )
    op.create_index("ix_requests_created_at", "requests", ["created_at"])
