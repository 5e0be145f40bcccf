"""Requests about channels, and watching of their status."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import httpx

from sluiceway.rest.endpoints import EndpointCalls
from sluiceway.rest.ledger import LedgerCalls
from sluiceway.rest.models import ChannelResource, Cluster, Connection, SchemaVersion
from sluiceway.rest.parsing import parse
from sluiceway.rest.status import ChannelSummary, StatusPage, StatusReport
from sluiceway.rest.transport import Transport, channel_path, check_seconds

Access = Literal["read", "write"]

_LIMIT = 100


class Control:
    """The control plane: requests about channels, their `endpoints` and their `ledger`.

    Changes carry an idempotency key, so that a repeated request is one change. `listener` names
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
        response = self._transport.request("GET", channel_path(name), timeout_s=timeout_s)
        return self._channel(response)

    def wait_for_change(self, seen: ChannelResource, wait_s: float) -> ChannelResource:
        """Return the channel once it differs from `seen`, or `seen` after `wait_s`."""
        path = channel_path(seen.name)
        response = self._transport.poll(path, seen=seen.etag, wait_s=wait_s)
        return seen if response is None else self._channel(response)

    def channels(
        self, selector: str | None = None, *, timeout_s: float | None = None
    ) -> Iterator[ChannelResource]:
        """Yield all channels visible to the token, by name, page by page."""
        params = {"limit": str(_LIMIT)} | ({"selector": selector} if selector else {})
        for item in self._transport.items("/v1/channels", params, timeout_s=timeout_s):
            yield item.read(ChannelResource)

    def create(
        self, name: str, *, spec: Mapping[str, Any], labels: Mapping[str, str]
    ) -> ChannelResource:
        """Create a channel. Raises Conflict `precondition_failed` if it exists."""
        body = {"metadata": {"labels": dict(labels)}, "spec": dict(spec)}
        return self._put(name, body, {"If-None-Match": "*"})

    def update(
        self, name: str, *, uid: str, spec: Mapping[str, Any], labels: Mapping[str, str] | None
    ) -> ChannelResource:
        """Change the given fields of the channel with this uid, and of no other."""
        metadata = {"uid": uid} | ({} if labels is None else {"labels": dict(labels)})
        return self._put(name, {"metadata": metadata, "spec": dict(spec)}, {})

    def close_channel(self, name: str, *, uid: str, force: bool = False) -> ChannelResource:
        """Close the channel with this uid to writers."""
        # Older gateways close at once, and do not know `force`.
        body = {"uid": uid} | ({"force": True} if force else {})
        response = self._transport.request(
            "POST", f"{channel_path(name)}/close", body=body, headers=_idempotency_key()
        )
        return self._channel(response)

    def schemas(self, name: str) -> tuple[SchemaVersion, ...]:
        """Return all versions of the channel's schema, the oldest first."""
        response = self._transport.request("GET", f"{channel_path(name)}/schemas")
        items = self._transport.json(response).items("items")
        return tuple(parse(SchemaVersion, each) for each in items)

    def delete(
        self, name: str, *, uid: str, keep_topic: bool, force: bool = False
    ) -> ChannelResource:
        """Start the deletion of the channel with this uid."""
        params = {"uid": uid} | ({"topic": "keep"} if keep_topic else {})
        params |= {"force": "true"} if force else {}
        response = self._transport.request(
            "DELETE", channel_path(name), params=params, headers=_idempotency_key()
        )
        return self._channel(response)

    def status(
        self, name: str, *, seen: str | None = None, wait_s: float = 0.0
    ) -> StatusReport | None:
        """Return the status of a channel; None if it still has the ETag `seen` after `wait_s`."""
        path = f"{channel_path(name)}/status"
        response = self._transport.poll(path, seen=seen, wait_s=wait_s)
        if response is None:
            return None
        etag = response.headers.get("ETag")
        return parse(StatusReport, self._transport.json(response), etag=etag)

    def statuses(self) -> Iterator[ChannelSummary]:
        """Yield the summaries of all channels visible to the token, by name, page by page."""
        for page in _pages(self, []):
            yield from page.lines

    def status_page(
        self, cursor: str | None = None, *, seen: str | None = None, wait_s: float = 0.0
    ) -> StatusPage | None:
        """Return one page of summaries; None if it still has the ETag `seen` after `wait_s`."""
        params = {"limit": str(_LIMIT)} | ({} if cursor is None else {"cursor": cursor})
        response = self._transport.poll("/v1/status", params=params, seen=seen, wait_s=wait_s)
        if response is None:
            return None
        etag = response.headers.get("ETag")
        return parse(StatusPage, self._transport.json(response), cursor=cursor, etag=etag)

    def connection(
        self, name: str, access: Access, *, timeout_s: float | None = None
    ) -> Connection:
        """Return the connection for reading from or writing to the channel."""
        params = {"access": str(access)} | ({"listener": self._listener} if self._listener else {})
        response = self._transport.request(
            "GET", f"{channel_path(name)}/connection", params=params, timeout_s=timeout_s
        )
        return parse(Connection, self._transport.json(response))

    def cluster(self) -> Cluster:
        """Return the brokers of the Kafka cluster. Raises Forbidden unless administrator."""
        return parse(Cluster, self._transport.json(self._transport.request("GET", "/v1/cluster")))

    def close(self) -> None:
        """Close the connections to the gateway."""
        self._transport.close()

    def _put(self, name: str, body: Any, headers: Mapping[str, str]) -> ChannelResource:
        response = self._transport.request(
            "PUT", channel_path(name), body=body, headers={**headers, **_idempotency_key()}
        )
        return self._channel(response)

    def _channel(self, response: httpx.Response) -> ChannelResource:
        etag = response.headers.get("ETag")
        return parse(ChannelResource, self._transport.json(response), etag=etag)


def _idempotency_key() -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex}


MIN_INTERVAL_S = 1.0
"""The default of the shortest time between two yielded states."""
_WAIT_S = 20.0
_PAGES_INTERVAL_S = 2.0
"""The time between two reads of a list of several pages: any of them may have changed."""


def watch_status(
    control: Control, name: str, *, every_s: float = MIN_INTERVAL_S, sleep: Callable[[float], None]
) -> Iterator[StatusReport]:
    """Yield the status of a channel, at once and after every change."""
    check_seconds("every_s", every_s)
    found = control.status(name)
    while True:
        if found is not None:
            last = found
            yield found
            sleep(every_s)
        found = control.status(name, seen=last.etag, wait_s=_WAIT_S)


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


def _pages(control: Control, known: list[StatusPage]) -> Iterator[StatusPage]:
    """Yield all pages; unchanged ones are the objects in `known`."""
    # Waiting for one page would hide changes of the others.
    wait_s = _WAIT_S if len(known) == 1 else 0.0
    by_cursor = {page.cursor: page for page in known}
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


__all__ = ["MIN_INTERVAL_S", "Access", "Control", "watch_status", "watch_summaries"]
