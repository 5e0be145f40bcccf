"""The recorded id of the Kafka cluster, in a table of one row."""

from datetime import datetime

from sqlalchemy import select

from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import by_dialect
from sluiceway_gateway.core.kafka.tables import kafka_cluster

_SELECT = select(kafka_cluster.c.cluster_id)
_INSERT = by_dialect(lambda insert: insert(kafka_cluster).on_conflict_do_nothing())
_NUMBER = 1


def recorded_id(tx: ReadTransaction) -> str | None:
    """Return the recorded id; None before the first one."""
    cluster_id: str | None = tx.execute(_SELECT).scalar_one_or_none()
    return cluster_id


def record_first(tx: WriteTransaction, cluster_id: str, *, now: datetime) -> None:
    """Record the id, unless there is one."""
    row = {"number": _NUMBER, "cluster_id": cluster_id, "recorded_at": now}
    tx.execute(_INSERT[tx.dialect], row)


def replace_id(tx: WriteTransaction, cluster_id: str, *, was: str, now: datetime) -> bool:
    """Replace the recorded id `was`; return False if another one is recorded."""
    statement = kafka_cluster.update().where(kafka_cluster.c.cluster_id == was)
    return tx.execute(statement.values(cluster_id=cluster_id, recorded_at=now)).rowcount == 1
