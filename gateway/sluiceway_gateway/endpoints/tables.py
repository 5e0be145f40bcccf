"""Tables of endpoints and groups. CHECK constraints repeat the rules of the models."""

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
    and_,
    literal_column,
)

from sluiceway_gateway.channels.model import MIN_HEARTBEAT_MS
from sluiceway_gateway.core.db.types import (
    Document,
    EnumText,
    OptionalDocument,
    Serial,
    UtcTime,
    Word,
    channel_column,
    metadata,
    one_of,
    partial_index,
)
from sluiceway_gateway.core.names import MAX_GROUP_SIZE
from sluiceway_gateway.endpoints.model import Health, Mode, Role, State, TaskState

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
    Column("role", EnumText(Role), primary_key=True),
    # Empty for endpoints without a group.
    Column("name", Word, primary_key=True),
    Column("mode", EnumText(Mode), nullable=False),
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
    Column("role", EnumText(Role), nullable=False),
    Column("group_name", Word, nullable=False),
    Column("member_index", BigInteger, nullable=False),
    Column("size", Integer),
    Column("mode", EnumText(Mode), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("state", EnumText(State), nullable=False),
    Column("health", EnumText(Health), nullable=False),
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
    # Endpoints that have ended stay for days, and passes over the others run all the time.
    partial_index(
        *("ix_endpoints_unclosed", "channel_uid", "role", "group_name"),
        where="NOT superseded AND state <> 'closed'",
        sqlite="superseded = 0 AND state <> 'closed'",
    ),
)
#: The endpoints of that index. The literal matches its condition also in prepared statements.
UNCLOSED = and_(
    ~endpoints.c.superseded, endpoints.c.state != literal_column(f"'{State.CLOSED}'", Text)
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
    Column("state", EnumText(State)),
    Column("health", EnumText(Health)),
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
endpoint_tasks = Table(
    "endpoint_tasks",
    metadata,
    Column("endpoint_id", Word, ForeignKey("endpoints.id", ondelete="CASCADE"), primary_key=True),
    Column("task", Word, primary_key=True),
    Column("attempt", BigInteger, primary_key=True, autoincrement=False),
    Column("state", EnumText(TaskState), nullable=False),
    Column("counters", Document, nullable=False),
    Column("reached", OptionalDocument),
    Column("changed_at", UtcTime, nullable=False),
    CheckConstraint(one_of("state", TaskState), name="state"),
    CheckConstraint("attempt >= 0", name="attempt"),
)
