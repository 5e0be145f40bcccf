"""Heartbeats: one thread and one request per interval for all endpoints of a process."""

import atexit
import logging
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from sluiceway.api.channels import Control
from sluiceway.api.endpoints import (
    EndpointCalls,
    EndpointEnd,
    EndpointReport,
    HeartbeatReply,
    HeartbeatResult,
    SessionReport,
)
from sluiceway.concurrency import Process, this_process
from sluiceway.errors import EndpointClosed, GatewayError, GatewayUnavailable, clear_tracebacks
from sluiceway.runtime.threads import Background, Signal, call

__all__ = [
    "DetachRequest",
    "HeartbeatExtension",
    "HeartbeatSession",
    "SessionEndpoint",
]

LOGGER = logging.getLogger("sluiceway.endpoint.heartbeat")

_DETACH_TIMEOUT_S = 5.0
_MAX_REPORTS = 1000
"""Reports per request; further ones need another heartbeat."""
_MAX_REQUEST_BYTES = 500_000
"""About half of a gateway's default request limit."""
_INITIAL_INTERVAL_S = 2.0
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.05, 60.0
_LOGGED_FAILURES = 2
"""Heartbeats in a row that fail before it is logged: one fails at each restart of a gateway."""
_SESSIONS: dict[tuple[Process, Hashable, float], "HeartbeatSession"] = {}


@dataclass(kw_only=True)
class DetachRequest:
    """The request that detaches an endpoint after it was garbage-collected, or ended in an outage.

    `if_abandoned` is the end of one that was neither closed nor failed, `end` that of the others;
    an interrupt leaves the earlier or the later one. `late`: the session has to send it; `refused`:
    the gateway has refused it for a time.
    """

    name: str
    channel: str
    id: str
    if_abandoned: EndpointEnd
    end: EndpointEnd | None = None
    late: bool = False
    refused: bool = False


class SessionEndpoint(Protocol):
    """An endpoint registered with a session."""

    id: str

    def report(self) -> EndpointReport | None:
        """Return its report for the next heartbeat; None while it is not attached."""

    def on_heartbeat(self, result: HeartbeatResult) -> None:
        """Handle the gateway's response to its report, in the heartbeat thread: without waiting."""

    def on_detached(self, refusal: GatewayError | None) -> None:
        """Handle that the session has reported its end, which the gateway may refuse for good."""


class HeartbeatExtension(Protocol):
    """Additional reports of a session's heartbeats, such as those of Spark tasks.

    The heartbeat thread calls the methods, so they wait for nothing.
    """

    def report(self) -> SessionReport | None:
        """Return its report for the next heartbeat; None if there is nothing to report."""

    def on_response(self, response: HeartbeatReply) -> None:
        """Handle the response to a heartbeat with its report."""

    def on_rejected(self, error: GatewayError) -> None:
        """Handle the final refusal of its report, by an older gateway; it is removed afterwards."""


class HeartbeatSession:
    """Sends heartbeats for its endpoints, from the first `register` to the last `unregister`.

    The session has weak references to its endpoints. It reports the ends of abandoned ones, and of
    those that ended in an outage: its heartbeats look for them, and start `detach_due` in the
    background. A finalizer could not: an interrupt would end it halfway, and Python ignores that.

    A gateway that is unreachable for more than one heartbeat is logged, and becomes the session's
    `outage` after `grace_s`. Its thread does nothing else, as late heartbeats cost an endpoint its
    place.
    """

    def __init__(
        self,
        calls: EndpointCalls,
        *,
        grace_s: float,
        initial_interval_s: float = _INITIAL_INTERVAL_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.grace_s = grace_s
        self._template = calls
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._endpoints: weakref.WeakSet[SessionEndpoint] = weakref.WeakSet()
        self._extensions: set[HeartbeatExtension] = set()
        # Each attached endpoint until the gateway has its end.
        self._tracked: dict[str, tuple[weakref.ref[SessionEndpoint], DetachRequest]] = {}
        self._background = Background()
        # Held by the thread that detaches: the background, and the main one as the process ends.
        self._detaching = threading.Lock()
        self._process = this_process()
        self._calls: EndpointCalls | None = None
        self._in_flight = threading.Lock()
        self._wake = Signal()
        self._initial_interval_s = self._interval_s = initial_interval_s
        self._sequence = 0
        self._outage_since_s: float | None = None
        self._failures = 0
        self.interruption: GatewayError | None = None
        """The error of the last heartbeat; None if it was accepted."""

    @classmethod
    def of(cls, control: Control) -> "HeartbeatSession":
        """Return this process's session for a gateway, principal and grace."""
        calls, grace_s = control.endpoints, control.grace_s
        key = (this_process(), calls.identity, grace_s)
        # No lock, which a fork could copy while it is held: setdefault is atomic.
        return _SESSIONS.setdefault(key, cls(calls, grace_s=grace_s))

    @property
    def calls(self) -> EndpointCalls:
        """Requests on the session's own connections. Raises EndpointClosed."""
        calls = self._calls
        if calls is None:
            raise EndpointClosed("this endpoint is detached from its channel; open a new one")
        return calls

    @property
    def outage(self) -> GatewayError | None:
        """The error of an outage longer than the grace period, or None."""
        since_s = self._outage_since_s
        if since_s is None or self._monotonic() - since_s <= self.grace_s:
            return None
        return self.interruption

    @property
    def ids(self) -> set[str]:
        """The ids of the registered endpoints."""
        with self._lock:
            return {endpoint.id for endpoint in self._endpoints}

    def register(self, endpoint: SessionEndpoint) -> None:
        """Send heartbeats for an endpoint."""
        with self._lock:
            self._start()
            self._endpoints.add(endpoint)

    def track(self, endpoint: SessionEndpoint, request: DetachRequest) -> None:
        """Send `request`, in its state at that time, if the endpoint is garbage-collected."""
        self._tracked[endpoint.id] = (weakref.ref(endpoint), request)

    @property
    def due(self) -> list[DetachRequest]:
        """The detach requests to send; none in a forked child."""
        tracked = [] if self._process.forked else list(self._tracked.values())
        return [request for endpoint, request in tracked if request.late or endpoint() is None]

    def detach_due(self, calls: EndpointCalls) -> None:
        """Send the requests that are due; keep those that the gateway cannot accept yet."""
        with self._detaching:
            for request in self.due:
                # It may have been closed again meanwhile.
                if request.id in self._tracked and not self._detach(request, calls):
                    return

    def _detach(self, request: DetachRequest, calls: EndpointCalls) -> bool:
        """Send a request; False if the gateway does not answer."""
        refusal: GatewayError | None = None
        try:
            end = request.end or request.if_abandoned
            calls.detach(request.channel, request.id, end, timeout_s=_DETACH_TIMEOUT_S)
        except GatewayUnavailable:
            return False
        except GatewayError as error:
            if error.code == "members_open":
                # Index 0 of a group, which closes last.
                return True
            if not error.is_final:
                level = logging.DEBUG if request.refused else logging.WARNING
                LOGGER.log(level, "the end of %s is not reported yet: %s", request.name, error)
                request.refused = True
                return True
            if request.end is not None:
                LOGGER.warning("the end of %s is refused: %s", request.name, error)
            else:
                # Fenced, or deleted with its channel.
                LOGGER.debug("%s had ended before it was abandoned: %s", request.name, error)
            refusal = error
        else:
            if request.end is not None:
                LOGGER.info("the end of %s is reported", request.name)
            elif request.if_abandoned.state == "error":
                LOGGER.warning(
                    "%s failed: it was garbage-collected without being closed. Use `with`, or "
                    "close it; the gateway has the failure",
                    request.name,
                )
        tracked = self._tracked.pop(request.id, None)
        if tracked is not None and (endpoint := tracked[0]()) is not None:
            endpoint.on_detached(refusal)
        return True

    def detach_later(self, request: DetachRequest) -> None:
        """Send the `end` of a tracked endpoint once the gateway answers, or as the process ends."""
        request.late = True
        atexit.unregister(_detach_at_exit)
        atexit.register(_detach_at_exit)

    def detach_at_exit(self) -> None:
        """Send the ends that are not reported yet, once."""
        calls = self._calls
        if calls is None:
            return
        self.detach_due(calls)
        if self.due:
            LOGGER.warning(
                "the gateway does not answer as the process ends, so it will take closed readers "
                "and writers for lost"
            )

    def unregister(self, endpoint: SessionEndpoint) -> None:
        """Send no more heartbeats for an endpoint."""
        self._tracked.pop(endpoint.id, None)
        with self._lock:
            self._endpoints.discard(endpoint)
            self._stop_if_unused()

    def add_extension(self, extension: HeartbeatExtension) -> None:
        """Add an extension's report to each heartbeat; the session keeps it alive."""
        with self._lock:
            self._start()
            self._extensions.add(extension)

    def remove_extension(self, extension: HeartbeatExtension) -> None:
        """Remove an extension."""
        with self._lock:
            self._extensions.discard(extension)
            self._stop_if_unused()

    def require_interval(self, interval_ms: int) -> None:
        """Send the next heartbeat within `interval_ms`."""
        if interval_ms / 1000 < self._interval_s:
            self._interval_s = max(_MIN_INTERVAL_S, interval_ms / 1000)
            self._wake.set()

    def wake(self) -> None:
        """Send the next heartbeat now."""
        self._wake.set()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no heartbeat with an earlier state is in flight; False after the timeout."""

        def pass_by() -> bool:
            idle = self._in_flight.acquire(timeout=timeout_s)
            if idle:
                self._in_flight.release()
            return idle

        # An interrupt in between would leave it held.
        return call(pass_by)

    def send(self, calls: EndpointCalls) -> None:
        """Send one heartbeat for all endpoints, and pass each its result."""
        reports = [(extension, extension.report()) for extension in list(self._extensions)]
        extensions = [extension for extension, report in reports if report is not None]
        further = [report for _, report in reports if report is not None]
        with self._lock:
            # Others register meanwhile.
            endpoints = list(self._endpoints)
        next_ms: list[int] = []
        for first in range(0, len(endpoints) or 1, _MAX_REPORTS):
            group = endpoints[first : first + _MAX_REPORTS]
            try:
                response = self._exchange(calls, group, [] if first else further)
            except GatewayError as error:
                if further and not first and error.is_final:
                    for extension in extensions:
                        extension.on_rejected(error)
                        self.remove_extension(extension)
                else:
                    self._begin_outage(error)
                return
            if response is None:
                continue
            # Endpoints may have shorter intervals.
            next_ms.append(response.next_ms)
            next_s = min(next_ms) / 1000
            self._interval_s = min(_MAX_INTERVAL_S, max(_MIN_INTERVAL_S, next_s))
            for endpoint in group:
                if (result := response.results.get(endpoint.id)) is not None:
                    endpoint.on_heartbeat(result)
            for extension in () if first else extensions:
                extension.on_response(response)

    def _exchange(
        self,
        calls: EndpointCalls,
        endpoints: Sequence[SessionEndpoint],
        further: Sequence[SessionReport],
    ) -> HeartbeatReply | None:
        with self._in_flight:
            reports = [
                report for endpoint in endpoints if (report := endpoint.report()) is not None
            ]
            if not reports and not further:
                return None
            responses: list[HeartbeatReply] = []
            for batch in list(_batches(reports)) or [[]]:
                self._sequence += 1
                responses.append(
                    calls.heartbeat(
                        self.id,
                        self._sequence,
                        batch,
                        further=() if responses else further,
                        timeout_s=max(1.0, self._interval_s),
                    )
                )
                # The gateway ignores numbers up to the highest that it has seen.
                self._sequence = max(self._sequence, responses[-1].highest_number)
        self._end_outage()
        results = {
            id_: result for response in responses for id_, result in response.results.items()
        }
        next_ms = min(response.next_ms for response in responses)
        return replace(responses[0], results=results, next_ms=next_ms)

    def _run(self, calls: EndpointCalls, wake: Signal) -> None:
        while True:
            wake.wait(self._interval_s)
            wake.clear()
            with self._lock:
                self._stop_if_unused()
                if self._calls is not calls:
                    # Not in `unregister`: a request in flight would leave its connection open.
                    calls.close()
                    return
            try:
                if self.due:
                    self._background.run(partial(self.detach_due, calls))
                self.send(calls)
            except Exception:
                # Without this thread all endpoints would become lost.
                LOGGER.exception("a heartbeat failed; the next one is sent after the interval")

    def _start(self) -> None:
        if self._calls is None:
            calls, wake = self._template.clone(), Signal()
            threading.Thread(
                target=self._run, args=(calls, wake), name="sluiceway-heartbeat", daemon=True
            ).start()
            # Without a thread, the next endpoint tries again.
            self._calls, self._wake = calls, wake

    def _stop_if_unused(self) -> None:
        used = self._endpoints or self._extensions or self._tracked
        if not used and self._calls is not None:
            self._calls = None
            self._interval_s = self._initial_interval_s
            self._outage_since_s = self.interruption = None
            self._failures = 0
            self._wake.set()

    def _begin_outage(self, error: GatewayError) -> None:
        # The traceback's frames would keep abandoned endpoints alive.
        clear_tracebacks(error)
        self.interruption = error
        if self._outage_since_s is None:
            self._outage_since_s = self._monotonic()
        self._failures += 1
        level = logging.WARNING if self._failures == _LOGGED_FAILURES else logging.DEBUG
        LOGGER.log(
            level,
            "heartbeats fail: %s. Reading and writing continue; commits and reports resume when "
            "the gateway answers again",
            str(error).rstrip("."),
        )

    def _end_outage(self) -> None:
        if self._outage_since_s is not None and self._failures >= _LOGGED_FAILURES:
            duration_s = self._monotonic() - self._outage_since_s
            LOGGER.warning("the gateway accepts heartbeats again, after %.1f s", duration_s)
        self._outage_since_s = self.interruption = None
        self._failures = 0


def _detach_at_exit() -> None:
    for (process, *_), session in list(_SESSIONS.items()):
        if not process.forked:
            session.detach_at_exit()


def _batches(reports: Sequence[EndpointReport]) -> Iterator[list[EndpointReport]]:
    """Split reports into batches that fit into one request each."""
    batch: list[EndpointReport] = []
    size = 0
    for report in reports:
        estimate = 450 + 40 * len(report.positions or ())
        # An upper bound: JSON may escape each character of a payload.
        estimate += 2 * len(str(report.payload)) if report.payload else 0
        if batch and size + estimate > _MAX_REQUEST_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(report)
        size += estimate
    if batch:
        yield batch
