"""What took the place of an endpoint. Expands only."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("endpoints", sa.Column("fenced_by", sa.Text()))
