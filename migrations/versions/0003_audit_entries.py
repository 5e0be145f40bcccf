"""The audit trail."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ACTIONS = (
    *("create", "update", "close", "delete", "reset_offsets", "resize_group"),
    *("dismiss_endpoint", "abort_batch", "repair_ledger", "write_messages"),
)


def upgrade() -> None:
    actions = ", ".join(f"'{each}'" for each in ACTIONS)
    op.create_table(
        "audit_entries",
        sa.Column("seq", SERIAL, primary_key=True, autoincrement=True),
        sa.Column("channel", WORD, nullable=False),
        sa.Column("channel_uid", WORD, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("token_id", WORD),
        sa.Column("action", WORD, nullable=False),
        sa.Column("target", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("fields", DOCUMENT, nullable=False),
        sa.Column("omitted", sa.Integer(), nullable=False),
        sa.CheckConstraint(f"action IN ({actions})", name="action"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_entries_channel", "audit_entries", ["channel", "seq"])
