"""Tables of samples and of the lag history."""

from sqlalchemy import BigInteger, CheckConstraint, Column, Integer, Table

from sluiceway_gateway.core.db.types import Document, UtcTime, channel_column, metadata

samples = Table(
    "samples",
    metadata,
    channel_column(primary_key=True),
    # Number of the sample within its channel; the oldest are deleted.
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", UtcTime, nullable=False),
    Column("document", Document, nullable=False),
)
# For each resolution of a channel, a ring of slots: a later interval takes the row of an older one.
lag_history = Table(
    "lag_history",
    metadata,
    channel_column(primary_key=True),
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    # Start of the interval in Unix time, which is divided by the step.
    Column("at_s", BigInteger, nullable=False),
    Column("document", Document, nullable=False),
    CheckConstraint("step_s >= 1 AND slot >= 0", name="step_and_slot"),
)
