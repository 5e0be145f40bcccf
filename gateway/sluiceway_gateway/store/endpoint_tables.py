"""The tables of endpoints: who is attached, in which group, how far, and what became of them."""

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
    false,
    text,
)

from sluiceway_gateway.db.types import (
    Document,
    OptionalDocument,
    Serial,
    UtcTime,
    Word,
    metadata,
    one_of,
)
from sluiceway_gateway.endpoints.model import MAX_GROUP_SIZE, Health, Mode, Role, State, TaskState


def _channel(*, primary_key: bool = False) -> Column[str]:
    return Column(
        "channel_uid",
        Word,
        ForeignKey("channels.uid", ondelete="CASCADE"),
        primary_key=primary_key,
        nullable=False,
    )


sessions = Table(
    "sessions",
    metadata,
    Column("id", Word, primary_key=True),
    # Counts up with every heartbeat that counted; time is the reaper's own affair.
    Column("beat", BigInteger, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("client", Text, nullable=False),
    # The label of the token that began it; NULL where there were no tokens.
    Column("owner", Text),
    CheckConstraint("beat >= 0", name="beat"),
)

endpoint_groups = Table(
    "endpoint_groups",
    metadata,
    _channel(primary_key=True),
    Column("role", Word, primary_key=True),
    # Empty for the group of those that name none.
    Column("name", Word, primary_key=True),
    Column("mode", Word, nullable=False),
    Column("size", Integer),
    Column("generation", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("next_index", BigInteger, nullable=False),
    # Members come and go: the gateway numbers them, and `size` counts them.
    Column("dynamic", Boolean, nullable=False, server_default=false()),
    # When the generation last went up; NULL before the first time.
    Column("changed_at", UtcTime),
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
    _channel(),
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
    # Of members of dynamic groups: which share of the partitions they last took.
    Column("share_index", Integer),
    Column("share_size", Integer),
    # How far it says that it has come, committed or not.
    Column("reached", OptionalDocument),
    # What it is, for people.
    Column("title", Text),
    # Of superseded ones: what took the place. NULL: it was lost, and nothing did.
    Column("fenced_by", Text),
    CheckConstraint(one_of("role", Role), name="role"),
    CheckConstraint(one_of("mode", Mode), name="mode"),
    CheckConstraint(one_of("state", State), name="state"),
    CheckConstraint(one_of("health", Health), name="health"),
    CheckConstraint(
        "member_index >= 0 AND (size IS NULL OR member_index < size)", name="member_index"
    ),
    CheckConstraint("epoch >= 1 AND generation >= 1 AND commits >= 0", name="counters"),
    # One living instance a place; the others stay, so that their ids are known as fenced.
    Index(
        "uq_endpoints_place",
        "channel_uid",
        "role",
        "group_name",
        "member_index",
        unique=True,
        sqlite_where=text("superseded = 0"),
        postgresql_where=text("NOT superseded"),
    ),
    Index(None, "channel_uid", "role", "group_name", "member_index", "epoch"),
    Index(None, "session_id"),
)

endpoint_events = Table(
    "endpoint_events",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    _channel(),
    # NULL for what concerns the group.
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
    _channel(primary_key=True),
    Column("group_name", Word, primary_key=True),
    # -1 where the members share one.
    Column("member_index", Integer, primary_key=True, autoincrement=False),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("record", BigInteger, nullable=False),
    Column("topic_id", Word, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("committed_at", UtcTime, nullable=False),
    CheckConstraint("member_index >= -1 AND partition >= 0", name="whose"),
    CheckConstraint("next_offset >= 0 AND record >= 0", name="position"),
)

samples = Table(
    "samples",
    metadata,
    _channel(primary_key=True),
    # Counts the channel's samples; the oldest go.
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", UtcTime, nullable=False),
    Column("document", Document, nullable=False),
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
