"""The handle of an attached endpoint, from attach over heartbeats to detach."""

import logging
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sluiceway.endpoint.heartbeat import DetachRequest, HeartbeatSession
from sluiceway.errors import (
    ChannelNotFound,
    ChannelNotReady,
    Conflict,
    EndpointClosed,
    Fenced,
    GatewayError,
    OptionError,
    SluicewayError,
    SluicewayTimeout,
    cause_of,
)
from sluiceway.fork_guard import ForkGuard
from sluiceway.rest.endpoint_models import (
    AttachResult,
    Endpoint,
    HeartbeatResult,
    Membership,
    Position,
    Role,
    checked_payload,
)
from sluiceway.rest.transport import Backoff

_CYCLES = 10
"""That averages are taken over."""
Look = Callable[[], tuple[int, Mapping[int, Position]]]
"""Says how many records a reader has handed out, and where it is."""
_NAMES = {
    "reader": ("receivedRecordCount", "Read"),
    "writer": ("sentRecordCount", "Output"),
}


class EndpointMetrics:
    """Record counts, cycle times and positions; values that heartbeats read are replaced whole."""

    def __init__(
        self,
        role: str,
        *,
        cycles: int = _CYCLES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.records = 0
        self.positions: Mapping[int, Position] | None = None
        self._count_name, self._kind = _NAMES[role]
        self._monotonic = monotonic
        self._cycles: deque[tuple[float, int]] = deque(maxlen=cycles)
        self._begun: tuple[float, int] | None = None
        self._sums: tuple[float, int, int] = (0.0, 0, 0)
        self._look: weakref.ref[Look] | None = None
        # What the gateway knows of the positions, and what the beat on its way tells.
        self._told: Mapping[int, Position] | None = None
        self._telling: Mapping[int, Position] | None = None

    def turn(self, records: int) -> None:
        """Note a call that reads or writes, and that `records` were moved before it, in all."""
        now_s = self._monotonic()
        if self._begun is not None:
            since_s, before = self._begun
            self._cycles.append((now_s - since_s, max(0, records - before)))
            seconds = sum(each for each, _ in self._cycles)
            self._sums = (seconds, sum(count for _, count in self._cycles), len(self._cycles))
        self._begun = (now_s, records)
        self.records = records

    @property
    def since_last_s(self) -> float:
        """The time since the last call; 0 before the first."""
        return 0.0 if self._begun is None else self._monotonic() - self._begun[0]

    def follow(self, look: Look) -> None:
        """Let `look`, a method, say where a reader is, for as long as there is somebody to ask.

        It is called in the thread of the beats, and not held: what the program has forgotten is
        not kept alive by it.
        """
        self._look = weakref.WeakMethod(look)

    def news(self, takes: Collection[str]) -> dict[str, Any]:
        """Return what the next beat tells; positions where the gateway does not know them yet."""
        self._look_now()
        self._telling = self.positions
        if self._telling == self._told or "positions" not in takes:
            return {"counters": self.counters()}
        return self._all(takes)

    def heard(self) -> None:
        """Note that the gateway has what the last beat told."""
        self._told = self._telling

    def last_word(self, takes: Collection[str]) -> dict[str, Any]:
        """Return all that there is to tell."""
        self._look_now()
        return self._all(takes)

    def counters(self) -> dict[str, float]:
        """Return what beats tell, by pypz's names; averages once there is something to average."""
        seconds, records, cycles = self._sums
        found: dict[str, float] = {"records": self.records, self._count_name: self.records}
        if cycles:
            kind = self._kind
            found[f"averageTimePer{kind}CycleMs"] = round(1000 * seconds / cycles, 3)
            found[f"averageRecordPer{kind}Cycle"] = round(records / cycles, 3)
        if records:
            found[f"averageTimePer{self._kind}RecordMs"] = round(1000 * seconds / records, 6)
        return found

    def _look_now(self) -> None:
        look = None if self._look is None else self._look()
        if look is not None:
            self.records, self.positions = look()

    def _all(self, takes: Collection[str]) -> dict[str, Any]:
        told: dict[str, Any] = {"counters": self.counters()}
        if self.positions is not None and "positions" in takes:
            places = self.positions.items()
            told["positions"] = {str(each): [at.offset, at.records] for each, at in places}
        return told


LOGGER = logging.getLogger("sluiceway.endpoint.handle")

StatusCallback = Callable[[tuple[Endpoint, ...]], object]

_GONE = frozenset({"channel_not_found", "endpoint_not_found", "uid_mismatch"})
_MAX_CAUSE_CHARACTERS = 1000
_LAST_WORD_S = 5.0


class EndpointHandle:
    """A writer or reader that the gateway knows, with an id and an epoch of its own.

    Its session beats for it in another thread; what the gateway says comes to `counterparts`,
    `finish_requested` and `check`. An endpoint that was fenced never attaches again. One that was
    lost, as its process was stopped for longer than the channel's heartbeat timeout, goes on with
    the next heartbeat, if nothing took its place.
    """

    def __init__(
        self,
        session: HeartbeatSession,
        *,
        channel: str,
        uid: str,
        role: Role,
        membership: Membership | None,
        close_timeout_s: float,
    ) -> None:
        if not isinstance(close_timeout_s, int | float) or not 0 <= close_timeout_s <= 86_400:
            raise OptionError(f"close_timeout_s is {close_timeout_s!r}; it takes seconds to 86400")
        self._close_timeout_s = close_timeout_s
        self.id = uuid.uuid4().hex
        self.channel = channel
        self.uid = uid
        self.role = role
        self.membership = membership
        self.session = session
        self.attached: AttachResult
        self.movement = EndpointMetrics(role)
        self.counterparts: tuple[Endpoint, ...] | None = None
        self.finish_requested = False
        self.on_heard: Callable[[HeartbeatResult], None] | None = None
        self._state = "opened"
        self._listening = False
        self._seen: int | None = None
        self._payload: dict[str, Any] | None = None
        self._callbacks: list[StatusCallback] = []
        self._failure: SluicewayError | None = None
        self._present = False
        self._pristine = False
        self._answered = threading.Event()
        self._fork_guard = ForkGuard()

    @classmethod
    def open(
        cls,
        session: HeartbeatSession,
        *,
        channel: str,
        uid: str,
        role: Role,
        membership: Membership | None,
        timeout_s: float,
        close_timeout_s: float,
    ) -> "EndpointHandle":
        """Attach a new instance; where its group makes the channel grow, wait for that.

        Raises Conflict, ChannelClosed, ChannelNotFound, and ChannelNotReady after `timeout_s`.
        """
        made = cls(
            session,
            channel=channel,
            uid=uid,
            role=role,
            membership=membership,
            close_timeout_s=close_timeout_s,
        )
        session.enter(made)
        try:
            made._attach(timeout_s)
        except BaseException:
            session.leave(made)
            raise
        return made

    @property
    def name(self) -> str:
        """Name it for a message."""
        who = str(self.membership) if self.membership else self.id[:8]
        return f"the {self.role} {who} of the channel {self.channel!r}"

    @property
    def present(self) -> bool:
        """Whether it has neither left nor failed yet."""
        return self._present

    @property
    def payload(self) -> Mapping[str, Any] | None:
        """What its counterparts are told with the next beat."""
        return self._payload

    @payload.setter
    def payload(self, payload: Mapping[str, Any] | None) -> None:
        self.check()
        self._payload = None if payload is None else checked_payload(payload)

    @property
    def pristine(self) -> bool:
        """Whether it is certain that nothing was written here.

        A writer that fails then leaves nothing that readers could miss, and says so. Set it when
        the writer is opened, and unset it before the first message is handed to Kafka's client.
        """
        return self._pristine

    @pristine.setter
    def pristine(self, pristine: bool) -> None:
        self._pristine = pristine
        self.session.note_pristine(self, pristine=pristine)

    def owns(self, partition: int) -> bool:
        """Whether a partition, of whenever, is this endpoint's to read."""
        member = self.membership
        if member is None or member.size is None or member.mode == "broadcast":
            return True
        return partition % member.size == member.index

    def listen(self, callback: StatusCallback | None = None) -> None:
        """Ask for the counterparts from now on; `callback` is called in the beat's thread."""
        self.check()
        if callback is not None:
            self._callbacks.append(callback)
        self._listening, self._seen = True, None
        self.session.hurry()

    def start(self, records: int) -> None:
        """Note that work goes on, `records` in all."""
        self.movement.turn(records)
        if self._state == "opened":
            self._state = "started"

    def check(self) -> None:
        """Raise what the gateway said against this endpoint: Fenced, EndpointClosed."""
        self._fork_guard.check(self.name)
        if self._failure is not None:
            raise self._failure

    def inquire(self) -> None:
        """Send a heartbeat at once, wait for the answer, and raise what it says: see `check`.

        A gateway that does not answer for some seconds is waited for no longer.
        """
        # The first answer may be to a heartbeat that was on its way.
        for _ in range(2):
            self.check()
            self._answered.clear()
            self.session.hurry()
            if not self._answered.wait(_LAST_WORD_S):
                break
        self.check()

    def fence(self, error: Fenced) -> None:
        """Note that this endpoint's place was taken."""
        self._failure = error

    def report(self) -> dict[str, Any] | None:
        """Return what a beat says of it."""
        if not self._present or self._failure is not None:
            return None
        told = {
            "id": self.id,
            "epoch": self.attached.epoch,
            "state": self._state,
            "payload": self._payload,
            **self.movement.news(self.attached.takes),
        }
        return told | ({"seen": self._seen} if self._listening else {})

    def hear(self, heard: HeartbeatResult) -> None:
        """Take the answer to a beat; callbacks are called here."""
        if not self._present:
            return
        self.movement.heard()
        if self.on_heard is not None:
            self.on_heard(heard)
        if heard.status == "fenced":
            LOGGER.warning("%s is fenced: %s", self.name, heard.reason)
            self._failure = Fenced(
                f"{self.name} lost its place and has to stop: "
                f"{heard.reason or 'it was superseded'}",
                status=409,
            )
        elif heard.status == "gone":
            self._failure = EndpointClosed(
                f"the gateway does not know {self.name} any more: "
                f"{heard.reason or 'the channel was deleted, or the endpoint closed by somebody'}"
            )
        elif heard.status == "refused":
            LOGGER.warning("the report of %s is refused: %s", self.name, heard.reason)
        news = heard.counterparts if self._listening else None
        if news is not None:
            self._seen = heard.revision
            self.counterparts = news
        # After them: who sees in another thread that a channel closes sees all its writers then.
        self.finish_requested = heard.asked == "finish"
        if news is not None:
            for callback in list(self._callbacks):
                self._call(callback, news)
        self._answered.set()

    def leave(self, *, ends: Mapping[int, int] | None = None) -> None:
        """Report the end. May be repeated, after GatewayUnavailable too, which changed nothing.

        Index 0 of a group waits for the others, so that it closes last. When that takes longer
        than `close_timeout_s`, it ends in error: SluicewayTimeout. Raises Fenced.
        """
        if not self._present or self._fork_guard.forked:
            return
        if self._failure is not None:
            self._part()
            if isinstance(self._failure, Fenced):
                raise self._failure
            # Nobody knows it any more: there is nothing to leave.
            return
        self._state = "stopped"
        pauses = Backoff(self._close_timeout_s)
        while True:
            try:
                self._detach("closed", cause=None, ends=ends, timeout_s=self.session.grace_s)
            except (ChannelNotFound, Conflict) as error:
                if error.code in _GONE:
                    LOGGER.warning(
                        "%s is closed; the gateway knew it no more: %s", self.name, error
                    )
                    self._part()
                    return
                if error.code != "members_open":
                    self._part()
                    raise
                if not pauses.wait():
                    late = f"its group was open for {self._close_timeout_s:g} s: {error}"
                    self._give_up(late, ends)
                    raise SluicewayTimeout(f"{self.name} was not closed: {late}") from error
            else:
                self._part()
                return

    def fail(self, error: BaseException) -> None:
        """Report that an exception ended it, with its public cause.

        That nobody hears it is written to the log.
        """
        if self._present and not self._fork_guard.forked:
            self._give_up(cause_of(error), None)

    def _attach(self, timeout_s: float) -> None:
        pauses = Backoff(timeout_s)
        while True:
            try:
                self.attached = self.session.calls.attach(
                    self.channel,
                    uid=self.uid,
                    instance=self.id,
                    session=self.session.id,
                    role=self.role,
                    membership=self.membership,
                )
            except ChannelNotReady as error:
                if not error.retriable or not pauses.wait():
                    raise
            else:
                self._present = True
                self.session.mind(self, DetachRequest.of(self, self.attached.epoch))
                self.session.expect(self.attached.heartbeat_interval_ms)
                return

    def _detach(
        self, state: str, *, cause: str | None, ends: Mapping[int, int] | None, timeout_s: float
    ) -> None:
        body = {
            "uid": self.uid,
            "epoch": self.attached.epoch,
            "state": state,
            "cause": cause and cause[:_MAX_CAUSE_CHARACTERS],
            "ends": None if ends is None else {str(p): end for p, end in ends.items()},
            **self.movement.last_word(self.attached.takes),
        }
        self.session.calls.detach(self.channel, self.id, body, timeout_s=timeout_s)

    def _give_up(self, cause: str, ends: Mapping[int, int] | None) -> None:
        if ends is None and self._pristine:
            ends = {}
        # A beat that comes after the error, and tells of a state before it, would undo it.
        self._present = False
        self.session.settle(_LAST_WORD_S)
        try:
            if self._failure is None:
                self._detach("error", cause=cause, ends=ends, timeout_s=_LAST_WORD_S)
        except GatewayError as error:
            LOGGER.warning("the gateway was not told that %s failed: %s", self.name, error)
        finally:
            self._part()

    def _part(self) -> None:
        self._present = False
        self.session.leave(self)

    def _call(self, callback: StatusCallback, counterparts: tuple[Endpoint, ...]) -> None:
        try:
            callback(counterparts)
        except Exception:
            LOGGER.exception("on_status of %s failed", self.name)


__all__ = ["EndpointHandle", "EndpointMetrics", "StatusCallback"]
