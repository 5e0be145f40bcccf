"""Requests about channels, their last known state, and status watchers."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

import httpx

from sluiceway.errors import (
    ChannelNotFound,
    ChannelNotReady,
    Conflict,
    OptionError,
    SluicewayTimeout,
)
from sluiceway.rest.arguments import channel_path, check_seconds
from sluiceway.rest.endpoints import EndpointCalls
from sluiceway.rest.ledger import LedgerCalls
from sluiceway.rest.models import (
    ChannelResource,
    Cluster,
    Connection,
    Heartbeat,
    Retention,
    SchemaVersion,
)
from sluiceway.rest.parsing import parse
from sluiceway.rest.status import ChannelSummary, StatusPage, StatusReport
from sluiceway.rest.transport import Transport

__all__ = [
    "MIN_INTERVAL_S",
    "Access",
    "ChannelState",
    "Control",
    "ResourceField",
    "checked_idle",
    "spec_json",
    "watch_status",
    "watch_summaries",
]

Access = Literal["read", "write"]

_LIMIT = 100


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

    def ensure(
        self,
        name: str,
        *,
        spec: Mapping[str, Any],
        labels: Mapping[str, str],
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
        self, name: str, *, uid: str, spec: Mapping[str, Any], labels: Mapping[str, str] | None
    ) -> ChannelResource:
        """Change the given fields of the channel with this uid."""
        metadata = {"uid": uid} | ({} if labels is None else {"labels": dict(labels)})
        return self._put(name, {"metadata": metadata, "spec": dict(spec)}, {})

    def close_channel(self, name: str, *, uid: str, force: bool = False) -> ChannelResource:
        """Close the channel with this uid to writers."""
        # Older gateways close at once, and refuse `force`.
        body = {"uid": uid} | ({"force": True} if force else {})
        response = self._transport.request(
            "POST", f"{channel_path(name)}/close", body=body, headers=_idempotency_key()
        )
        return self._channel(response)

    def schemas(self, name: str) -> tuple[SchemaVersion, ...]:
        """Return all versions of the channel's schema, the oldest first."""
        response = self._transport.request_json("GET", f"{channel_path(name)}/schemas")
        return tuple(parse(SchemaVersion, each) for each in response.items("items"))

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
        path = f"{channel_path(name)}/connection"
        response = self._transport.request_json("GET", path, params=params, timeout_s=timeout_s)
        return parse(Connection, response)

    def cluster(self) -> Cluster:
        """Return the brokers of the Kafka cluster. Raises Forbidden unless administrator."""
        return parse(Cluster, self._transport.request_json("GET", "/v1/cluster"))

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
"""The default for the shortest time between two yielded states."""
_WAIT_S = 20.0
_PAGES_INTERVAL_S = 2.0
"""The interval of reads of a list with several pages, any of which may have changed."""


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
    # A long poll for one page would delay changes of the others.
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


T = TypeVar("T")

_MAX_WAIT_S = 20.0
_MIN_IDLE, _MAX_IDLE = timedelta(minutes=1), timedelta(days=3650)


class ChannelState:
    """One incarnation of a channel; responses about another one raise Conflict."""

    def __init__(self, control: Control, resource: ChannelResource) -> None:
        self._control = control
        self.resource = resource

    def refresh(self) -> None:
        """Request the channel."""
        self.update(self._control.channel(self.resource.name))

    def update(self, resource: ChannelResource) -> None:
        """Store the gateway's response."""
        self.check_uid(resource.uid)
        self.resource = resource

    def wait_until(
        self, done: Callable[[ChannelResource], bool], deadline_s: float, unfinished: str
    ) -> None:
        """Wait until `done`. Raises SluicewayTimeout, whose message starts with `unfinished`."""
        while not done(self.resource):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise SluicewayTimeout(f"{unfinished}: {self.resource.status.explain()}")
            self.update(self._control.wait_for_change(self.resource, min(left_s, _MAX_WAIT_S)))

    def wait_until_ready(self, deadline_s: float) -> None:
        """Wait until the channel can be used. Raises ChannelNotReady and SluicewayTimeout."""

        def ready(resource: ChannelResource) -> bool:
            phase = resource.status.phase
            if phase not in ("provisioning", "ready", "closing", "closed"):
                raise ChannelNotReady(
                    f"the channel {resource.name!r} is {phase}: {resource.status.explain()}",
                    retriable=False,
                )
            return phase != "provisioning"

        self.wait_until(ready, deadline_s, f"the channel {self.resource.name!r} is not ready")

    def wait_until_closed(self, deadline_s: float) -> None:
        """Wait until the channel is closed. Raises SluicewayTimeout."""
        unfinished = f"the channel {self.resource.name!r} is not closed yet"
        self.wait_until(lambda found: found.status.phase == "closed", deadline_s, unfinished)

    def wait_until_gone(self, deadline_s: float) -> None:
        """Wait until the channel is deleted. Raises SluicewayTimeout."""
        unfinished = f"the channel {self.resource.name!r} still exists"
        try:
            self.wait_until(lambda _: False, deadline_s, unfinished)
        except ChannelNotFound:
            return
        except Conflict as error:
            # With a mismatch, it is gone, and another channel has its name.
            if error.code != "uid_mismatch":
                raise

    def check_uid(self, uid: str) -> None:
        """Raise Conflict `uid_mismatch` for another incarnation."""
        name, own = self.resource.name, self.resource.uid
        if uid != own:
            raise Conflict(
                f"the channel {name!r} was deleted and created again: its uid was {own}, and is "
                f"{uid} now. Open it again with gateway.channel({name!r})",
                code="uid_mismatch",
            )


class ResourceField(Generic[T]):
    """A read-only attribute: a field of the channel's resource, as of the last response."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, channel: Any, owner: type) -> T:
        if channel is None:
            return self  # type: ignore[return-value]
        value: T = getattr(channel._state.resource, self._name)  # noqa: SLF001
        return value

    def __set__(self, channel: object, value: object) -> None:
        raise AttributeError(f"{self._name} is read-only; use the channel's update()")


def checked_idle(idle: timedelta) -> timedelta | None:
    """Return the idle TTL; None (never) for 0. Raises OptionError."""
    if not isinstance(idle, timedelta):
        raise OptionError(
            f"idle is {idle!r}; it takes a timedelta from a minute to ten years, or 0 for never"
        )
    if idle and not _MIN_IDLE <= idle <= _MAX_IDLE:
        raise OptionError(
            f"idle is {idle.total_seconds():,} s; it takes from a minute to ten years, or 0 for "
            "never"
        )
    return idle or None


def spec_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of the fields of a channel's spec that are not None. Raises OptionError."""
    spec = {name: value for name, value in fields.items() if value is not None}
    for name, kind in (("retention", Retention), ("heartbeat", Heartbeat)):
        if name in spec:
            if not isinstance(spec[name], kind):
                raise OptionError(f"{name} is {spec[name]!r}; it takes a {kind.__name__}")
            spec[name] = asdict(spec[name])
    if "schema" in spec:
        spec["schema"] = spec["schema"].definition
    if "config" in spec:
        spec["config"] = dict(spec["config"])
    if "max_partitions" in spec:
        spec["max_partitions"] = spec["max_partitions"] or None
    if "idle" in spec:
        idle = checked_idle(spec.pop("idle"))
        spec["idle_ms"] = None if idle is None else idle // timedelta(milliseconds=1)
    return spec
