"""An index for the batches of a writer."""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_index(
        "ix_batches_channel_uid_instance_state", "batches", ["channel_uid", "instance", "state"]
    )
