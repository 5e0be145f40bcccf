"""Readers with a short timeout, which a busy machine may exceed."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sluiceway import ChannelReader
from sluiceway.errors import KafkaUnavailable
from waiting import until

__all__ = ["open_patiently", "read_patiently"]


def open_patiently(open_reader: Callable[[], ChannelReader]) -> ChannelReader:
    """Open a reader, again after a timeout."""
    opened: list[ChannelReader] = []

    def is_open() -> bool:
        with suppress(KafkaUnavailable):
            opened.append(open_reader())
        return bool(opened)

    until(is_open)
    return opened[0]


def read_patiently(reader: ChannelReader, count: int) -> list[dict[str, Any]]:
    """Read a number of records; a timeout, which keeps the position, does not end it."""
    records: list[dict[str, Any]] = []

    def is_complete() -> bool:
        with suppress(KafkaUnavailable):
            records.extend(reader.read(count - len(records), timeout=None))
        return len(records) == count

    until(is_complete)
    return records
