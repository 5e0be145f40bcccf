"""Low watermarks of ledgers' partitions."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("ledger_partitions", sa.Column("low_end", sa.BigInteger()))
