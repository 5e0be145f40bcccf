"""Aliases, documentation and other attributes of a channel's schemas."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("channel_schemas", sa.Column("annotated", sa.Text()))
    op.add_column("kept_schemas", sa.Column("annotated", sa.Text()))
