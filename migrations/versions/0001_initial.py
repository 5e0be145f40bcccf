"""The initial tables."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)
ACTIONS = (
    *("create", "update", "close", "delete", "reset_offsets", "resize_group"),
    *("dismiss_endpoint", "abort_batch", "repair_ledger", "write_messages"),
)


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("name", WORD, primary_key=True),
        sa.Column("holder", WORD, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.Column("lease_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("epoch >= 1", name="epoch"),
    )
    op.create_table(
        "requests",
        sa.Column("principal", WORD, primary_key=True),
        sa.Column("key", WORD, primary_key=True),
        sa.Column("digest", WORD, nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("headers", DOCUMENT),
        sa.Column("body", sa.Text()),
        sa.Column("created_at", TIME, nullable=False),
    )
    op.create_index("ix_requests_created_at", "requests", ["created_at"])
    op.create_table(
        "schemas",
        sa.Column("id", SERIAL, primary_key=True, autoincrement=True),
        sa.Column("fingerprint", WORD, nullable=False, unique=True),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "sessions",
        sa.Column("id", WORD, primary_key=True),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("beat_at", TIME),
        sa.CheckConstraint("beat >= 0", name="beat"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", WORD, primary_key=True),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("hash", WORD, nullable=False),
        sa.Column("scopes", DOCUMENT, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME),
        sa.Column("revoked_at", TIME),
    )
    op.create_table(
        "channels",
        sa.Column("uid", WORD, primary_key=True),
        sa.Column("name", WORD, nullable=False, unique=True),
        sa.Column("labels", DOCUMENT, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("schema_id", SERIAL, sa.ForeignKey("schemas.id"), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("compatibility", WORD, nullable=False),
        sa.Column("format", WORD, nullable=False),
        sa.Column("partitions", sa.Integer(), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("replication", sa.Integer()),
        sa.Column("retention_ms", sa.BigInteger()),
        sa.Column("retention_bytes", sa.BigInteger()),
        sa.Column("config", DOCUMENT, nullable=False),
        sa.Column("phase", WORD, nullable=False),
        sa.Column("observed_generation", sa.BigInteger(), nullable=False),
        sa.Column("conditions", DOCUMENT, nullable=False),
        sa.Column("topic_name", WORD, nullable=False, unique=True),
        sa.Column("topic_id", WORD),
        sa.Column("topic_partitions", sa.Integer()),
        sa.Column("adopted", sa.Boolean(), nullable=False),
        sa.Column("keep_topic", sa.Boolean(), nullable=False),
        sa.Column("due_at", TIME, nullable=False),
        sa.Column("refusals", sa.Integer(), nullable=False),
        sa.Column("heartbeat_interval_ms", sa.Integer(), nullable=False),
        sa.Column("heartbeat_timeout_ms", sa.Integer(), nullable=False),
        sa.Column(
            "endpoints_revision", sa.BigInteger(), nullable=False, server_default=sa.text("0")
        ),
        sa.Column("samples_revision", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("mirrored", sa.Boolean(), nullable=False),
        sa.Column("delivery", WORD, nullable=False, server_default=sa.text("'at_least_once'")),
        sa.Column("idle_ms", sa.BigInteger()),
        sa.Column("used_at", TIME),
        sa.CheckConstraint(
            "phase IN ('provisioning', 'ready', 'failed', 'closing', 'closed', 'deleting')",
            name="phase",
        ),
        sa.CheckConstraint(
            "compatibility IN ('none', 'backward', 'forward', 'full')", name="compatibility"
        ),
        sa.CheckConstraint("format IN ('avro', 'arrow', 'bytes')", name="format"),
        sa.CheckConstraint("delivery IN ('at_least_once', 'exactly_once')", name="delivery"),
        sa.CheckConstraint("NOT adopted OR delivery = 'at_least_once'", name="adopted_delivery"),
        sa.CheckConstraint("partitions BETWEEN 1 AND 10000", name="partitions"),
        sa.CheckConstraint("replication IS NULL OR replication >= 1", name="replication"),
        sa.CheckConstraint("generation >= 1 AND revision >= generation", name="generation"),
        sa.CheckConstraint(
            "observed_generation BETWEEN 0 AND generation", name="observed_generation"
        ),
        sa.CheckConstraint(
            "NOT (phase IN ('ready', 'closing', 'closed')) OR topic_id IS NOT NULL",
            name="ready_has_topic",
        ),
        sa.CheckConstraint("phase = 'deleting' OR NOT keep_topic", name="kept_when_deleting"),
        sa.CheckConstraint("NOT adopted OR topic_id IS NOT NULL", name="adopted_has_topic"),
        sa.CheckConstraint(
            "NOT adopted OR keep_topic OR phase <> 'deleting'", name="adopted_is_kept"
        ),
        sa.CheckConstraint(
            "heartbeat_interval_ms BETWEEN 100 AND 60000", name="heartbeat_interval"
        ),
        sa.CheckConstraint(
            "heartbeat_timeout_ms BETWEEN 3 * heartbeat_interval_ms AND 3600000",
            name="heartbeat_timeout",
        ),
    )
    op.create_index("ix_channels_due_at", "channels", ["due_at"])
    op.create_index("ix_channels_phase", "channels", ["phase"])
    op.create_table(
        "kept_schemas",
        sa.Column("topic_id", WORD, primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("schema_id", SERIAL, sa.ForeignKey("schemas.id"), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("format", WORD, nullable=False),
        sa.CheckConstraint("version >= 1", name="version"),
        sa.CheckConstraint("format IN ('avro', 'arrow', 'bytes')", name="format"),
    )
    op.create_table(
        "channel_schemas",
        sa.Column(
            "channel_uid", WORD, sa.ForeignKey("channels.uid", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("version", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("schema_id", SERIAL, sa.ForeignKey("schemas.id"), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.CheckConstraint("version >= 1", name="version"),
    )
    op.create_table(
        "endpoint_events",
        sa.Column("seq", SERIAL, primary_key=True, autoincrement=True),
        sa.Column(
            "channel_uid", WORD, sa.ForeignKey("channels.uid", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("endpoint_id", WORD),
        sa.Column("group_name", WORD, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("state", WORD),
        sa.Column("health", WORD),
        sa.Column("cause", sa.Text()),
        sa.Column("by", WORD, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_endpoint_events_channel_uid_group_name_seq",
        "endpoint_events",
        ["channel_uid", "group_name", "seq"],
    )
    op.create_index("ix_endpoint_events_endpoint_id_seq", "endpoint_events", ["endpoint_id", "seq"])
    op.create_table(
        "endpoint_groups",
        sa.Column(
            "channel_uid", WORD, sa.ForeignKey("channels.uid", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("role", WORD, primary_key=True),
        sa.Column("name", WORD, primary_key=True),
        sa.Column("mode", WORD, nullable=False),
        sa.Column("size", sa.Integer()),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("next_index", sa.BigInteger(), nullable=False),
        sa.Column("dynamic", sa.Boolean(), nullable=False),
        sa.Column("changed_at", TIME),
        sa.CheckConstraint("role IN ('reader', 'writer')", name="role"),
        sa.CheckConstraint("mode IN ('shared', 'broadcast')", name="mode"),
        sa.CheckConstraint("(name = '') = (size IS NULL)", name="anonymous_has_no_size"),
        sa.CheckConstraint("size IS NULL OR size BETWEEN 1 AND 10000", name="size"),
        sa.CheckConstraint("generation >= 1 AND epoch >= 0 AND next_index >= 0", name="counters"),
    )
    op.create_table(
        "endpoints",
        sa.Column("id", WORD, primary_key=True),
        sa.Column(
            "channel_uid", WORD, sa.ForeignKey("channels.uid", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("session_id", WORD, sa.ForeignKey("sessions.id"), nullable=False),
        sa.Column("role", WORD, nullable=False),
        sa.Column("group_name", WORD, nullable=False),
        sa.Column("member_index", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.Integer()),
        sa.Column("mode", WORD, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("health", WORD, nullable=False),
        sa.Column("superseded", sa.Boolean(), nullable=False),
        sa.Column("cause", sa.Text()),
        sa.Column("attached_at", TIME, nullable=False),
        sa.Column("changed_at", TIME, nullable=False),
        sa.Column("counters", DOCUMENT, nullable=False),
        sa.Column("payload", DOCUMENT),
        sa.Column("ends", DOCUMENT),
        sa.Column("lost_at", DOCUMENT),
        sa.Column("commits", sa.BigInteger(), nullable=False),
        sa.Column("share_index", sa.Integer()),
        sa.Column("share_size", sa.Integer()),
        sa.Column("reached", DOCUMENT),
        sa.Column("title", sa.Text()),
        sa.Column("fenced_by", sa.Text()),
        sa.Column("own_interval_ms", sa.Integer()),
        sa.Column("own_timeout_ms", sa.Integer()),
        sa.Column("static_id", WORD),
        sa.Column("spark", DOCUMENT),
        sa.CheckConstraint("role IN ('reader', 'writer')", name="role"),
        sa.CheckConstraint("mode IN ('shared', 'broadcast')", name="mode"),
        sa.CheckConstraint(
            "state IN ('opened', 'started', 'stopped', 'closed', 'error')", name="state"
        ),
        sa.CheckConstraint("health IN ('healthy', 'suspect', 'lost')", name="health"),
        sa.CheckConstraint(
            "member_index >= 0 AND (size IS NULL OR member_index < size)", name="member_index"
        ),
        sa.CheckConstraint("epoch >= 1 AND generation >= 1 AND commits >= 0", name="counters"),
        sa.CheckConstraint(
            "(own_interval_ms IS NULL) = (own_timeout_ms IS NULL)", name="own_interval_and_timeout"
        ),
        sa.CheckConstraint(
            "own_interval_ms >= 100 AND own_timeout_ms >= 3 * own_interval_ms",
            name="own_heartbeat",
        ),
    )
    op.create_index(
        "ix_endpoints_channel_uid_role_group_name_member_index_epoch",
        "endpoints",
        ["channel_uid", "role", "group_name", "member_index", "epoch"],
    )
    op.create_index("ix_endpoints_session_id", "endpoints", ["session_id"])
    op.create_index(
        "ix_endpoints_static_id",
        "endpoints",
        ["channel_uid", "group_name", "static_id"],
        sqlite_where=sa.text("static_id IS NOT NULL"),
        postgresql_where=sa.text("static_id IS NOT NULL"),
    )
    op.create_index(
        "uq_endpoints_place",
        "endpoints",
        ["channel_uid", "role", "group_name", "member_index"],
        unique=True,
        sqlite_where=sa.text("superseded = 0"),
        postgresql_where=sa.text("NOT superseded"),
    )
    op.create_table(
        "positions",
        sa.Column(
            "channel_uid", WORD, sa.ForeignKey("channels.uid", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("group_name", WORD, primary_key=True),
        sa.Column("member_index", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("partition", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.Column("record", sa.BigInteger(), nullable=False),
        sa.Column("metadata", sa.Text()),
        sa.Column("topic_id", WORD, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("committed_at", TIME, nullable=False),
        sa.CheckConstraint("member_index >= -1 AND partition >= 0", name="member_and_partition"),
        sa.CheckConstraint("next_offset >= 0 AND record >= 0", name="position"),
    )
    op.create_table(
        "samples",
        sa.Column(
            "channel_uid", WORD, sa.ForeignKey("channels.uid", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("document", DOCUMENT, nullable=False),
    )
    op.create_table(
        "endpoint_tasks",
        sa.Column(
            "endpoint_id", WORD, sa.ForeignKey("endpoints.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("task", WORD, primary_key=True),
        sa.Column("attempt", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("counters", DOCUMENT, nullable=False),
        sa.Column("reached", DOCUMENT),
        sa.Column("changed_at", TIME, nullable=False),
        sa.CheckConstraint("state IN ('running', 'done', 'failed')", name="state"),
        sa.CheckConstraint("attempt >= 0", name="attempt"),
    )
    _create_ledger()


def _create_ledger() -> None:
    op.create_table(
        "ledgers",
        _channel(primary_key=True),
        sa.Column("topic_id", WORD, nullable=False),
        sa.Column("partitions", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("halted", sa.Text()),
        sa.Column("repaired", sa.BigInteger()),
        sa.CheckConstraint("number >= 0", name="number"),
        sa.CheckConstraint("repaired IS NULL OR repaired BETWEEN 1 AND number", name="repaired"),
        sa.CheckConstraint("partitions BETWEEN 1 AND 10000", name="partitions"),
    )
    op.create_table(
        "ledger_partitions",
        _channel(primary_key=True),
        sa.Column("partition", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("visible_end", sa.BigInteger(), nullable=False),
        sa.Column("stable", sa.BigInteger(), nullable=False),
        sa.Column("lost_from", sa.BigInteger()),
        sa.CheckConstraint("partition >= 0", name="partition"),
        sa.CheckConstraint("stable >= 0 AND stable <= visible_end", name="stable"),
        sa.CheckConstraint(
            "lost_from IS NULL OR lost_from >= 0 AND lost_from < visible_end", name="lost_from"
        ),
    )
    op.create_table(
        "visible_runs",
        _channel(primary_key=True),
        sa.Column("partition", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("first_offset", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("end_offset", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("partition >= 0", name="partition"),
        sa.CheckConstraint("first_offset >= 0 AND first_offset < end_offset", name="offsets"),
        sa.UniqueConstraint("channel_uid", "partition", "end_offset"),
    )
    op.create_table(
        "batch_owners",
        _channel(primary_key=True),
        sa.Column("name", WORD, primary_key=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("instance", WORD, nullable=False),
        sa.Column("ordinal", sa.BigInteger()),
        sa.CheckConstraint("epoch >= 1 AND fence BETWEEN 0 AND epoch", name="epoch"),
    )
    op.create_table(
        "batches",
        sa.Column("id", WORD, primary_key=True),
        _channel(),
        sa.Column("key", WORD, nullable=False),
        sa.Column("owner", WORD, nullable=False),
        sa.Column("instance", WORD, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.BigInteger()),
        sa.Column("state", WORD, nullable=False),
        sa.Column("begin", DOCUMENT, nullable=False),
        sa.Column("partitions", DOCUMENT),
        sa.Column("own_key", sa.Boolean(), nullable=False),
        sa.Column("brief", sa.Boolean(), nullable=False),
        sa.Column("opened_at", TIME, nullable=False),
        sa.Column("lease_until", TIME, nullable=False),
        sa.Column("max_until", TIME, nullable=False),
        sa.Column("ending", WORD),
        sa.Column("number", sa.BigInteger()),
        sa.Column("records", sa.BigInteger()),
        sa.Column("counts", DOCUMENT),
        sa.Column("digest", WORD),
        sa.Column("cause", sa.Text()),
        sa.Column("ended_at", TIME),
        sa.CheckConstraint("state IN ('open', 'committed', 'aborted')", name="state"),
        sa.CheckConstraint(
            "ending IS NULL OR ending IN ('commit', 'abort', 'reap')", name="ending"
        ),
        sa.CheckConstraint(
            "(state = 'open') = (ended_at IS NULL) AND (state = 'open') = (number IS NULL)",
            name="ended",
        ),
        sa.CheckConstraint(
            "(state = 'committed') = (digest IS NOT NULL) AND "
            "(state = 'committed') = (records IS NOT NULL) AND "
            "(state = 'committed') = (ending IS NOT NULL AND ending = 'commit') AND "
            "(state = 'open') = (ending IS NULL)",
            name="committed",
        ),
        sa.CheckConstraint("(state = 'aborted') = (cause IS NOT NULL)", name="aborted"),
        sa.CheckConstraint("epoch >= 1 AND (records IS NULL OR records >= 0)", name="counters"),
        sa.UniqueConstraint("channel_uid", "number"),
        sa.UniqueConstraint("channel_uid", "key", "epoch"),
    )
    live, is_open = sa.text("state <> 'aborted'"), sa.text("state = 'open'")
    op.create_index(
        "uq_batches_live_key",
        "batches",
        ["channel_uid", "key"],
        unique=True,
        sqlite_where=live,
        postgresql_where=live,
    )
    op.create_index(
        "ix_batches_open",
        "batches",
        ["channel_uid"],
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    op.create_index(
        "ix_batches_channel_uid_owner_instance_epoch",
        "batches",
        ["channel_uid", "owner", "instance", "epoch"],
    )
    op.create_index(
        "ix_batches_ended_at",
        "batches",
        ["ended_at"],
        sqlite_where=sa.text("brief = 0"),
        postgresql_where=sa.text("NOT brief"),
    )
    op.create_table(
        "manifest_slices",
        sa.Column(
            "batch_id", WORD, sa.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("slice", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("manifest", DOCUMENT, nullable=False),
        sa.CheckConstraint("slice >= 0", name="slice"),
    )
    op.create_table(
        "ledger_snapshots",
        _channel(primary_key=True),
        sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("stable", DOCUMENT, nullable=False),
        sa.CheckConstraint("number >= 1", name="number"),
    )
    op.create_index(
        "ix_ledger_snapshots_channel_uid_at_number",
        "ledger_snapshots",
        ["channel_uid", "at", "number"],
    )
    op.create_table(
        "ledger_repairs",
        _channel(primary_key=True),
        sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("by", WORD, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("lost", DOCUMENT, nullable=False),
        sa.CheckConstraint("number >= 1", name="number"),
    )
    op.create_table(
        "lag_history",
        _channel(primary_key=True),
        sa.Column("step_s", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("slot", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("at_s", sa.BigInteger(), nullable=False),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.CheckConstraint("step_s >= 1 AND slot >= 0", name="step_and_slot"),
    )
    actions = ", ".join(f"'{each}'" for each in ACTIONS)
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
        sa.CheckConstraint(f"action IN ({actions})", name="action"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_entries_channel", "audit_entries", ["channel", "seq"])


def _channel(*, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column(
        "channel_uid",
        WORD,
        sa.ForeignKey("channels.uid", ondelete="CASCADE"),
        primary_key=primary_key,
        nullable=False,
    )
