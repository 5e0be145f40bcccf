"""Status views: versioned by ETag, awaited, rendered."""

import hashlib
import json
import time
from typing import Any, Protocol

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from sluiceway_gateway.auth.model import Principal
from sluiceway_gateway.channels.etag import Precondition, status_etag
from sluiceway_gateway.channels.wire import time_json
from sluiceway_gateway.http.middleware import unless_disconnected
from sluiceway_gateway.http.params import cursor_after
from sluiceway_gateway.http.route import Services
from sluiceway_gateway.status.service import StatusPage
from sluiceway_gateway.status.store import StatusVersion
from sluiceway_gateway.status.wire import status_text, summary_json

_SEPARATORS = (",", ":")


class StatusView(Protocol):
    """A watched status, with the state of the last read."""

    async def look(self) -> str:
        """Read the state and return its tag, quoted. Raises ChannelNotFound."""

    async def changed(self, timeout_s: float, *, has_slot: bool = False) -> bool:
        """Wait until the state may differ from the last read.

        Returns False after the timeout. With `has_slot`, the caller already counts as waiting.
        """

    async def body(self) -> tuple[str, bytes]:
        """Return the JSON and the tag of the state of the last read, or of a later one.

        Raises ChannelNotFound.
        """


async def awaited(
    view: StatusView, request: Request, precondition: Precondition, *, wait_s: float
) -> str:
    """Return the state's tag; while the request names it, wait for another."""
    deadline_s = time.monotonic() + wait_s
    while True:
        tag = await view.look()
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not precondition.names(tag):
            return tag
        # What changed may be on another page, or not this token's to see.
        if not await unless_disconnected(request, view.changed(left_s)):
            return tag


class ChannelView:
    """The status of one channel."""

    def __init__(self, gateway: Services, name: str, *, by: Principal) -> None:
        self._gateway = gateway
        self._name = name
        self._by = by
        self._version: StatusVersion

    async def look(self) -> str:
        """Read the state and return its tag.

        Raises ChannelNotFound, and Unauthenticated for a token that is not valid any more.
        """
        self._version = await run_in_threadpool(
            self._gateway.statuses.version, self._name, by=self._by
        )
        return _tag(self._version)

    async def changed(self, timeout_s: float, *, has_slot: bool = False) -> bool:
        """Wait for another state; False after the timeout."""
        return await self._gateway.watch.status_changed(
            self._name, self._version.tag, timeout_s=timeout_s, has_slot=has_slot
        )

    async def body(self) -> tuple[str, bytes]:
        """Return the JSON of the state, rendered once for all requests, and its tag."""
        found = self._gateway.rendered.get(self._version.channel.uid, _tag(self._version))
        rest = await run_in_threadpool(self._rendered) if found is None else found
        head = self._version
        sampled_at = None if head.sampled_at is None else time_json(head.sampled_at)
        # The moment of the last look alone makes no new state, and so is put in here.
        return _tag(head), b'{"sampled_at":' + json.dumps(sampled_at).encode() + b"," + rest

    def _rendered(self) -> bytes:
        status = self._gateway.statuses.status(self._name)
        self._version = status.version
        text = status_text(status, self._gateway.fragments)[1:].encode()
        self._gateway.rendered.put(status.version.channel.uid, _tag(status.version), text)
        return text


class ListView:
    """A page of the channels that a token may see."""

    def __init__(
        self, gateway: Services, *, limit: int, after: str, prefixes: tuple[str, ...]
    ) -> None:
        self._gateway = gateway
        self._limit, self._after, self._prefixes = limit, after, prefixes
        self._page: StatusPage

    async def look(self) -> str:
        """Read the state and return its tag."""
        self._page = await run_in_threadpool(self._looked)
        return _page_tag(self._page)

    async def changed(self, timeout_s: float, *, has_slot: bool = False) -> bool:
        """Wait for a change of any channel; False after the timeout."""
        return await self._gateway.watch.anything_changed(
            self._page.overall, timeout_s=timeout_s, has_slot=has_slot
        )

    async def body(self) -> tuple[str, bytes]:
        """Return the JSON of the last read, and its tag."""
        page = self._page
        following = None if page.next_after is None else cursor_after(page.next_after)
        items = [summary_json(each) for each in page.channels]
        return _page_tag(page), _text({"items": items, "next_cursor": following})

    def _looked(self) -> StatusPage:
        return self._gateway.statuses.page(
            limit=self._limit, after=self._after, prefixes=self._prefixes
        )


def _tag(head: StatusVersion) -> str:
    tag = head.tag
    return status_etag(
        tag.uid,
        generation=tag.generation,
        revision=tag.revision,
        endpoints_revision=tag.endpoints_revision,
        samples_revision=tag.samples_revision,
    )


def _page_tag(page: StatusPage) -> str:
    tags = "".join(_tag(each.version) for each in page.channels) + f"/{page.next_after}"
    return f'"s{hashlib.sha256(tags.encode()).hexdigest()[:24]}"'


def _text(body: Any) -> bytes:
    return json.dumps(body, separators=_SEPARATORS).encode()
