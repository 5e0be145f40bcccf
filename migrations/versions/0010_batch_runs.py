"""Runs of batches above `stable`, for snapshots of whole batches."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

# Later snapshots need the runs that are above `stable` now; earlier ones stay without them.
KEEP_RUNS_ABOVE_STABLE = """
    INSERT INTO batch_runs (channel_uid, partition, end_offset, first_offset, number)
    SELECT r.channel_uid, r.partition, r.end_offset,
        CASE WHEN r.first_offset < p.stable THEN p.stable ELSE r.first_offset END, l.number
    FROM visible_runs r
    JOIN ledger_partitions p ON p.channel_uid = r.channel_uid AND p.partition = r.partition
    JOIN ledgers l ON l.channel_uid = r.channel_uid
    WHERE r.end_offset > p.stable
"""


def upgrade() -> None:
    op.add_column("ledger_snapshots", sa.Column("visible_end", DOCUMENT))
    op.create_table(
        "batch_runs",
        sa.Column(
            "channel_uid",
            WORD,
            sa.ForeignKey("channels.uid", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("partition", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("end_offset", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("first_offset", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("partition >= 0 AND number >= 1", name="partition"),
        sa.CheckConstraint("first_offset >= 0 AND first_offset < end_offset", name="offsets"),
    )
    op.execute(KEEP_RUNS_ABOVE_STABLE)
