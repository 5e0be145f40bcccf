"""The lag history."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "lag_history",
        sa.Column(
            "channel_uid",
            WORD,
            sa.ForeignKey("channels.uid", ondelete="CASCADE"),
            primary_key=True,
            nullable=False,
        ),
        sa.Column("step_s", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("slot", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("at_s", sa.BigInteger(), nullable=False),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.CheckConstraint("step_s >= 1 AND slot >= 0", name="step_and_slot"),
    )
