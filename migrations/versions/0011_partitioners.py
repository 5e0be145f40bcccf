"""The partitioner of a channel's keys."""

from alembic import op

revision = "0011"
down_revision = "0010"

# In one statement with the column, as SQLite adds constraints in no other way.
ADD_COLUMN = """
    ALTER TABLE channels ADD COLUMN partitioner TEXT {collation} DEFAULT 'murmur2' NOT NULL
    CONSTRAINT ck_channels_partitioner
    CHECK (partitioner IN ('murmur2', 'consistent_random', 'fnv1a'))
"""


def upgrade() -> None:
    collation = 'COLLATE "C"' if op.get_bind().dialect.name == "postgresql" else ""
    op.execute(ADD_COLUMN.format(collation=collation))
