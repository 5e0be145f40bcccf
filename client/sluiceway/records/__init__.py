"""Records: what a user holds, made into record batches and back, column by column."""

from sluiceway.records.batches import to_batches
from sluiceway.records.rows import to_records

__all__ = ["to_batches", "to_records"]
