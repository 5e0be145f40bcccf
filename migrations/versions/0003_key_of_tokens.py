"""A fingerprint of the key by which each token was hashed."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("tokens", sa.Column("key_fingerprint", WORD))
