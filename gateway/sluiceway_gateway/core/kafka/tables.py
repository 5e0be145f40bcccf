"""The table of the recorded Kafka cluster."""

from sqlalchemy import CheckConstraint, Column, Integer, Table

from sluiceway_gateway.core.db.types import UtcTime, Word, metadata

kafka_cluster = Table(
    "kafka_cluster",
    metadata,
    # 1, as there is one row.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("cluster_id", Word, nullable=False),
    Column("recorded_at", UtcTime, nullable=False),
    CheckConstraint("number = 1", name="number"),
)
