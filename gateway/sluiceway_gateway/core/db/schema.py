"""Tables. CHECK constraints repeat the rules of the models."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    text,
)

from sluiceway_gateway.channels.model import (
    MAX_HEARTBEAT_MS,
    MAX_HEARTBEAT_TIMEOUT_MS,
    MIN_HEARTBEAT_MS,
    READABLE,
    Delivery,
    Phase,
)
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.db import ledger_schema  # noqa: F401 - it adds tables to `metadata`
from sluiceway_gateway.core.db.types import (
    Document,
    OptionalDocument,
    Serial,
    UtcTime,
    Word,
    channel_column,
    metadata,
    one_of,
    partial_index,
)
from sluiceway_gateway.core.names import MAX_GROUP_SIZE, MAX_PARTITIONS
from sluiceway_gateway.endpoints.model import Health, Mode, Role, State, TaskState
from sluiceway_gateway.schemas.model import Compatibility, Format

sessions = Table(
    "sessions",
    metadata,
    Column("id", Word, primary_key=True),
    # Number of the newest accepted heartbeat; the reaper measures time itself.
    Column("beat", BigInteger, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("client", Text, nullable=False),
    # Label of the token that started it; NULL if the gateway had no tokens.
    Column("owner", Text),
    # Time of the newest accepted heartbeat, for people.
    Column("beat_at", UtcTime),
    CheckConstraint("beat >= 0", name="beat"),
)

endpoint_groups = Table(
    "endpoint_groups",
    metadata,
    channel_column(primary_key=True),
    Column("role", Word, primary_key=True),
    # Empty for endpoints without a group.
    Column("name", Word, primary_key=True),
    Column("mode", Word, nullable=False),
    Column("size", Integer),
    Column("generation", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("next_index", BigInteger, nullable=False),
    # The gateway numbers the members, and `size` is their current number.
    Column("dynamic", Boolean, nullable=False),
    # Time of the last new generation; NULL before the first.
    Column("changed_at", UtcTime),
    # Label of its owner, `*` for every label; NULL for nobody.
    Column("owner", Text),
    CheckConstraint(one_of("role", Role), name="role"),
    CheckConstraint(one_of("mode", Mode), name="mode"),
    CheckConstraint("(name = '') = (size IS NULL)", name="anonymous_has_no_size"),
    CheckConstraint(f"size IS NULL OR size BETWEEN 1 AND {MAX_GROUP_SIZE}", name="size"),
    CheckConstraint("generation >= 1 AND epoch >= 0 AND next_index >= 0", name="counters"),
)

endpoints = Table(
    "endpoints",
    metadata,
    Column("id", Word, primary_key=True),
    channel_column(),
    Column("session_id", Word, ForeignKey("sessions.id"), nullable=False),
    Column("role", Word, nullable=False),
    Column("group_name", Word, nullable=False),
    Column("member_index", BigInteger, nullable=False),
    Column("size", Integer),
    Column("mode", Word, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("state", Word, nullable=False),
    Column("health", Word, nullable=False),
    Column("superseded", Boolean, nullable=False),
    Column("cause", Text),
    Column("attached_at", UtcTime, nullable=False),
    Column("changed_at", UtcTime, nullable=False),
    Column("counters", Document, nullable=False),
    Column("payload", OptionalDocument),
    Column("ends", OptionalDocument),
    Column("lost_at", OptionalDocument),
    Column("commits", BigInteger, nullable=False),
    # The partition share that a member of a dynamic group last took.
    Column("share_index", Integer),
    Column("share_size", Integer),
    # Reported positions, committed or not.
    Column("reached", OptionalDocument),
    # For users.
    Column("title", Text),
    # The cause of a superseded endpoint; NULL if it was lost and its place is free.
    Column("fenced_by", Text),
    # Its own heartbeat interval and timeout; NULL for the channel's.
    Column("own_interval_ms", Integer),
    Column("own_timeout_ms", Integer),
    # Name of a member of a dynamic group, kept over restarts.
    Column("static_id", Word),
    # Application, query and UI of a Spark job.
    Column("spark", OptionalDocument),
    # Ascending by channel; NULL if an older version of the gateway attached it.
    Column("number", BigInteger),
    CheckConstraint(one_of("role", Role), name="role"),
    CheckConstraint(one_of("mode", Mode), name="mode"),
    CheckConstraint(one_of("state", State), name="state"),
    CheckConstraint(one_of("health", Health), name="health"),
    CheckConstraint(
        "member_index >= 0 AND (size IS NULL OR member_index < size)", name="member_index"
    ),
    CheckConstraint("epoch >= 1 AND generation >= 1 AND commits >= 0", name="counters"),
    CheckConstraint(
        "(own_interval_ms IS NULL) = (own_timeout_ms IS NULL)", name="own_interval_and_timeout"
    ),
    CheckConstraint(
        f"own_interval_ms >= {MIN_HEARTBEAT_MS} AND own_timeout_ms >= 3 * own_interval_ms",
        name="own_heartbeat",
    ),
    # One live endpoint per place; superseded rows stay, so that requests with their ids are fenced.
    partial_index(
        *("uq_endpoints_place", "channel_uid", "role", "group_name", "member_index"),
        where="NOT superseded",
        sqlite="superseded = 0",
        unique=True,
    ),
    Index(None, "channel_uid", "role", "group_name", "member_index", "epoch"),
    Index(None, "session_id"),
    partial_index(
        *("ix_endpoints_static_id", "channel_uid", "group_name", "static_id"),
        where="static_id IS NOT NULL",
    ),
)

endpoint_events = Table(
    "endpoint_events",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    channel_column(),
    # NULL for events of the group.
    Column("endpoint_id", Word),
    Column("group_name", Word, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("state", Word),
    Column("health", Word),
    Column("cause", Text),
    Column("by", Word, nullable=False),
    Index(None, "endpoint_id", "seq"),
    Index(None, "channel_uid", "group_name", "seq"),
    sqlite_autoincrement=True,
)

positions = Table(
    "positions",
    metadata,
    channel_column(primary_key=True),
    Column("group_name", Word, primary_key=True),
    # -1 for positions that the group shares.
    Column("member_index", Integer, primary_key=True, autoincrement=False),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("record", BigInteger, nullable=False),
    Column("metadata", Text),
    Column("topic_id", Word, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("committed_at", UtcTime, nullable=False),
    CheckConstraint("member_index >= -1 AND partition >= 0", name="member_and_partition"),
    CheckConstraint("next_offset >= 0 AND record >= 0", name="position"),
)

# The last end of each place in a group of readers; see `endpoints/groups/model.py`.
finished_places = Table(
    "finished_places",
    metadata,
    channel_column(primary_key=True),
    Column("group_name", Word, primary_key=True),
    # -1 for the places of the group that have no row.
    Column("member_index", Integer, primary_key=True, autoincrement=False),
    # The highest number of the writers whose records it has read to their end.
    Column("through", BigInteger, nullable=False),
    CheckConstraint("member_index >= -1 AND through >= 0", name="member_and_number"),
)

samples = Table(
    "samples",
    metadata,
    channel_column(primary_key=True),
    # Number of the sample within its channel; the oldest are deleted.
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", UtcTime, nullable=False),
    Column("document", Document, nullable=False),
)

# For each resolution of a channel, a ring of slots: a later interval takes the row of an older one.
lag_history = Table(
    "lag_history",
    metadata,
    channel_column(primary_key=True),
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    # Start of the interval in Unix time, which is divided by the step.
    Column("at_s", BigInteger, nullable=False),
    Column("document", Document, nullable=False),
    CheckConstraint("step_s >= 1 AND slot >= 0", name="step_and_slot"),
)

endpoint_tasks = Table(
    "endpoint_tasks",
    metadata,
    Column("endpoint_id", Word, ForeignKey("endpoints.id", ondelete="CASCADE"), primary_key=True),
    Column("task", Word, primary_key=True),
    Column("attempt", BigInteger, primary_key=True, autoincrement=False),
    Column("state", Word, nullable=False),
    Column("counters", Document, nullable=False),
    Column("reached", OptionalDocument),
    Column("changed_at", UtcTime, nullable=False),
    CheckConstraint(one_of("state", TaskState), name="state"),
    CheckConstraint("attempt >= 0", name="attempt"),
)


schemas = Table(
    "schemas",
    metadata,
    # Never reused, because messages carry it.
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("fingerprint", Word, nullable=False, unique=True),
    Column("definition", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    sqlite_autoincrement=True,
)

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
    Column("compatibility", Word, nullable=False),
    Column("format", Word, nullable=False),
    Column("partitions", Integer, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("replication", Integer),
    Column("retention_ms", BigInteger),
    Column("retention_bytes", BigInteger),
    Column("config", Document, nullable=False),
    Column("phase", Word, nullable=False),
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
    Column("delivery", Word, nullable=False, server_default=text("'at_least_once'")),
    # Idle time until the channel is closed and then deleted; NULL for never.
    Column("idle_ms", BigInteger),
    Column("used_at", UtcTime),
    # Number up to which a group that attaches may grow the channel without `manage`.
    Column("max_partitions", Integer),
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

channel_schemas = Table(
    "channel_schemas",
    metadata,
    Column("channel_uid", Word, ForeignKey("channels.uid", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("schema_id", Serial, ForeignKey("schemas.id"), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    # The schema with aliases, documentation and other attributes; NULL without any.
    Column("annotated", Text),
    CheckConstraint("version >= 1", name="version"),
)

# Schemas of topics whose channels were deleted, for a later adoption of the topics.
kept_schemas = Table(
    "kept_schemas",
    metadata,
    Column("topic_id", Word, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("schema_id", Serial, ForeignKey("schemas.id"), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("format", Word, nullable=False),
    # The schema with aliases, documentation and other attributes; NULL without any.
    Column("annotated", Text),
    CheckConstraint("version >= 1", name="version"),
    CheckConstraint(one_of("format", Format), name="format"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Word, primary_key=True),
    Column("holder", Word, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    # Incremented by each renewal. A lease whose counter is unchanged for `lease_ms` has expired.
    Column("renewals", BigInteger, nullable=False),
    # 0 after a release.
    Column("lease_ms", BigInteger, nullable=False),
    CheckConstraint("epoch >= 1", name="epoch"),
)

kafka_cluster = Table(
    "kafka_cluster",
    metadata,
    # 1, as there is one row.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("cluster_id", Word, nullable=False),
    Column("recorded_at", UtcTime, nullable=False),
    CheckConstraint("number = 1", name="number"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Word, primary_key=True),
    Column("label", Text, nullable=False),
    Column("hash", Word, nullable=False),
    Column("scopes", Document, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
    Column("key_fingerprint", Word),
)

requests = Table(
    "requests",
    metadata,
    Column("principal", Word, primary_key=True),
    Column("key", Word, primary_key=True),
    Column("digest", Word, nullable=False),
    Column("status", Integer),
    Column("headers", Document),
    Column("body", Text),
    Column("created_at", UtcTime, nullable=False),
    Index(None, "created_at"),
)

# Without a foreign key: entries outlive their channels.
audit_entries = Table(
    "audit_entries",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    Column("channel", Word, nullable=False),
    Column("channel_uid", Word, nullable=False),
    Column("at", UtcTime, nullable=False),
    # Label of the token.
    Column("by", Text, nullable=False),
    Column("token_id", Word),
    Column("action", Word, nullable=False),
    Column("target", Text),
    Column("reason", Text),
    Column("fields", Document, nullable=False),
    Column("omitted", Integer, nullable=False),
    CheckConstraint(one_of("action", AuditedAction), name="action"),
    Index("ix_audit_entries_channel", "channel", "seq"),
    sqlite_autoincrement=True,
)

#: With the tables of `ledger_schema`.
__all__ = ["metadata"]
