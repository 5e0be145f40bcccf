"""Tables of leases and of responses by idempotency key."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    Table,
    Text,
)

from sluiceway_gateway.core.db.types import (
    Document,
    UtcTime,
    Word,
    metadata,
)

leases = Table(
    "leases",
    metadata,
    Column("name", Word, primary_key=True),
    Column("holder", Word, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    # Incremented by each renewal. A lease whose counter is unchanged for `lease_ms` has expired.
    Column("renewals", BigInteger, nullable=False),
    # 0 after a release.
    Column("lease_ms", BigInteger, nullable=False),
    CheckConstraint("epoch >= 1", name="epoch"),
)


requests = Table(
    "requests",
    metadata,
    Column("principal", Word, primary_key=True),
    Column("key", Word, primary_key=True),
    Column("digest", Word, nullable=False),
    Column("status", Integer),
    Column("headers", Document),
    Column("body", Text),
    Column("created_at", UtcTime, nullable=False),
    Index(None, "created_at"),
)
