"""Tables of the ledger: batches, visible runs, and snapshots.

CHECK and unique constraints repeat the rules of `ledger/model.py`: a batch ends once, a key is
committed once, and stored ends are consistent.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
)

from sluiceway_gateway.core.db.types import (
    Document,
    EnumText,
    OptionalDocument,
    UtcTime,
    Word,
    channel_column,
    metadata,
    one_of,
    partial_index,
)
from sluiceway_gateway.core.names import MAX_PARTITIONS
from sluiceway_gateway.ledger.model import BatchState, Ending

ledgers = Table(
    "ledgers",
    metadata,
    channel_column(primary_key=True),
    # The topic whose offsets the ledger lists.
    Column("topic_id", Word, nullable=False),
    Column("partitions", Integer, nullable=False),
    # Number of the last commit, abort, reaped batch or repair.
    Column("number", BigInteger, nullable=False),
    # Reason of the halt; NULL while the ledger works.
    Column("halted", Text),
    # Number of the last repair; NULL without one.
    Column("repaired", BigInteger),
    CheckConstraint("number >= 0", name="number"),
    CheckConstraint("repaired IS NULL OR repaired BETWEEN 1 AND number", name="repaired"),
    CheckConstraint(f"partitions BETWEEN 1 AND {MAX_PARTITIONS}", name="partitions"),
)

# Stored, because runs below the log start are deleted. Neither column ever falls.
ledger_partitions = Table(
    "ledger_partitions",
    metadata,
    channel_column(primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    # End of the last visible run.
    Column("visible_end", BigInteger, nullable=False),
    # Readers read up to here; the runs below are final.
    Column("stable", BigInteger, nullable=False),
    # First committed offset that Kafka has lost, until the repair; it only falls.
    Column("lost_from", BigInteger),
    # Number of the ledger when retention last removed runs; NULL if it has not.
    Column("removed_after", BigInteger),
    # Lowest watermark that was below visible_end, until it is judged.
    Column("low_end", BigInteger),
    CheckConstraint("partition >= 0", name="partition"),
    CheckConstraint("stable >= 0 AND stable <= visible_end", name="stable"),
    CheckConstraint(
        "lost_from IS NULL OR lost_from >= 0 AND lost_from < visible_end", name="lost_from"
    ),
)

visible_runs = Table(
    "visible_runs",
    metadata,
    channel_column(primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("first_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("end_offset", BigInteger, nullable=False),
    CheckConstraint("partition >= 0", name="partition"),
    CheckConstraint("first_offset >= 0 AND first_offset < end_offset", name="offsets"),
    # With the primary key, no two runs begin or end at one offset.
    UniqueConstraint("channel_uid", "partition", "end_offset"),
)

# Runs of committed batches that were above `stable` at their commit, one batch each; they are not
# merged, so that snapshots can tell the batches apart. Kept while a snapshot can need them.
batch_runs = Table(
    "batch_runs",
    metadata,
    channel_column(primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("end_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("first_offset", BigInteger, nullable=False),
    # Number of the commit.
    Column("number", BigInteger, nullable=False),
    CheckConstraint("partition >= 0 AND number >= 1", name="partition"),
    CheckConstraint("first_offset >= 0 AND first_offset < end_offset", name="offsets"),
)

batch_owners = Table(
    "batch_owners",
    metadata,
    channel_column(primary_key=True),
    Column("name", Word, primary_key=True),
    # Number of the latest instance.
    Column("epoch", BigInteger, nullable=False),
    # Instances with a lower number are refused.
    Column("fence", BigInteger, nullable=False),
    Column("instance", Word, nullable=False),
    # Highest committed ordinal; NULL without one.
    Column("ordinal", BigInteger),
    # Label of the token that its batches and keys belong to, `*` for every label; NULL for nobody.
    Column("label", Text),
    CheckConstraint("epoch >= 1 AND fence BETWEEN 0 AND epoch", name="epoch"),
)

batches = Table(
    "batches",
    metadata,
    Column("id", Word, primary_key=True),
    channel_column(),
    Column("key", Word, nullable=False),
    Column("owner", Word, nullable=False),
    Column("instance", Word, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("ordinal", BigInteger),
    Column("state", EnumText(BatchState), nullable=False),
    # By partition, the lower bound of the batch's offsets.
    Column("begin", Document, nullable=False),
    # NULL for all partitions.
    Column("partitions", OptionalDocument),
    # Whether only its instance uses the key, so that it may be pruned.
    Column("own_key", Boolean, nullable=False),
    # Whether begin and counts were pruned.
    Column("brief", Boolean, nullable=False),
    Column("opened_at", UtcTime, nullable=False),
    Column("lease_until", UtcTime, nullable=False),
    Column("max_until", UtcTime, nullable=False),
    # The kind of its end, and the number of the end in the channel.
    Column("ending", EnumText(Ending)),
    Column("number", BigInteger),
    Column("records", BigInteger),
    Column("counts", OptionalDocument),
    Column("digest", Word),
    Column("cause", Text),
    Column("ended_at", UtcTime),
    CheckConstraint(one_of("state", BatchState), name="state"),
    CheckConstraint(f"ending IS NULL OR {one_of('ending', Ending)}", name="ending"),
    CheckConstraint(
        "(state = 'open') = (ended_at IS NULL) AND (state = 'open') = (number IS NULL)",
        name="ended",
    ),
    CheckConstraint(
        "(state = 'committed') = (digest IS NOT NULL) AND "
        "(state = 'committed') = (records IS NOT NULL) AND "
        "(state = 'committed') = (ending IS NOT NULL AND ending = 'commit') AND "
        "(state = 'open') = (ending IS NULL)",
        name="committed",
    ),
    CheckConstraint("(state = 'aborted') = (cause IS NOT NULL)", name="aborted"),
    CheckConstraint("epoch >= 1 AND (records IS NULL OR records >= 0)", name="counters"),
    UniqueConstraint("channel_uid", "number"),
    UniqueConstraint("channel_uid", "key", "epoch"),
    # A key is open or committed once.
    partial_index(
        "uq_batches_live_key", "channel_uid", "key", where="state <> 'aborted'", unique=True
    ),
    # For readers, commits and the reaper, which select open batches.
    partial_index("ix_batches_open", "channel_uid", where="state = 'open'"),
    Index(None, "channel_uid", "owner", "instance", "epoch"),
    # For the batches of a writer: its endpoint's id is its instance, or the start of it.
    Index(None, "channel_uid", "instance", "state"),
    # For pruning; without keys that are kept for good.
    partial_index("ix_batches_ended_at", "ended_at", where="NOT brief", sqlite="brief = 0"),
)

# Parts of a large manifest, until its commit.
manifest_slices = Table(
    "manifest_slices",
    metadata,
    Column("batch_id", Word, ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("slice", Integer, primary_key=True, autoincrement=False),
    Column("manifest", Document, nullable=False),
    CheckConstraint("slice >= 0", name="slice"),
)

# One for each number of the ledger, so that a read of that state can be repeated.
ledger_snapshots = Table(
    "ledger_snapshots",
    metadata,
    channel_column(primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", UtcTime, nullable=False),
    # By partition, the stable offset after it.
    Column("stable", Document, nullable=False),
    # By partition, the end of the last run after it; NULL if it is stable.
    Column("visible_end", OptionalDocument),
    CheckConstraint("number >= 1", name="number"),
    Index(None, "channel_uid", "at", "number"),
)

# Records that repairs of halted ledgers gave up; kept as long as the channel.
ledger_repairs = Table(
    "ledger_repairs",
    metadata,
    channel_column(primary_key=True),
    # Among the ends of batches.
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", UtcTime, nullable=False),
    Column("by", Word, nullable=False),
    Column("reason", Text, nullable=False),
    # Reason of the halt.
    Column("cause", Text, nullable=False),
    # Of each partition: its number, the first lost offset, the end, and the committed messages.
    Column("lost", Document, nullable=False),
    CheckConstraint("number >= 1", name="number"),
)
