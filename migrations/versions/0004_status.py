"""Samples, tasks and shares of endpoints; channels that close, are mirrored or idle.

Expands only.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    no = sa.false()
    for column in (
        sa.Column("samples_revision", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("mirrored", sa.Boolean(), nullable=False, server_default=no),
        sa.Column("closing", sa.Boolean(), nullable=False, server_default=no),
        sa.Column("idle_ms", sa.BigInteger()),
        sa.Column("used_at", TIME),
    ):
        op.add_column("channels", column)
    op.add_column(
        "endpoint_groups", sa.Column("dynamic", sa.Boolean(), nullable=False, server_default=no)
    )
    op.add_column("endpoint_groups", sa.Column("changed_at", TIME))
    for column in (
        sa.Column("share_index", sa.Integer()),
        sa.Column("share_size", sa.Integer()),
        sa.Column("reached", DOCUMENT),
        sa.Column("title", sa.Text()),
    ):
        op.add_column("endpoints", column)
    _samples()
    _tasks()


def _samples() -> None:
    op.create_table(
        "samples",
        sa.Column("channel_uid", WORD, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["channel_uid"], ["channels.uid"], name="fk_samples_channel_uid", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("channel_uid", "number", name="pk_samples"),
    )


def _tasks() -> None:
    op.create_table(
        "endpoint_tasks",
        sa.Column("endpoint_id", WORD, nullable=False),
        sa.Column("task", WORD, nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("counters", DOCUMENT, nullable=False),
        sa.Column("reached", DOCUMENT),
        sa.Column("changed_at", TIME, nullable=False),
        sa.CheckConstraint(
            "state IN ('running', 'done', 'failed')", name=op.f("ck_endpoint_tasks_state")
        ),
        sa.CheckConstraint("attempt >= 0", name=op.f("ck_endpoint_tasks_attempt")),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["endpoints.id"],
            name="fk_endpoint_tasks_endpoint_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("endpoint_id", "task", "attempt", name="pk_endpoint_tasks"),
    )
