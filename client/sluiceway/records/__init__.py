"""Conversion of users' records to record batches and back, column by column."""

from sluiceway.records.from_python import copies
from sluiceway.records.tables import import_pandas, repeatable, to_batches
from sluiceway.records.to_python import to_records

__all__ = ["copies", "import_pandas", "repeatable", "to_batches", "to_records"]
