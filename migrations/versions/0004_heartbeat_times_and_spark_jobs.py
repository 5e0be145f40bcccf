"""Times of heartbeats, and the Spark jobs of endpoints."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("beat_at", sa.DateTime(timezone=True)))
    op.add_column(
        "endpoints", sa.Column("spark", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"))
    )
