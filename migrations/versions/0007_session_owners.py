"""Sessions belong to the owner of the token that began them. Expands only."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    # NULL for those that were begun before, and by gateways without tokens.
    op.add_column("sessions", sa.Column("owner", sa.Text(), nullable=True))
