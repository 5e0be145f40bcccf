"""Requests about channels, one method each, and long polls of their status."""

import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from sluiceway.errors import OptionError
from sluiceway.rest.endpoints import EndpointCalls
from sluiceway.rest.models import Answer, ChannelResource, Cluster, Connection, SchemaVersion
from sluiceway.rest.status import StatusLine, StatusPage, StatusReport
from sluiceway.rest.transport import Transport, channel_path

Access = Literal["read", "write"]

_LIMIT = 100


class Control:
    """The control plane. Each call raises GatewayError and its subclasses.

    Calls that change something carry a request id, so that the transport's repeats of one call
    are one change. `listener` names the one of Kafka's listeners to reach it by; `grace_s` is how
    long endpoints bear it that the gateway is away. Calls about endpoints are in `endpoints`.
    """

    def __init__(
        self, transport: Transport, *, listener: str | None = None, grace_s: float = 60.0
    ) -> None:
        self._transport = transport
        self._listener = listener
        self.grace_s = grace_s
        self.endpoints = EndpointCalls(transport, listener=listener)

    def channel(self, name: str, *, timeout_s: float | None = None) -> ChannelResource:
        """Return a channel as it is now; `timeout_s` is for who has something else to do."""
        response = self._transport.request("GET", channel_path(name), timeout_s=timeout_s)
        return self._channel(response)

    def wait_for_change(self, seen: ChannelResource, wait_s: float) -> ChannelResource:
        """Return the channel once it differs from `seen`, or as it is after `wait_s`."""
        response = self._transport.request(
            "GET",
            channel_path(seen.name),
            params={"wait": str(max(1, min(60, math.ceil(wait_s))))},
            headers={"If-None-Match": seen.etag} if seen.etag else {},
            wait_s=wait_s,
        )
        return seen if response.status_code == 304 else self._channel(response)

    def channels(
        self, selector: str | None = None, *, timeout_s: float | None = None
    ) -> Iterator[ChannelResource]:
        """Return all channels that the token may see, by name, page after page."""
        params = {"limit": str(_LIMIT)} | ({"selector": selector} if selector else {})
        while True:
            response = self._transport.request(
                "GET", "/v1/channels", params=params, timeout_s=timeout_s
            )
            page = Answer(self._transport.answer(response), "channels")
            for item in page.items("items"):
                yield ChannelResource.parse(item.value)
            cursor = page.optional(page.text, "next_cursor")
            if cursor is None:
                return
            params["cursor"] = cursor

    def create(
        self, name: str, *, spec: Mapping[str, Any], labels: Mapping[str, str]
    ) -> ChannelResource:
        """Make a channel that is not there; Conflict `precondition_failed` if it is."""
        body = {"metadata": {"labels": dict(labels)}, "spec": dict(spec)}
        return self._put(name, body, {"If-None-Match": "*"})

    def update(
        self, name: str, *, uid: str, spec: Mapping[str, Any], labels: Mapping[str, str] | None
    ) -> ChannelResource:
        """Change what `spec` and `labels` name, in the channel with this uid only."""
        metadata = {"uid": uid} | ({} if labels is None else {"labels": dict(labels)})
        return self._put(name, {"metadata": metadata, "spec": dict(spec)}, {})

    def close_channel(self, name: str, *, uid: str, force: bool = False) -> ChannelResource:
        """Close the channel with this uid to writers."""
        # Older gateways close at once, and know no `force`.
        body = {"uid": uid} | ({"force": True} if force else {})
        response = self._transport.request(
            "POST", f"{channel_path(name)}/close", body=body, headers=_request_id()
        )
        return self._channel(response)

    def schemas(self, name: str) -> tuple[SchemaVersion, ...]:
        """Return all schemas that the channel keeps, the oldest first."""
        response = self._transport.request("GET", f"{channel_path(name)}/schemas")
        answer = Answer(self._transport.answer(response), "schemas")
        return tuple(SchemaVersion.parse(each) for each in answer.items("items"))

    def delete(
        self, name: str, *, uid: str, keep_topic: bool, force: bool = False
    ) -> ChannelResource:
        """Begin to delete the channel with this uid."""
        params = {"uid": uid} | ({"topic": "keep"} if keep_topic else {})
        params |= {"force": "true"} if force else {}
        response = self._transport.request(
            "DELETE", channel_path(name), params=params, headers=_request_id()
        )
        return self._channel(response)

    def status(
        self, name: str, *, seen: str | None = None, wait_s: float = 0.0
    ) -> StatusReport | None:
        """Return how a channel stands; None if it stands as at the ETag `seen` for `wait_s`."""
        params, headers = {}, {}
        if seen is not None:
            params["wait"] = str(max(1, min(60, math.ceil(wait_s))))
            headers["If-None-Match"] = seen
        response = self._transport.request(
            "GET", f"{channel_path(name)}/status", params=params, headers=headers, wait_s=wait_s
        )
        if response.status_code == 304:
            return None
        answer = self._transport.answer(response)
        return StatusReport.parse(answer, etag=response.headers.get("ETag"))

    def statuses(self) -> Iterator[StatusLine]:
        """Return how all channels stand that the token may see, by name, page after page."""
        cursor: str | None = None
        while True:
            page = self.status_page(cursor)
            assert page is not None  # noqa: S101 - no state was named that it could be in still
            yield from page.lines
            cursor = page.following
            if cursor is None:
                return

    def status_page(
        self, cursor: str | None = None, *, seen: str | None = None, wait_s: float = 0.0
    ) -> StatusPage | None:
        """Return a part of that list; None if it is as at the ETag `seen` for `wait_s`."""
        params = {"limit": str(_LIMIT)} | ({} if cursor is None else {"cursor": cursor})
        if wait_s:
            params["wait"] = str(max(1, min(60, math.ceil(wait_s))))
        response = self._transport.request(
            "GET",
            "/v1/status",
            params=params,
            headers={} if seen is None else {"If-None-Match": seen},
            wait_s=wait_s,
        )
        if response.status_code == 304:
            return None
        answer = self._transport.answer(response)
        return StatusPage.parse(answer, cursor=cursor, etag=response.headers.get("ETag"))

    def connection(self, name: str, access: Access) -> Connection:
        """Return what reading from or writing to the channel takes."""
        params = {"access": str(access)} | ({"listener": self._listener} if self._listener else {})
        response = self._transport.request("GET", f"{channel_path(name)}/connection", params=params)
        return Connection.parse(self._transport.answer(response))

    def cluster(self) -> Cluster:
        """Return who is in Kafka's cluster; Forbidden to all but administrators."""
        response = self._transport.request("GET", "/v1/cluster")
        return Cluster.parse(self._transport.answer(response))

    def close(self) -> None:
        """Close the connections to the gateway."""
        self._transport.close()

    def _put(self, name: str, body: Any, headers: Mapping[str, str]) -> ChannelResource:
        response = self._transport.request(
            "PUT", channel_path(name), body=body, headers={**headers, **_request_id()}
        )
        return self._channel(response)

    def _channel(self, response: Any) -> ChannelResource:
        return ChannelResource.parse(
            self._transport.answer(response), etag=response.headers.get("ETag")
        )


def _request_id() -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex}


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


__all__ = ["PACE_S", "Access", "Control", "channel_states", "list_states"]
