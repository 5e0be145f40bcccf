"""Columns of messages to produce, and reports of their delivery."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError

__all__ = ["DeliveryReport", "Messages", "Numbers"]

Numbers: TypeAlias = npt.NDArray[Any]
"""An array of integers."""


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Messages in order: binary values and keys (null: none), and partitions.

    `counts` are the numbers of records in each message; None: one each.
    """

    values: pa.ChunkedArray
    partitions: Numbers
    keys: pa.ChunkedArray | None = None
    counts: Numbers | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def records(self) -> int:
        """The number of records in all messages."""
        return len(self) if self.counts is None else int(self.counts.sum())

    def slice(self, start: int, length: int) -> "Messages":
        """Return a part of the messages, without a copy."""
        end = start + length
        return Messages(
            values=self.values.slice(start, length),
            partitions=self.partitions[start:end],
            keys=None if self.keys is None else self.keys.slice(start, length),
            counts=None if self.counts is None else self.counts[start:end],
        )


@dataclass(frozen=True, kw_only=True)
class DeliveryReport:
    """A report of messages: consecutive offsets of a partition from `first` on, or an `error`.

    `messages` and `records` are their numbers. A negative `first` is unknown, as after a duplicate
    sequence number, and so are all offsets of the report.
    """

    partition: int
    first: int
    messages: int
    records: int
    error: KafkaError | None = None
