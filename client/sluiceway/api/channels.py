"""Requests about channels, and status watchers."""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from sluiceway.api.arguments import channel_path, check_seconds
from sluiceway.api.endpoints import EndpointCalls
from sluiceway.api.ledger import LedgerCalls
from sluiceway.api.models import (
    ChannelResource,
    ChannelSpec,
    Cluster,
    Connection,
    SchemaVersion,
)
from sluiceway.api.parsing import JsonPath, Page, to_json
from sluiceway.api.status import ChannelSummary, StatusPage, StatusReport
from sluiceway.api.transport import Params, Transport
from sluiceway.errors import Conflict

__all__ = [
    "MIN_INTERVAL_S",
    "Access",
    "Control",
    "PartitionOffsets",
    "TopicOffsets",
    "watch_status",
    "watch_summaries",
]

Access = Literal["read", "write"]

_LIMIT = 100
#: A search reports about once a second, but not while Kafka is silent.
_SILENCE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class _SchemaVersions:
    items: tuple[SchemaVersion, ...]


@dataclass(frozen=True, kw_only=True)
class PartitionOffsets:
    """Offsets of a partition; `offset` is that of the first message of a time or later.

    Without such a message, or without a time, it is where readers will find the next message.
    """

    partition: int
    begin_offset: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class TopicOffsets:
    """Offsets by partition; Kafka did not return those of the `unavailable` ones."""

    topic_id: str
    partitions: Annotated[Mapping[int, PartitionOffsets], JsonPath("partitions", by="partition")]
    unavailable: Annotated[tuple[int, ...], JsonPath("partitions_unavailable")]


class Control:
    """The control plane: requests about channels, their `endpoints` and their `ledger`.

    Changes carry an idempotency key, so a repeated request is one change. `listener` names
    the Kafka listener that connections use. `grace_s` is how long endpoints tolerate an
    unreachable gateway. Each call raises GatewayError and its subclasses.
    """

    def __init__(
        self, transport: Transport, *, listener: str | None = None, grace_s: float = 60.0
    ) -> None:
        self._transport = transport
        self._listener = listener
        self.grace_s = grace_s
        self.endpoints = EndpointCalls(transport, listener=listener)
        self.ledger = LedgerCalls(transport)

    def channel(self, name: str, *, timeout_s: float | None = None) -> ChannelResource:
        """Return a channel; `timeout_s` replaces the transport's timeout."""
        path = channel_path(name)
        return self._transport.fetch(ChannelResource, "GET", path, timeout_s=timeout_s)

    def wait_for_change(self, seen: ChannelResource, wait_s: float) -> ChannelResource:
        """Return the channel once it differs from `seen`, or `seen` after `wait_s`."""
        path = channel_path(seen.name)
        return self._transport.poll(ChannelResource, path, seen=seen.etag, wait_s=wait_s) or seen

    def channels(
        self, selector: str | None = None, *, timeout_s: float | None = None
    ) -> Iterator[ChannelResource]:
        """Yield all channels visible to the token, by name, page by page."""
        params = {"limit": _LIMIT, "selector": selector or None}
        page = Page[ChannelResource]
        return self._transport.items(page, "/v1/channels", params, timeout_s=timeout_s)

    def create(
        self, name: str, *, spec: ChannelSpec, labels: Mapping[str, str] | None = None
    ) -> ChannelResource:
        """Create a channel. Raises Conflict `precondition_failed` if it exists."""
        body = {"metadata": {"labels": dict(labels or {})}, "spec": to_json(spec)}
        return self._change("PUT", channel_path(name), body=body, headers={"If-None-Match": "*"})

    def ensure(
        self,
        name: str,
        *,
        spec: ChannelSpec,
        labels: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> ChannelResource:
        """Create a channel, or return the one that another program has created meanwhile.

        `timeout_s` replaces the transport's timeout for the second request.
        """
        try:
            return self.create(name, spec=spec, labels=labels)
        except Conflict as error:
            if error.code != "precondition_failed":
                raise
        # Not the method of a subclass, which may call this one.
        return Control.channel(self, name, timeout_s=timeout_s)

    def update(
        self,
        name: str,
        *,
        uid: str,
        spec: ChannelSpec,
        labels: Mapping[str, str] | None = None,
        seen: str | None = None,
    ) -> ChannelResource:
        """Change the given fields of the channel with this uid.

        Raises Conflict `precondition_failed` if its ETag is no longer `seen`.
        """
        metadata = {"uid": uid} | ({} if labels is None else {"labels": dict(labels)})
        body = {"metadata": metadata, "spec": to_json(spec)}
        headers = {} if seen is None else {"If-Match": seen}
        return self._change("PUT", channel_path(name), body=body, headers=headers)

    def close_channel(self, name: str, *, uid: str, force: bool = False) -> ChannelResource:
        """Close the channel with this uid to writers."""
        # Older gateways close at once, and refuse `force`.
        body = {"uid": uid} | ({"force": True} if force else {})
        return self._change("POST", f"{channel_path(name)}/close", body=body)

    def schemas(self, name: str) -> tuple[SchemaVersion, ...]:
        """Return all versions of the channel's schema, the oldest first."""
        path = f"{channel_path(name)}/schemas"
        return self._transport.fetch(_SchemaVersions, "GET", path).items

    def delete(
        self, name: str, *, uid: str, keep_topic: bool, force: bool = False
    ) -> ChannelResource:
        """Start the deletion of the channel with this uid."""
        params = {"uid": uid, "topic": "keep" if keep_topic else None, "force": force or None}
        return self._change("DELETE", channel_path(name), params=params)

    def status(
        self,
        name: str,
        *,
        seen: str | None = None,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> StatusReport | None:
        """Return the status of a channel; None if it still has the ETag `seen` after `wait_s`."""
        path = f"{channel_path(name)}/status"
        return self._transport.poll(
            StatusReport, path, seen=seen, wait_s=wait_s, timeout_s=timeout_s
        )

    def statuses(self) -> Iterator[ChannelSummary]:
        """Yield the summaries of all channels visible to the token, by name, page by page."""
        for page in _pages(self, []):
            yield from page.lines

    def status_page(
        self, cursor: str | None = None, *, seen: str | None = None, wait_s: float = 0.0
    ) -> StatusPage | None:
        """Return one page of summaries; None if it still has the ETag `seen` after `wait_s`."""
        params = {"limit": _LIMIT, "cursor": cursor}
        return self._transport.poll(
            StatusPage, "/v1/status", params=params, seen=seen, wait_s=wait_s, cursor=cursor
        )

    def connection(
        self, name: str, access: Access, *, timeout_s: float | None = None
    ) -> Connection:
        """Return the connection for reading from or writing to the channel."""
        params = {"access": access, "listener": self._listener or None}
        path = f"{channel_path(name)}/connection"
        return self._transport.fetch(Connection, "GET", path, params=params, timeout_s=timeout_s)

    def offsets(self, name: str, *, since: datetime | None = None) -> TopicOffsets:
        """Return the offsets of a channel at a time, without one those of its end."""
        params = {"since": None if since is None else since.isoformat()}
        path = f"{channel_path(name)}/messages/offsets"
        return self._transport.fetch(TopicOffsets, "GET", path, params=params)

    def search(self, name: str, params: Params) -> Iterator[Mapping[str, Any]]:
        """Yield the JSON lines of a search of a channel's messages, with these parameters."""
        path = f"{channel_path(name)}/messages/search"
        return map(json.loads, self._transport.lines(path, params=params, silence_s=_SILENCE_S))

    def cluster(self) -> Cluster:
        """Return the brokers of the Kafka cluster. Raises Forbidden unless administrator."""
        return self._transport.fetch(Cluster, "GET", "/v1/cluster")

    def close(self) -> None:
        """Close the connections to the gateway."""
        self._transport.close()

    def _change(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> ChannelResource:
        key = {"Idempotency-Key": uuid.uuid4().hex}
        headers = {**(headers or {}), **key}
        return self._transport.fetch(ChannelResource, method, path, headers=headers, **options)


MIN_INTERVAL_S = 1.0
"""The default for the shortest time between two yielded states."""
_WAIT_S = 20.0
_PAGES_INTERVAL_S = 2.0
"""The interval of reads of a list with several pages, any of which may have changed."""


def watch_status(
    control: Control, name: str, *, every_s: float = MIN_INTERVAL_S, sleep: Callable[[float], None]
) -> Iterator[StatusReport]:
    """Yield the status of a channel, at once and after every change."""
    check_seconds("every_s", every_s)
    report = control.status(name)
    while True:
        if report is not None:
            last = report
            yield report
            sleep(every_s)
        report = control.status(name, seen=last.etag, wait_s=_WAIT_S)


def watch_summaries(
    control: Control, *, every_s: float = MIN_INTERVAL_S, sleep: Callable[[float], None]
) -> Iterator[tuple[ChannelSummary, ...]]:
    """Yield the summaries of all channels visible to the token, at once and after every change."""
    check_seconds("every_s", every_s)
    pages: list[StatusPage] = []
    while True:
        before, pages = pages, list(_pages(control, pages))
        if pages != before:
            yield tuple(line for page in pages for line in page.lines)
            sleep(every_s)
        if len(pages) > 1:
            sleep(_PAGES_INTERVAL_S)


def _pages(control: Control, previous: list[StatusPage]) -> Iterator[StatusPage]:
    """Yield all pages; unchanged ones are the objects in `previous`."""
    # A long poll for one page would delay changes of the others.
    wait_s = _WAIT_S if len(previous) == 1 else 0.0
    by_cursor = {page.cursor: page for page in previous}
    cursor: str | None = None
    while True:
        before = by_cursor.get(cursor)
        seen = None if before is None else before.etag
        page = control.status_page(cursor, seen=seen, wait_s=wait_s) or before
        assert page is not None  # noqa: S101 - a request without an ETag has a response
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
