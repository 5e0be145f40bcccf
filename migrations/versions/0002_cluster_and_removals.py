"""The id of the Kafka cluster, and the last removals of visible runs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "kafka_cluster",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("cluster_id", WORD, nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("number = 1", name="number"),
    )
    op.add_column("ledger_partitions", sa.Column("removed_after", sa.BigInteger()))
