"""What readers of an exactly-once channel may read, and the open batches that hold them back. Pure.

Readers read up to `stable`. Committed messages behind it wait for batches that began before them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluiceway_gateway.ledger.model import Batch, Ledger
from sluiceway_gateway.status.progress import Offsets

MAX_BATCHES = 20
"""Open batches that a sample has at most, those first that hold back the most."""


@dataclass(frozen=True, kw_only=True)
class OpenBatch:
    """An open batch, and how many committed messages wait for its end."""

    key: str
    owner: str
    since: float
    """When it was opened, in Unix time."""
    held_messages: int


@dataclass(frozen=True, kw_only=True)
class LedgerSample:
    """The ledger of a channel at one moment; offsets are by partition."""

    number: int
    halted: str | None
    stable: Offsets
    visible_end: Offsets
    committed_messages: int
    """Messages in Kafka that committed batches list."""
    open_batches: int
    batches: Sequence[OpenBatch]

    @property
    def held_back_by(self) -> OpenBatch | None:
        """The open batch for which the most committed messages wait."""
        return next((each for each in self.batches if each.held_messages), None)

    def is_gapless(self, starts: Offsets) -> bool:
        """Whether every message from the first one to the last committed one is committed."""
        lengths = (
            max(0, (end or 0) - (start or 0))
            for start, end in zip(starts, self.visible_end, strict=False)
        )
        return None not in starts and sum(lengths) == self.committed_messages

    def uncommitted_messages(self, starts: Offsets, log_ends: Offsets) -> int | None:
        """Return how many messages in Kafka are of no committed batch; None if unknown.

        They are those of open batches, of failed attempts, and of producers without a batch.
        """
        if not log_ends or None in starts or None in log_ends:
            return None
        total = sum((end or 0) - (start or 0) for start, end in zip(starts, log_ends, strict=True))
        return max(0, total - self.committed_messages)


def ledger_sample(
    ledger: Ledger, batches: Sequence[Batch], *, partitions: int, committed_messages: int
) -> LedgerSample:
    """Return the sample of a ledger with its open batches, the oldest first."""
    held = {
        partition: end
        for partition, end in ledger.visible_end.items()
        if end > ledger.stable.get(partition, 0)
    }
    opened = [
        OpenBatch(
            key=each.key,
            owner=each.owner,
            since=each.opened_at.timestamp(),
            held_messages=_held_messages(each, held),
        )
        for each in batches
    ]
    return LedgerSample(
        number=ledger.number,
        halted=ledger.halted,
        stable=_offsets(ledger.stable, partitions),
        visible_end=_offsets(ledger.visible_end, partitions),
        committed_messages=committed_messages,
        open_batches=len(opened),
        batches=sorted(opened, key=lambda each: -each.held_messages)[:MAX_BATCHES],
    )


def _held_messages(batch: Batch, held: Mapping[int, int]) -> int:
    return sum(max(0, end - batch.begin[p]) for p, end in held.items() if p in batch.begin)


def _offsets(numbers: Mapping[int, int], partitions: int) -> Offsets:
    return [numbers.get(partition, 0) for partition in range(partitions)]
