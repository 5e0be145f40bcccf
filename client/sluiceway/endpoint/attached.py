"""Attached endpoints: attach, report by heartbeats, detach."""

import logging
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, Self

from sluiceway.api.arguments import check_seconds
from sluiceway.api.channels import Control
from sluiceway.api.endpoints import (
    UNSUBSCRIBED,
    AttachResult,
    Endpoint,
    EndpointEnd,
    EndpointReport,
    HeartbeatResult,
    Position,
    ReportedPositions,
    Role,
    SparkJob,
    checked_payload,
)
from sluiceway.api.groups import Membership
from sluiceway.api.transport import Backoff
from sluiceway.concurrency import this_process
from sluiceway.endpoint.heartbeat import DetachRequest, HeartbeatSession
from sluiceway.errors import (
    ChannelNotReady,
    EndpointClosed,
    Fenced,
    GatewayError,
    SluicewayError,
    SluicewayTimeout,
    cause_of,
)
from sluiceway.runtime.threads import Background, Signal, call
from sluiceway.tracing import channel_span

__all__ = [
    "ENDPOINT_TRANSITIONS",
    "AttachedEndpoint",
    "EndpointMetrics",
    "EndpointState",
    "StatusCallback",
]

LOGGER = logging.getLogger("sluiceway.endpoint.attached")

StatusCallback = Callable[[tuple[Endpoint, ...]], object]
Progress = Callable[[], tuple[int, Mapping[int, Position]]]
"""Returns the number of records that a reader has returned, and its positions."""

_GONE = frozenset({"channel_not_found", "endpoint_not_found", "uid_mismatch"})
_ABANDONED = "abandoned: garbage-collected without being closed"
_MAX_CAUSE_CHARACTERS = 1000
_FINAL_TIMEOUT_S = 5.0
_MIN_PATIENCE_S = 0.3


class EndpointState(StrEnum):
    """State of an endpoint in the view of its program; heartbeats report those of an open one."""

    NEW = "new"
    """It is not attached yet; if the wait for it is interrupted, it ends once it is."""
    OPENED = "opened"
    """It is attached, and has neither read nor written."""
    STARTED = "started"
    """It has read or written."""
    STOPPED = "stopped"
    """Its end was requested, and the gateway has not accepted it yet; that may be repeated."""
    FAILING = "failing"
    """It has failed, and the gateway has not accepted that yet; it sends no more heartbeats."""
    ENDED = "ended"
    """The gateway has its end, or does not need it, or has refused it when it was closed."""
    REFUSED = "refused"
    """The gateway has refused to attach it, or its end when that was reported later, for good."""


ENDPOINT_TRANSITIONS: Final[Mapping[EndpointState, frozenset[EndpointState]]] = {
    EndpointState.NEW: frozenset(
        {EndpointState.OPENED, EndpointState.ENDED, EndpointState.REFUSED}
    ),
    EndpointState.OPENED: frozenset(
        {EndpointState.STARTED, EndpointState.STOPPED, EndpointState.FAILING, EndpointState.ENDED}
    ),
    EndpointState.STARTED: frozenset(
        {EndpointState.STOPPED, EndpointState.FAILING, EndpointState.ENDED}
    ),
    EndpointState.STOPPED: frozenset(
        {EndpointState.FAILING, EndpointState.ENDED, EndpointState.REFUSED}
    ),
    EndpointState.FAILING: frozenset({EndpointState.ENDED, EndpointState.REFUSED}),
    EndpointState.ENDED: frozenset(),
    EndpointState.REFUSED: frozenset(),
}
"""The transition table."""

_OPEN: Final = frozenset({EndpointState.OPENED, EndpointState.STARTED, EndpointState.STOPPED})


class AttachedEndpoint:
    """One instance of a writer, reader, group member or query at its channel.

    Its session sends heartbeats in another thread. Their results are in `counterparts` and
    `finish_requested`, and `check` raises for an endpoint that has to stop. A fenced endpoint
    never attaches again. An endpoint that was lost, because its process was paused for longer
    than its heartbeat timeout, continues with the next heartbeat unless its place was taken.

    The threads of its program change its `state`, and the session that of an end which it reports
    later. Heartbeats and commits only leave the error by which it has to stop.

    For facades: `attach`, call `record_cycle` with each read or write and `check` before it, then
    `detach` or `fail`. `on_status` adds status callbacks, `subscribe` requests the counterparts,
    `on_result` observes every heartbeat, `metrics.observe` reports positions.
    """

    def __init__(
        self,
        control: Control,
        *,
        channel: str,
        uid: str,
        role: Role,
        membership: Membership | None,
        close_timeout_s: float = 0,
        patience_s: float | None = None,
        interval_s: float | None = None,
        title: str | None = None,
        spark: SparkJob | None = None,
        metrics: "EndpointMetrics | None" = None,
    ) -> None:
        """Describe an endpoint; `title` describes it to people.

        `patience_s` and `interval_s` are its own heartbeat timeout and interval, within the
        channel's. Raises OptionError.
        """
        check_seconds("close_timeout_s", close_timeout_s)
        self._timeout_ms = self._interval_ms = None
        if patience_s is not None:
            check_seconds("patience_s", patience_s, _MIN_PATIENCE_S)
            self._timeout_ms = round(patience_s * 1000)
        if interval_s is not None:
            check_seconds("interval_s", interval_s, _MIN_PATIENCE_S / 3)
            self._interval_ms = round(interval_s * 1000)
        self._close_timeout_s = close_timeout_s
        self.id = uuid.uuid4().hex
        self.channel = channel
        self.uid = uid
        self.role = role
        self.membership = membership
        self._title, self._spark = title, spark
        who = repr(title) if title else membership or self.id[:8]
        self.name = f"the {role} {who} of the channel {channel!r}"
        self.session = HeartbeatSession.of(control)
        self.metrics = metrics or EndpointMetrics(role)
        self.state = EndpointState.NEW
        self.counterparts: tuple[Endpoint, ...] | None = None
        self.finish_requested = False
        self.on_result: Callable[[HeartbeatResult], None] | None = None
        self._subscribed = False
        self._seen_revision: int | None = None
        self._payload: dict[str, Any] | None = None
        self._observers: list[StatusCallback] = []
        self._callbacks: list[StatusCallback] = []
        self._calling = Background()
        self._error: SluicewayError | None = None
        """The error that `check` raises: a lost place, or the refusal of an end reported later."""
        self._cause: str | None = None
        """The cause of its failure, for the thread that attaches it."""
        self.partitions = 0
        """The channel's number of partitions, as of the last heartbeat."""
        self._answered = Signal()
        self._process = this_process()

    def attach(self, timeout_s: float) -> Self:
        """Attach, and wait for new partitions if the group makes the channel grow.

        Raises OptionError, Conflict, ChannelClosed, ChannelNotFound, and ChannelNotReady after
        `timeout_s`. It may be repeated after an error that is not final.
        """
        check_seconds("timeout_s", timeout_s)
        self._cause = None
        group = None if self.membership is None else self.membership.group
        try:
            with channel_span("attach", self.channel, group=group) as span:
                span.set("sluiceway.role", self.role)
                call(partial(self._attach, timeout_s))
        except BaseException as error:
            # An interrupt, unless it was refused: the request goes on in another thread. If a
            # second one comes first, the endpoint ends with the last reference to it.
            self.fail(error)
            raise
        return self

    @property
    def is_open(self) -> bool:
        """Whether it is attached, and has neither ended nor failed."""
        return self.state in _OPEN

    @property
    def payload(self) -> Mapping[str, Any] | None:
        """The payload that its counterparts get with the next heartbeat."""
        return self._payload

    @payload.setter
    def payload(self, payload: Mapping[str, Any] | None) -> None:
        self.check()
        self._payload = None if payload is None else checked_payload(payload)

    @property
    def pristine(self) -> bool:
        """Whether a writer has certainly written nothing.

        Readers ignore a pristine writer that fails. Clear it before the first message is produced.
        """
        return self._detach_request.if_abandoned.ends is not None

    @pristine.setter
    def pristine(self, pristine: bool) -> None:
        self._update_if_abandoned(ends={} if pristine else None)

    def mark_complete(self, *, finished_through: int | None = None) -> None:
        """Record that a reader has read everything, so abandoning it is no failure.

        `finished_through` is the highest number of the writers whose end it waited for. Once the
        reader closes, later ones in its place wait for other writers.
        """
        if "finished_through" not in self.attached.takes:
            finished_through = None
        self._update_if_abandoned(state="closed", cause=None, finished_through=finished_through)

    def mark_incomplete(self) -> None:
        """Record that a reader has something to read again."""
        self._update_if_abandoned(state="error", cause=_ABANDONED, finished_through=None)

    def owns(self, partition: int) -> bool:
        """Whether a partition, existing or added later, is assigned to this endpoint."""
        member = self.membership
        if member is None or member.size is None or member.mode == "broadcast":
            return True
        return partition % member.size == member.index

    def on_status(self, callback: StatusCallback) -> None:
        """Call a user's function with the counterparts, in the background."""
        self.check()
        self._callbacks.append(callback)
        self.subscribe()

    def subscribe(self, observer: StatusCallback | None = None) -> None:
        """Request the counterparts with each heartbeat.

        `observer` gets them in the heartbeat thread, so it must not wait for anything.
        """
        self.check()
        if observer is not None:
            self._observers.append(observer)
        self._subscribed, self._seen_revision = True, None
        self.session.wake()

    def record_cycle(self, records: int) -> None:
        """Count a call that reads or writes; `records` is the total before it."""
        self.metrics.record_cycle(records)
        if self.state is EndpointState.OPENED:
            self._become(EndpointState.STARTED)

    def check(self) -> None:
        """Raise Fenced or EndpointClosed for an endpoint that has to stop."""
        self._process.check(self.name)
        if self._error is not None:
            raise self._error

    def heartbeat_now(self, timeout_s: float = _FINAL_TIMEOUT_S) -> None:
        """Send a heartbeat at once, wait up to `timeout_s` for its result, and `check`."""
        deadline_s = time.monotonic() + timeout_s
        # The first response may belong to a heartbeat that was in flight.
        for _ in range(2):
            self.check()
            self._answered.clear()
            self.session.wake()
            if not self._answered.wait(max(0.0, deadline_s - time.monotonic())):
                break
        self.check()

    def fence(self, error: Fenced) -> None:
        """Record that another instance has taken its place."""
        self._error = error

    def report(self) -> EndpointReport | None:
        """Return its report for the next heartbeat; None once it has ended."""
        state = self.state
        if state not in _OPEN or self._error is not None:
            return None
        counters, positions = self.metrics.heartbeat_fields(self.attached.takes)
        return EndpointReport(
            id=self.id,
            epoch=self.attached.epoch,
            state=state,
            payload=self._payload,
            counters=counters,
            positions=positions,
            seen=self._seen_revision if self._subscribed else UNSUBSCRIBED,
        )

    def on_heartbeat(self, result: HeartbeatResult) -> None:
        """Handle the result of a heartbeat; starts the callbacks."""
        if not self.is_open:
            return
        self.metrics.mark_delivered()
        self.partitions = max(self.partitions, result.partitions or 0)
        if self.on_result is not None:
            self.on_result(result)
        if result.status == "fenced":
            LOGGER.warning("%s is fenced: %s", self.name, result.reason)
            self._error = Fenced(
                f"{self.name} lost its place and has to stop: "
                f"{result.reason or 'it was superseded'}",
                status=409,
            )
        elif result.status == "gone":
            reason = result.reason or "the channel was deleted, or the endpoint was removed."
            self._error = EndpointClosed(
                f"the gateway has no record of {self.name}: {reason} Open the channel again"
            )
        elif result.status == "refused" and self.state is not EndpointState.STOPPED:
            # A heartbeat with the state of a detach request may arrive after it.
            LOGGER.warning("the report of %s is refused: %s", self.name, result.reason)
        counterparts = result.counterparts if self._subscribed else None
        if counterparts is not None:
            self._seen_revision = result.revision
            self.counterparts = counterparts
            for observe in self._observers:
                observe(counterparts)
        # Set after the counterparts: a thread that sees a channel close then sees all its writers.
        self.finish_requested = result.asked == "finish"
        if counterparts is not None and self._callbacks:
            self._calling.run(self._run_callbacks)
        self._answered.set()

    def detach(
        self,
        *,
        cause: str | None = None,
        ends: Mapping[int, int] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Report the end, in error if there is a `cause`. May be repeated.

        After a GatewayError that is not final, such as GatewayUnavailable, it stays attached, and
        the session reports the end once the gateway accepts it, or in a last attempt as the process
        ends. `timeout_s` replaces the grace period as the limit of the request. `ends` are a
        writer's end offsets by partition. Index 0 of a group closes last: it waits for the other
        members, and raises SluicewayTimeout after `close_timeout_s`. Raises Fenced.
        """
        if not self.is_open or self._process.forked:
            if self.state is EndpointState.REFUSED and self._error is not None:
                raise self._error
            return
        if self._error is not None:
            self.end()
            if isinstance(self._error, Fenced):
                raise self._error
            # The gateway has no record of it: there is nothing to detach.
            return
        self._become(EndpointState.STOPPED)
        if cause is not None:
            # A delayed heartbeat with an earlier state would overwrite the error.
            self.session.wait_idle(_FINAL_TIMEOUT_S)
        limit_s = self.session.grace_s if timeout_s is None else timeout_s
        backoff = Backoff(self._close_timeout_s)
        while True:
            try:
                self._send_detach(cause, ends, limit_s)
            except (KeyboardInterrupt, SystemExit):
                # It may have come before the report was complete.
                if self._detach_request.end is not None:
                    self.session.detach_later(self._detach_request)
                raise
            except GatewayError as error:
                if error.code == "members_open":
                    if backoff.wait():
                        continue
                    late = f"its group was open for {self._close_timeout_s:g} s: {error}"
                    call(partial(self._fail, late, ends))
                    raise SluicewayTimeout(f"{self.name} was not closed: {late}") from error
                if not error.is_final:
                    self.session.detach_later(self._detach_request)
                    raise
                self.end()
                if error.code not in _GONE:
                    raise
                LOGGER.warning(
                    "%s is closed; the gateway had no record of it: %s", self.name, error
                )
            else:
                self.end()
            return

    def on_detached(self, refusal: GatewayError | None) -> None:
        """End it after the session's request was accepted, or refused for good."""
        if refusal is None or refusal.code in _GONE:
            self.end()
        else:
            self._error = refusal
            self.end(EndpointState.REFUSED)

    def fail(self, error: BaseException) -> None:
        """Report that an exception ended it, later if the gateway does not accept that now.

        An interrupt does not end the report, but the wait for it.
        """
        if self._process.forked:
            return
        # First: the thread that attaches it looks at the cause once it is open.
        self._cause = cause = cause_of(error)
        if self.is_open:
            call(partial(self._fail, cause, None))

    def end(self, state: EndpointState = EndpointState.ENDED) -> None:
        """Stop its heartbeats, and report nothing: without a report, it becomes lost."""
        self._become(state)
        self.session.unregister(self)

    @contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Report that an exception in the block ended it."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def _attach(self, timeout_s: float) -> None:
        """Attach, and have its end reported if it is garbage-collected."""
        try:
            self.session.register(self)
            # The session's connections stay open while it has endpoints.
            self.calls = self.session.calls
            self.attached = self._request_place(timeout_s)
        except BaseException as error:
            self.session.unregister(self)
            if isinstance(error, GatewayError) and error.is_final:
                self._become(EndpointState.REFUSED)
            raise
        self.partitions = self.attached.connection.partitions
        end = EndpointEnd(uid=self.uid, epoch=self.attached.epoch, state="error", cause=_ABANDONED)
        self._detach_request = DetachRequest(
            name=self.name, channel=self.channel, id=self.id, if_abandoned=end
        )
        self.pristine = self.role == "writer"
        self.session.track(self, self._detach_request)
        self._become(EndpointState.OPENED)
        if not self.is_open:
            # `end` did not wait for it.
            self.session.unregister(self)
            return
        self.session.require_interval(self.attached.heartbeat_interval_ms)
        if self._cause is not None:
            self._fail(self._cause, None)

    def _request_place(self, timeout_s: float) -> AttachResult:
        backoff = Backoff(timeout_s)
        while True:
            try:
                return self.calls.attach(
                    self.channel,
                    uid=self.uid,
                    instance=self.id,
                    session=self.session.id,
                    role=self.role,
                    membership=self.membership,
                    title=self._title,
                    timeout_ms=self._timeout_ms,
                    interval_ms=self._interval_ms,
                    spark=self._spark,
                )
            except ChannelNotReady as error:
                if not error.retriable or not backoff.wait():
                    raise

    def _update_if_abandoned(self, **fields: Any) -> None:
        request = self._detach_request
        request.if_abandoned = replace(request.if_abandoned, **fields)

    def _send_detach(
        self, cause: str | None, ends: Mapping[int, int] | None, timeout_s: float
    ) -> None:
        """Report its end, in error if there is a cause. Raises GatewayError."""
        request, failed = self._detach_request, cause is not None
        counters, positions = self.metrics.heartbeat_fields(self.attached.takes, final=True)
        request.end = end = EndpointEnd(
            uid=self.uid,
            epoch=self.attached.epoch,
            state="error" if failed else "closed",
            cause=cause and cause[:_MAX_CAUSE_CHARACTERS],
            ends=ends,
            counters=counters,
            positions=positions,
            finished_through=None if failed else request.if_abandoned.finished_through,
        )
        self.calls.detach(self.channel, self.id, end, timeout_s=timeout_s)

    def _fail(self, cause: str, ends: Mapping[int, int] | None) -> None:
        """Report a failure; called where no interrupt comes, or it might never be reported."""
        if ends is None:
            ends = self._detach_request.if_abandoned.ends
        self._become(EndpointState.FAILING)
        # As in `detach`.
        self.session.wait_idle(_FINAL_TIMEOUT_S)
        try:
            if self._error is None:
                self._send_detach(cause, ends, _FINAL_TIMEOUT_S)
        except GatewayError as error:
            if not error.is_final:
                LOGGER.warning("the failure of %s is reported later: %s", self.name, error)
                self.session.detach_later(self._detach_request)
                return
            LOGGER.warning("the failure of %s could not be reported: %s", self.name, error)
        self.end()

    def _run_callbacks(self) -> None:
        """Call the users' functions with the latest counterparts."""
        counterparts = self.counterparts
        for callback in list(self._callbacks):
            if counterparts is None or not self.is_open:
                return
            try:
                callback(counterparts)
            except Exception:
                LOGGER.exception("on_status of %s failed", self.name)

    def _become(self, state: EndpointState) -> None:
        """Change the state if the table allows it; otherwise, another thread has ended it."""
        if state in ENDPOINT_TRANSITIONS[self.state]:
            self.state = state


class EndpointMetrics:
    """The records, cycle times and positions that heartbeats report for an endpoint.

    A cycle is the time between two calls that read or write; averages are over the last `cycles`,
    and `kind` is part of their names, which are those of pypz. The heartbeat thread reads `records`
    and `positions`, so they are replaced, never changed.
    """

    def __init__(
        self, role: Role, *, cycles: int = 10, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        reads = role == "reader"
        self.kind = "Read" if reads else "Output"
        self.records = 0
        self.positions: Mapping[int, Position] | None = None
        self._count_name = "receivedRecordCount" if reads else "sentRecordCount"
        self._monotonic = monotonic
        # Time and total records at the end of each cycle; the first one starts the first cycle.
        self._marks: deque[tuple[float, int]] = deque(maxlen=cycles + 1)
        self._progress: weakref.ref[Progress] | None = None
        # The positions known to the gateway, and those of the heartbeat in flight.
        self._delivered: Mapping[int, Position] | None = None
        self._in_flight: Mapping[int, Position] | None = None

    @property
    def elapsed_s(self) -> float:
        """The time since the current cycle began; 0 before the first one."""
        marks = list(self._marks)
        return self._monotonic() - marks[-1][0] if marks else 0.0

    def record_cycle(self, records: int) -> None:
        """Begin a cycle: count a call that reads or writes; `records` is the total before it."""
        self._marks.append((self._monotonic(), records))
        self.records = records

    def observe(self, progress: Progress) -> None:
        """Take records and positions from `progress`, a method called in the heartbeat thread.

        The reference to its object is weak, so an abandoned reader can be garbage-collected.
        """
        self._progress = weakref.WeakMethod(progress)

    def heartbeat_fields(
        self, accepted: Collection[str], *, final: bool = False
    ) -> tuple[dict[str, float], ReportedPositions | None]:
        """Return counters and positions of the next heartbeat, or of the end if `final`.

        A heartbeat has positions only if the gateway lacks them. `accepted` has the optional fields
        that the gateway accepts.
        """
        progress = None if self._progress is None else self._progress()
        if progress is not None:
            self.records, self.positions = progress()
        if not final:
            self._in_flight = self.positions
        positions = None
        changed = final or self.positions != self._delivered
        if changed and self.positions is not None and "positions" in accepted:
            positions = {p: (at.offset, at.records) for p, at in self.positions.items()}
        return self.counters(), positions

    def mark_delivered(self) -> None:
        """Record that the gateway has received the last heartbeat."""
        self._delivered = self._in_flight

    def counters(self) -> dict[str, float]:
        """Return the counters by pypz's names."""
        return {"records": self.records, self._count_name: self.records, **self.averages()}

    def averages(self) -> dict[str, float]:
        """Return the averages by pypz's names; without a finished cycle there are none."""
        marks = list(self._marks)
        cycles = len(marks) - 1
        if cycles < 1:
            return {}
        elapsed_ms = 1000 * (marks[-1][0] - marks[0][0])
        records = max(0, marks[-1][1] - marks[0][1])
        averages = {
            f"averageTimePer{self.kind}CycleMs": round(elapsed_ms / cycles, 3),
            f"averageRecordPer{self.kind}Cycle": round(records / cycles, 3),
        }
        if records:
            averages[f"averageTimePer{self.kind}RecordMs"] = round(elapsed_ms / records, 6)
        return averages
