"""Watching how channels stand: each state as it comes, by reads that wait for the next one."""

from collections.abc import Callable, Iterator

from sluiceway.errors import OptionError
from sluiceway.rest.channels import Control
from sluiceway.rest.status import StatusLine, StatusPage, StatusReport

__all__ = ["PACE_S", "channel_states", "list_states"]

PACE_S = 1.0
"""The shortest time between two states, where the caller names none."""
_WAIT_S = 20.0
_PAGES_S = 2.0
"""How long to wait between two looks at a list of many pages, each of which may have changed."""


def channel_states(
    control: Control, name: str, *, every_s: float = PACE_S, sleep: Callable[[float], None]
) -> Iterator[StatusReport]:
    """Give how a channel stands: now, and whenever it is another state."""
    every_s = _checked(every_s)
    found = control.status(name)
    while True:
        if found is not None:
            last = found
            yield found
            sleep(every_s)
        found = control.status(name, seen=last.etag, wait_s=_WAIT_S)


def list_states(
    control: Control, *, every_s: float = PACE_S, sleep: Callable[[float], None]
) -> Iterator[tuple[StatusLine, ...]]:
    """Give how all channels stand that the token may see: now, and whenever a line is another."""
    every_s = _checked(every_s)
    pages: list[StatusPage] = []
    while True:
        before, pages = pages, list(_pages(control, pages))
        if pages != before:
            yield tuple(line for page in pages for line in page.lines)
            sleep(every_s)
        if len(pages) > 1:
            sleep(_PAGES_S)


def _pages(control: Control, known: list[StatusPage]) -> Iterator[StatusPage]:
    """Give all pages, those that are as they were known as the same."""
    alone, at = len(known) == 1, {page.cursor: page for page in known}
    cursor: str | None = None
    while True:
        before = at.get(cursor)
        found = control.status_page(
            cursor,
            seen=None if before is None else before.etag,
            # Only where there is no other page that could change meanwhile.
            wait_s=_WAIT_S if alone and before is not None else 0.0,
        )
        page = found or before
        assert page is not None  # noqa: S101 - only a state that was named is left out
        yield page
        cursor = page.following
        if cursor is None:
            return


def _checked(every_s: float) -> float:
    if not isinstance(every_s, int | float) or not 0 <= every_s <= 86_400:
        raise OptionError(f"every_s is {every_s!r}; it takes seconds up to 86400")
    return every_s
