"""The table of channels. CHECK constraints repeat the rules of the model."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    Table,
    text,
)

from sluiceway_gateway.channels.model import (
    MAX_HEARTBEAT_MS,
    MAX_HEARTBEAT_TIMEOUT_MS,
    MIN_HEARTBEAT_MS,
    READABLE,
    Delivery,
    KeyPartitioner,
    Phase,
)
from sluiceway_gateway.core.db.types import (
    Document,
    EnumText,
    Serial,
    UtcTime,
    Word,
    metadata,
    one_of,
)
from sluiceway_gateway.core.names import MAX_PARTITIONS
from sluiceway_gateway.schemas.model import Compatibility, Format

channels = Table(
    "channels",
    metadata,
    Column("uid", Word, primary_key=True),
    Column("name", Word, nullable=False, unique=True),
    Column("labels", Document, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("schema_id", Serial, ForeignKey("schemas.id"), nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("compatibility", EnumText(Compatibility), nullable=False),
    Column("format", EnumText(Format), nullable=False),
    Column("partitions", Integer, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("replication", Integer),
    Column("retention_ms", BigInteger),
    Column("retention_bytes", BigInteger),
    Column("config", Document, nullable=False),
    Column("phase", EnumText(Phase), nullable=False),
    Column("observed_generation", BigInteger, nullable=False),
    Column("conditions", Document, nullable=False),
    Column("topic_name", Word, nullable=False, unique=True),
    Column("topic_id", Word),
    Column("topic_partitions", Integer),
    Column("adopted", Boolean, nullable=False),
    Column("keep_topic", Boolean, nullable=False),
    # Next check by the reconciler: at once after a change, later after a success, with backoff
    # after a refusal.
    Column("due_at", UtcTime, nullable=False),
    # Consecutive checks with a refusal by Kafka; 0 after a change or a success.
    Column("refusals", Integer, nullable=False),
    Column("heartbeat_interval_ms", Integer, nullable=False),
    Column("heartbeat_timeout_ms", Integer, nullable=False),
    # Incremented by every visible change of an endpoint, but not by plain heartbeats.
    Column("endpoints_revision", BigInteger, nullable=False, server_default=text("0")),
    # Incremented by every sample that differs from the previous one.
    Column("samples_revision", BigInteger, nullable=False, server_default=text("0")),
    # Committed positions are also written to Kafka's consumer groups.
    Column("mirrored", Boolean, nullable=False),
    Column("delivery", EnumText(Delivery), nullable=False, server_default=text("'at_least_once'")),
    # Idle time until the channel is closed and then deleted; NULL for never.
    Column("idle_ms", BigInteger),
    Column("used_at", UtcTime),
    # Number up to which a group that attaches may grow the channel without `manage`.
    Column("max_partitions", Integer),
    # Its CHECK belongs to it, because SQLite adds one to a table only with its column.
    Column(
        "partitioner",
        EnumText(KeyPartitioner),
        CheckConstraint(one_of("partitioner", KeyPartitioner), name="partitioner"),
        nullable=False,
        server_default=text("'murmur2'"),
    ),
    CheckConstraint(one_of("phase", Phase), name="phase"),
    CheckConstraint(one_of("compatibility", Compatibility), name="compatibility"),
    CheckConstraint(one_of("format", Format), name="format"),
    CheckConstraint(one_of("delivery", Delivery), name="delivery"),
    CheckConstraint("NOT adopted OR delivery = 'at_least_once'", name="adopted_delivery"),
    CheckConstraint(f"partitions BETWEEN 1 AND {MAX_PARTITIONS}", name="partitions"),
    CheckConstraint("replication IS NULL OR replication >= 1", name="replication"),
    CheckConstraint("generation >= 1 AND revision >= generation", name="generation"),
    CheckConstraint("observed_generation BETWEEN 0 AND generation", name="observed_generation"),
    CheckConstraint(
        f"NOT ({one_of('phase', READABLE)}) OR topic_id IS NOT NULL", name="ready_has_topic"
    ),
    CheckConstraint("phase = 'deleting' OR NOT keep_topic", name="kept_when_deleting"),
    CheckConstraint("NOT adopted OR topic_id IS NOT NULL", name="adopted_has_topic"),
    CheckConstraint("NOT adopted OR keep_topic OR phase <> 'deleting'", name="adopted_is_kept"),
    CheckConstraint(
        f"heartbeat_interval_ms BETWEEN {MIN_HEARTBEAT_MS} AND {MAX_HEARTBEAT_MS}",
        name="heartbeat_interval",
    ),
    CheckConstraint(
        f"heartbeat_timeout_ms BETWEEN 3 * heartbeat_interval_ms AND {MAX_HEARTBEAT_TIMEOUT_MS}",
        name="heartbeat_timeout",
    ),
    Index(None, "phase"),
    Index(None, "due_at"),
)
