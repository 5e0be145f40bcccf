"""Owners of groups and of batches, and their actions in the audit trail."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)
ACTIONS = (
    *("create", "update", "close", "delete", "reset_offsets", "resize_group"),
    *("dismiss_endpoint", "abort_batch", "repair_ledger", "refuse_commit", "write_messages"),
    *("claim_owner", "transfer_owner", "foreign_use"),
)


def upgrade() -> None:
    op.add_column("endpoint_groups", sa.Column("owner", sa.Text()))
    op.add_column("batch_owners", sa.Column("label", sa.Text()))
    actions = f"action IN ({', '.join(repr(action) for action in ACTIONS)})"
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint("ck_audit_entries_action", "audit_entries")
        op.create_check_constraint("action", "audit_entries", actions)
    else:
        _replace_table(actions)


def _replace_table(actions: str) -> None:
    """Replace the table, because SQLite cannot change a CHECK."""
    op.drop_index("ix_audit_entries_channel", "audit_entries")
    op.rename_table("audit_entries", "audit_entries_before")
    op.create_table(
        "audit_entries",
        sa.Column("seq", SERIAL, primary_key=True, autoincrement=True),
        sa.Column("channel", WORD, nullable=False),
        sa.Column("channel_uid", WORD, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("token_id", WORD),
        sa.Column("action", WORD, nullable=False),
        sa.Column("target", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("fields", DOCUMENT, nullable=False),
        sa.Column("omitted", sa.Integer(), nullable=False),
        sa.CheckConstraint(actions, name="action"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_entries_channel", "audit_entries", ["channel", "seq"])
    op.execute("INSERT INTO audit_entries SELECT * FROM audit_entries_before")
    op.drop_table("audit_entries_before")
