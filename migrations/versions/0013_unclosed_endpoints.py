"""An index of the endpoints that have not ended."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_index(
        "ix_endpoints_unclosed",
        "endpoints",
        ["channel_uid", "role", "group_name"],
        sqlite_where=sa.text("superseded = 0 AND state <> 'closed'"),
        postgresql_where=sa.text("NOT superseded AND state <> 'closed'"),
    )
