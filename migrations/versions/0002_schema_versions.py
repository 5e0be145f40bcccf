"""Compatibility of schema versions, adopted topics, closed channels. Expands only.

SQLite can change no CHECK constraint, so there the table of channels is made anew. Dropping the
old one would delete the versions of its schemas (ON DELETE CASCADE), which are put aside meanwhile.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)

PHASES = "phase IN ('provisioning', 'ready', 'failed', 'closed', 'deleting')"
HAS_TOPIC = "phase NOT IN ('ready', 'closed') OR topic_id IS NOT NULL"
# As they were: not every version of SQLAlchemy reads them back from SQLite.
UNCHANGED = {
    "format": "format IN ('avro', 'arrow')",
    "partitions": "partitions BETWEEN 1 AND 10000",
    "replication": "replication IS NULL OR replication >= 1",
    "generation": "generation >= 1 AND revision >= generation",
    "observed_generation": "observed_generation BETWEEN 0 AND generation",
    "kept_when_deleting": "phase = 'deleting' OR NOT keep_topic",
}
WIDENED = {"phase": PHASES, "ready_has_topic": HAS_TOPIC}
ADDED = {
    "compatibility": "compatibility IN ('none', 'backward', 'forward', 'full')",
    "adopted_has_topic": "NOT adopted OR topic_id IS NOT NULL",
    "adopted_is_kept": "NOT adopted OR keep_topic OR phase <> 'deleting'",
}


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _make_anew()
    else:
        _alter()
    op.create_table(
        "kept_schemas",
        sa.Column("topic_id", WORD, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("schema_id", SERIAL, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("format", WORD, nullable=False),
        sa.CheckConstraint("version >= 1", name=op.f("ck_kept_schemas_version")),
        sa.CheckConstraint("format IN ('avro', 'arrow')", name=op.f("ck_kept_schemas_format")),
        sa.ForeignKeyConstraint(["schema_id"], ["schemas.id"], name="fk_kept_schemas_schema_id"),
        sa.PrimaryKeyConstraint("topic_id", "version", name="pk_kept_schemas"),
    )


def _columns() -> tuple[sa.Column[str], sa.Column[bool]]:
    return (
        sa.Column("compatibility", WORD, nullable=False, server_default=sa.text("'backward'")),
        sa.Column("adopted", sa.Boolean(), nullable=False, server_default=sa.false()),
    )


def _alter() -> None:
    for column in _columns():
        op.add_column("channels", column)
    for name in WIDENED:
        op.drop_constraint(op.f(f"ck_channels_{name}"), "channels", type_="check")
    for name, condition in (WIDENED | ADDED).items():
        op.create_check_constraint(op.f(f"ck_channels_{name}"), "channels", condition)
    op.add_column("channel_schemas", sa.Column("created_at", TIME))


def _make_anew() -> None:
    op.execute("CREATE TABLE versions_aside AS SELECT * FROM channel_schemas")
    op.drop_table("channel_schemas")
    checks = [
        sa.CheckConstraint(condition, name=op.f(f"ck_channels_{name}"))
        for name, condition in (UNCHANGED | WIDENED | ADDED).items()
    ]
    channels = sa.Table("channels", sa.MetaData(), autoload_with=op.get_bind())
    for each in list(channels.constraints):
        if isinstance(each, sa.CheckConstraint):
            channels.constraints.remove(each)
    with op.batch_alter_table(
        "channels", copy_from=channels, recreate="always", table_args=checks
    ) as batch:
        for column in _columns():
            batch.add_column(column)
    op.create_table(
        "channel_schemas",
        sa.Column("channel_uid", WORD, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("schema_id", SERIAL, nullable=False),
        sa.Column("created_at", TIME),
        sa.CheckConstraint("version >= 1", name=op.f("ck_channel_schemas_version")),
        sa.ForeignKeyConstraint(
            ["channel_uid"],
            ["channels.uid"],
            name="fk_channel_schemas_channel_uid",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["schema_id"], ["schemas.id"], name="fk_channel_schemas_schema_id"),
        sa.PrimaryKeyConstraint("channel_uid", "version", name="pk_channel_schemas"),
    )
    op.execute(
        "INSERT INTO channel_schemas (channel_uid, version, schema_id) "
        "SELECT channel_uid, version, schema_id FROM versions_aside"
    )
    op.drop_table("versions_aside")
