"""Cutting long lists into the pieces that one request to Kafka may hold."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")

#: Topics in one request to describe, alter or delete.
TOPICS = 200
#: Kafka refuses a request that would make more than 10,000 partitions or records in all.
PARTITIONS = 5_000


def pages(items: Sequence[_T], size: int = TOPICS) -> Iterator[Sequence[_T]]:
    """Give the items in pieces of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def weighted_pages(items: Sequence[_T], weight: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Give the items in pieces of at most `TOPICS`, whose weights sum up to `PARTITIONS`.

    An item that is heavier than that has a piece of its own.
    """
    page: list[_T] = []
    total = 0
    for item in items:
        if page and (len(page) == TOPICS or total + weight(item) > PARTITIONS):
            yield page
            page, total = [], 0
        page.append(item)
        total += weight(item)
    if page:
        yield page
