"""Endpoints, their groups, sessions, history and positions. Expands only."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
TIME = sa.DateTime(timezone=True)

# Each adds one column with its own check: SQLite takes those without making the table anew.
COLUMNS = (
    "beat_ms INTEGER DEFAULT 2000 NOT NULL\n"
    "    CONSTRAINT ck_channels_beat CHECK (beat_ms BETWEEN 100 AND 60000)\n",
    "patience_ms INTEGER DEFAULT 120000 NOT NULL\n"
    "    CONSTRAINT ck_channels_patience CHECK "
    "(patience_ms BETWEEN 3 * beat_ms AND 3600000)\n",
    "endpoints_revision BIGINT DEFAULT 0 NOT NULL",
)
ROLE = "role IN ('reader', 'writer')"
MODE = "mode IN ('shared', 'broadcast')"


def upgrade() -> None:
    for column in COLUMNS:
        op.execute(f"ALTER TABLE channels ADD COLUMN {column}")
    _sessions()
    _groups()
    _endpoints()
    _events()
    _positions()


def _channel(table: str) -> tuple[sa.Column[str], sa.ForeignKeyConstraint]:
    return (
        sa.Column("channel_uid", WORD, nullable=False),
        sa.ForeignKeyConstraint(
            ["channel_uid"],
            ["channels.uid"],
            name=f"fk_{table}_channel_uid",
            ondelete="CASCADE",
        ),
    )


def _check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))


def _sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", WORD, nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        _check("sessions", "beat", "beat >= 0"),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
    )


def _groups() -> None:
    op.create_table(
        "endpoint_groups",
        *_channel("endpoint_groups"),
        sa.Column("role", WORD, nullable=False),
        sa.Column("name", WORD, nullable=False),
        sa.Column("mode", WORD, nullable=False),
        sa.Column("size", sa.Integer()),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("next_index", sa.BigInteger(), nullable=False),
        _check("endpoint_groups", "role", ROLE),
        _check("endpoint_groups", "mode", MODE),
        _check("endpoint_groups", "anonymous_has_no_size", "(name = '') = (size IS NULL)"),
        _check("endpoint_groups", "size", "size IS NULL OR size BETWEEN 1 AND 10000"),
        _check("endpoint_groups", "counters", "generation >= 1 AND epoch >= 0 AND next_index >= 0"),
        sa.PrimaryKeyConstraint("channel_uid", "role", "name", name="pk_endpoint_groups"),
    )


def _endpoints() -> None:
    op.create_table(
        "endpoints",
        sa.Column("id", WORD, nullable=False),
        *_channel("endpoints"),
        sa.Column("session_id", WORD, nullable=False),
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
        _check("endpoints", "role", ROLE),
        _check("endpoints", "mode", MODE),
        _check(
            "endpoints", "state", "state IN ('opened', 'started', 'stopped', 'closed', 'error')"
        ),
        _check("endpoints", "health", "health IN ('healthy', 'suspect', 'lost')"),
        _check(
            "endpoints",
            "member_index",
            "member_index >= 0 AND (size IS NULL OR member_index < size)",
        ),
        _check("endpoints", "counters", "epoch >= 1 AND generation >= 1 AND commits >= 0"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_endpoints_session_id"),
        sa.PrimaryKeyConstraint("id", name="pk_endpoints"),
    )
    place = ["channel_uid", "role", "group_name", "member_index"]
    op.create_index(
        "uq_endpoints_place",
        "endpoints",
        place,
        unique=True,
        sqlite_where=sa.text("superseded = 0"),
        postgresql_where=sa.text("NOT superseded"),
    )
    op.create_index(
        "ix_endpoints_channel_uid_role_group_name_member_index_epoch",
        "endpoints",
        [*place, "epoch"],
    )
    op.create_index("ix_endpoints_session_id", "endpoints", ["session_id"])


def _events() -> None:
    op.create_table(
        "endpoint_events",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        *_channel("endpoint_events"),
        sa.Column("endpoint_id", WORD),
        sa.Column("group_name", WORD, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("state", WORD),
        sa.Column("health", WORD),
        sa.Column("cause", sa.Text()),
        sa.Column("by", WORD, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_endpoint_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_endpoint_events_endpoint_id_seq", "endpoint_events", ["endpoint_id", "seq"])
    op.create_index(
        "ix_endpoint_events_channel_uid_group_name_seq",
        "endpoint_events",
        ["channel_uid", "group_name", "seq"],
    )


def _positions() -> None:
    op.create_table(
        "positions",
        *_channel("positions"),
        sa.Column("group_name", WORD, nullable=False),
        sa.Column("member_index", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("partition", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.Column("record", sa.BigInteger(), nullable=False),
        sa.Column("topic_id", WORD, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("committed_at", TIME, nullable=False),
        _check("positions", "whose", "member_index >= -1 AND partition >= 0"),
        _check("positions", "position", "next_offset >= 0 AND record >= 0"),
        sa.PrimaryKeyConstraint(
            "channel_uid", "group_name", "member_index", "partition", name="pk_positions"
        ),
    )
