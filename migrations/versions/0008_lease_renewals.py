"""Leases by a counter of renewals and a duration, which no wall clock judges. Expands only."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    for name, default in (("renewals", "0"), ("lease_ms", "10000")):
        op.add_column(
            "leases",
            sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text(default)),
        )
