"""Numbers of endpoints, and the ends of places in groups of readers."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("endpoints", sa.Column("number", sa.BigInteger()))
    # The endpoints so far come before all others.
    op.execute("UPDATE endpoints SET number = 1")
    op.create_table(
        "finished_places",
        sa.Column(
            "channel_uid",
            WORD,
            sa.ForeignKey("channels.uid", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("group_name", WORD, primary_key=True),
        sa.Column("member_index", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("through", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("member_index >= -1 AND through >= 0", name="member_and_number"),
    )
