"""The number of partitions up to which attaching may grow a channel."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("channels", sa.Column("max_partitions", sa.Integer()))
