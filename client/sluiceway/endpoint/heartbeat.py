"""Heartbeats: one thread and one request per interval for all endpoints of a process."""

import logging
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sluiceway.errors import EndpointClosed, GatewayError, GatewayUnavailable
from sluiceway.fork_guard import ForkGuard
from sluiceway.rest.auth import clear_tracebacks
from sluiceway.rest.endpoint_models import HeartbeatReply, HeartbeatResult
from sluiceway.rest.endpoints import EndpointCalls
from sluiceway.rest.parsing import JsonNode

_TIMEOUT_S = 5.0
_CAUSE = "forgotten: the program let go of it without closing it"


class Leaver(Protocol):
    """An endpoint, as far as its farewell needs it; `name` is for people."""

    id: str
    channel: str
    uid: str

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class DetachRequest:
    """What there is to say of an endpoint of which nothing else is left.

    `done`: it is a reader that has read all there was for it to read, which is no failure.
    `pristine`: it is a writer that has handed no message to Kafka.
    """

    name: str
    channel: str
    id: str
    uid: str
    epoch: int
    done: bool = False
    pristine: bool = False

    @classmethod
    def of(cls, leaver: Leaver, epoch: int) -> "DetachRequest":
        """Return that of an endpoint with this epoch."""
        return cls(
            name=leaver.name, channel=leaver.channel, id=leaver.id, uid=leaver.uid, epoch=epoch
        )

    @property
    def body(self) -> dict[str, Any]:
        """How it ended, as it is sent."""
        ending: dict[str, Any] = {"state": "closed"}
        if not self.done:
            ending = {"state": "error", "cause": _CAUSE, "ends": {} if self.pristine else None}
        return {"uid": self.uid, "epoch": self.epoch, **ending}


class AbandonedEndpoints:
    """The endpoints of a session that Python collected while they were open.

    That happens in the middle of whatever some thread does, which may hold any lock. So it is only
    noted then, and told by the thread of the beats.
    """

    def __init__(self) -> None:
        self._noted: deque[DetachRequest] = deque()
        self._minded: dict[str, Any] = {}

    @property
    def any_left(self) -> bool:
        """Whether there is a member that has not left, or one to tell of."""
        return bool(self._minded)

    def mind(self, member: object, farewell: DetachRequest) -> None:
        """Note the farewell when `member` is collected before it is released."""
        minded = ForkGuard().finalize(member, self._noted.append, farewell)
        # A process that ends is silent as a whole, and found lost by that.
        minded.atexit = False
        self._minded[farewell.id] = minded

    def amend(self, id_: str, **known: bool) -> None:
        """Change what the farewell of a member says: `done`, `pristine`."""
        minded = self._minded.get(id_)
        # It lives, as it is its own reader or writer that says so.
        if minded is not None and (kept := minded.detach()) is not None:
            self.mind(kept[0], replace(kept[2][1][0], **known))

    def release(self, id_: str) -> None:
        """Forget about a member, which has come to its end."""
        minded = self._minded.pop(id_, None)
        if minded is not None:
            minded.detach()

    def tell(self, calls: EndpointCalls) -> None:
        """Tell the gateway of those that were noted; with the next beat where it is away."""
        for _ in range(len(self._noted)):
            farewell = self._noted.popleft()
            try:
                calls.detach(farewell.channel, farewell.id, farewell.body, timeout_s=_TIMEOUT_S)
            except GatewayUnavailable:
                self._noted.append(farewell)
                return
            except GatewayError as error:
                if error.code == "members_open":
                    # The first of a group, which closes last.
                    self._noted.append(farewell)
                    continue
                # Fenced, or gone with its channel.
                LOGGER.debug("%s was forgotten, and had ended before: %s", farewell.name, error)
            else:
                if not farewell.done:
                    LOGGER.warning(
                        "%s failed: the program let go of it without closing it. Use `with`, or "
                        "close it; its counterparts were told",
                        farewell.name,
                    )
            self._minded.pop(farewell.id, None)


LOGGER = logging.getLogger("sluiceway.endpoint.heartbeat")

_MOST_REPORTS = 1000
"""In one request; more take several, each a beat of its own."""
_MOST_BYTES = 500_000
"""About half of what a gateway reads of one request by default."""
_FIRST_PAUSE_S = 2.0
_SHORTEST_S, _LONGEST_S = 0.05, 60.0
_SESSIONS: dict[Hashable, "HeartbeatSession"] = {}


class Member(Protocol):
    """An endpoint, as its session knows it."""

    id: str

    def report(self) -> dict[str, Any] | None:
        """Return what a beat says of it; None while it is not attached."""

    def hear(self, heard: HeartbeatResult) -> None:
        """Take the gateway's word to it."""


class Companion(Protocol):
    """What goes along with a session's beats beside how its members stand."""

    def told(self) -> Mapping[str, Any]:
        """Return fields for the body of the next beat; none if there is nothing to tell."""

    def answered(self, answer: JsonNode) -> None:
        """Take the answer to a beat that had such fields."""

    def refused(self, error: GatewayError) -> None:
        """Learn that the gateway does not take what was told; the session asks no more."""


class HeartbeatSession:
    """Beats for its members, from the first that enters until the last has left.

    Members are held weakly: the beat does not keep alive what the program has forgotten, and tells
    the gateway of it. That the gateway is away is written to the log, and is `trouble` once it has
    lasted for `grace_s`.
    """

    def __init__(
        self,
        calls: EndpointCalls,
        *,
        grace_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.grace_s = grace_s
        self._template = calls
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._members: weakref.WeakSet[Member] = weakref.WeakSet()
        self._companions: set[Companion] = set()
        self._forgotten = AbandonedEndpoints()
        self._calls: EndpointCalls | None = None
        self._turn = threading.Lock()
        self._wake = threading.Event()
        self._pause_s = _FIRST_PAUSE_S
        self._beats = 0
        self._away_since_s: float | None = None
        self._failure: GatewayError | None = None

    @classmethod
    def of(cls, calls: EndpointCalls, *, grace_s: float) -> "HeartbeatSession":
        """Return this process's session with the gateway that `calls` speak to.

        A process that was forked has one of its own.
        """
        key = (ForkGuard(), calls.identity, grace_s)
        # No lock, which a fork could find taken: the first that is put there stays.
        return _SESSIONS.setdefault(key, cls(calls, grace_s=grace_s))

    @property
    def calls(self) -> EndpointCalls:
        """The calls to the gateway, for members."""
        calls = self._calls
        if calls is None:
            raise EndpointClosed("this endpoint has left its channel; open a new one")
        return calls

    @property
    def trouble(self) -> GatewayError | None:
        """What has kept the beats from the gateway for longer than the grace; None if nothing."""
        away_since_s = self._away_since_s
        if away_since_s is None or self._monotonic() - away_since_s <= self.grace_s:
            return None
        return self._failure

    @property
    def ids(self) -> set[str]:
        """The ids of its members."""
        with self._lock:
            return {member.id for member in self._members}

    def enter(self, member: Member) -> None:
        """Begin to beat for a member."""
        with self._lock:
            self._members.add(member)
            self._begin()

    def mind(self, member: Member, farewell: DetachRequest) -> None:
        """Tell the gateway that a member failed, if it is collected before it leaves."""
        self._forgotten.mind(member, farewell)

    def excuse(self, member: Member) -> None:
        """Note that a member has read all there is: to let go of it now is to close it."""
        self._forgotten.amend(member.id, done=True)

    def note_pristine(self, member: Member, *, pristine: bool) -> None:
        """Note whether a member has written nothing, for the case that it is collected."""
        self._forgotten.amend(member.id, pristine=pristine)

    def accompany(self, companion: Companion) -> None:
        """Begin to ask a companion what to tell besides, once for each beat; it is kept alive."""
        with self._lock:
            self._companions.add(companion)
            self._begin()

    def part(self, companion: Companion) -> None:
        """Ask a companion no more."""
        with self._lock:
            self._companions.discard(companion)
            self._rest_if_alone()

    def leave(self, member: Member) -> None:
        """Beat no more for a member."""
        self._forgotten.release(member.id)
        with self._lock:
            self._members.discard(member)
            self._rest_if_alone()

    def expect(self, interval_ms: int) -> None:
        """Send the next heartbeat within `interval_ms`."""
        if interval_ms / 1000 < self._pause_s:
            self._pause_s = max(_SHORTEST_S, interval_ms / 1000)
            self._wake.set()

    def hurry(self) -> None:
        """Let the next beat come now."""
        self._wake.set()

    def beat(self, calls: EndpointCalls) -> None:
        """Tell the gateway how the members stand, and them what it says."""
        also, companions = self._told_besides()
        members = list(self._members)
        for first in range(0, len(members) or 1, _MOST_REPORTS):
            told = {member.id: member for member in members[first : first + _MOST_REPORTS]}
            try:
                heard = self._tell(calls, told.values(), {} if first else also)
            except GatewayError as error:
                if also and not first and not isinstance(error, GatewayUnavailable):
                    for companion in companions:
                        companion.refused(error)
                        self.part(companion)
                    return
                self._note_away(error)
                return
            if heard is None:
                continue
            for id_, word in heard.results.items():
                if id_ in told:
                    told[id_].hear(word)
            for companion in () if first else companions:
                companion.answered(heard.body)

    def settle(self, timeout_s: float) -> bool:
        """Wait until no beat is on its way that tells what was so before; False: it still is."""
        settled = self._turn.acquire(timeout=timeout_s)
        if settled:
            self._turn.release()
        return settled

    def _told_besides(self) -> tuple[Mapping[str, Any], list[Companion]]:
        """Return what companions tell, and who told something."""
        also: dict[str, Any] = {}
        telling = []
        for companion in list(self._companions):
            fields = companion.told()
            if fields:
                also |= fields
                telling.append(companion)
        return also, telling

    def _tell(
        self, calls: EndpointCalls, members: Iterable[Member], also: Mapping[str, Any]
    ) -> HeartbeatReply | None:
        with self._turn:
            reports = [report for each in members if (report := each.report()) is not None]
            if not reports and not also:
                return None
            answers: list[HeartbeatReply] = []
            for piece in list(_pieces(reports)) or [[]]:
                self._beats += 1
                rest = {} if answers else also
                timeout_s = max(1.0, self._pause_s)
                answers.append(
                    calls.heartbeat(self.id, self._beats, piece, also=rest, timeout_s=timeout_s)
                )
                # Where another one came before, the next one counts again.
                self._beats = max(self._beats, answers[-1].newest_beat)
        self._note_back()
        self._pause_s = min(_LONGEST_S, max(_SHORTEST_S, answers[-1].next_ms / 1000))
        heard = {id_: word for each in answers for id_, word in each.results.items()}
        return replace(answers[0], results=heard)

    def _run(self, calls: EndpointCalls, wake: threading.Event) -> None:
        while True:
            wake.wait(self._pause_s)
            wake.clear()
            with self._lock:
                self._rest_if_alone()
                if self._calls is not calls:
                    # Not by who leaves: a request under way would leave its connection open.
                    calls.close()
                    return
            try:
                self._forgotten.tell(calls)
                self.beat(calls)
            except Exception:
                # Without this thread all endpoints would be found lost.
                LOGGER.exception("a beat failed; the next one is tried in its turn")

    def _begin(self) -> None:
        if self._calls is None:
            self._calls = self._template.clone()
            self._wake = threading.Event()
            threading.Thread(
                target=self._run,
                args=(self._calls, self._wake),
                name="sluiceway-beat",
                daemon=True,
            ).start()

    def _rest_if_alone(self) -> None:
        busy = self._members or self._companions or self._forgotten.any_left
        if not busy and self._calls is not None:
            self._calls = None
            self._pause_s = _FIRST_PAUSE_S
            self._away_since_s = self._failure = None
            self._wake.set()

    def _note_away(self, error: GatewayError) -> None:
        # Its frames hold the members, which the program may forget meanwhile.
        clear_tracebacks(error)
        self._failure = error
        if self._away_since_s is None:
            self._away_since_s = self._monotonic()
            LOGGER.warning(
                "the gateway takes no beats: %s. Reading and writing go on; commits and reports "
                "are made up for when it is back",
                error,
            )

    def _note_back(self) -> None:
        if self._away_since_s is not None:
            away_s = self._monotonic() - self._away_since_s
            LOGGER.warning("the gateway takes beats again, after %.1f s", away_s)
        self._away_since_s = self._failure = None


def _pieces(reports: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Give the reports in pieces that fit into one request each."""
    piece: list[Mapping[str, Any]] = []
    size = 0
    for each in reports:
        weight = 450 + 40 * len(each.get("positions") or ())
        # A payload is bounded, and is made to JSON once more when it is sent.
        weight += 2 * len(str(each["payload"])) if each.get("payload") else 0
        if piece and size + weight > _MOST_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(each)
        size += weight
    if piece:
        yield piece


__all__ = ["AbandonedEndpoints", "Companion", "DetachRequest", "HeartbeatSession", "Member"]
