"""Liveness: suspect and lost endpoints, by counted heartbeats and a monotonic clock.

What the reaper has seen lies in its memory: after a gap of its own it counts anew, so neither a
gateway's outage nor a change of the replica that leads makes anybody lost. No wall clock is read.

As with silence, what counts is this replica's own monotonic time since it first saw a member
behind; after a gap of its own it counts anew.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

import structlog

from sluiceway_gateway.channels.store import hold_channels
from sluiceway_gateway.clock import Clock
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.db.statements import chunks
from sluiceway_gateway.endpoints import history, liveness_store, session_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.liveness_store import (
    EndpointBeat,
    LostWriter,
    SessionBeat,
    StaleShare,
)
from sluiceway_gateway.endpoints.model import Endpoint, Health, event, next_health, worse_after_ms
from sluiceway_gateway.errors import KafkaUnavailable
from sluiceway_gateway.groups import store as groups_store
from sluiceway_gateway.groups.service import regroup
from sluiceway_gateway.kafka.model import Watermarks


@dataclass(frozen=True, kw_only=True)
class _Unsynced:
    generation: int
    since_s: float


class RebalanceTimeout:
    """Takes their shares from members that keep the others waiting for the heartbeat timeout."""

    def __init__(self, *, database: Database, clock: Clock) -> None:
        """`clock` dates events and judges nothing."""
        self._database = database
        self._clock = clock
        self._seen: dict[str, _Unsynced] = {}

    def judge(self, found: Sequence[StaleShare], now_s: float, *, late_ms: float) -> int:
        """Judge who was found behind, `late_ms` after it was due; return who is waited for no more.

        Raises DatabaseUnavailable.
        """
        self._seen = {each.endpoint: self._sight(each, now_s, late_ms) for each in found}
        over = {
            each.endpoint: each
            for each in found
            if (now_s - self._seen[each.endpoint].since_s) * 1000 >= each.timeout_ms
        }
        parts = chunks(list(over.items()))
        return sum(len(self._write(dict(each))) for each in parts)

    def _sight(self, behind: StaleShare, now_s: float, late_ms: float) -> _Unsynced:
        before = self._seen.get(behind.endpoint)
        moved = before is None or before.generation != behind.generation
        if before is None or moved or late_ms > behind.interval_ms:
            return _Unsynced(generation=behind.generation, since_s=now_s)
        return before

    def _write(self, over: Mapping[str, StaleShare]) -> list[Endpoint]:
        """Take the shares of those that have not taken another since the look."""
        now = self._clock()
        with self._database.write() as tx:
            channels = {each.channel_uid for each in over.values()}
            hold_channels(tx, channels)
            slow = [
                each
                for each in endpoints_store.hold(tx, over).values()
                if each.lives and each.share and each.generation == over[each.id].generation
            ]
            groups_store.release_shares(tx, [each.id for each in slow])
            cause = "its partitions were given to others: it did not let go of them in time"
            lines = [(e.channel_uid, event(e, by="gateway", at=now, cause=cause)) for e in slow]
            history.add(tx, lines)
            endpoints_store.revise(tx, {each.channel_uid for each in slow})
        for each in slow:
            _log.info("a member did not let go of its partitions", endpoint=each.id)
        return slow


_log = structlog.get_logger(__name__)

#: The longest pause between two looks.
_PAUSE_S = 1.0
#: How long to wait before asking Kafka again for the ends of a topic that it did not give.
_RETRY_S = 30.0
#: About how many endpoints are read by one query, and written in one transaction.
_AT_ONCE = 250
#: How many endpoints are judged in one pass. Others that are due wait for the next one.
_PASS = 10_000
#: Looks that tell how long one usually takes.
_USUAL = 10


class Topics(Protocol):
    """The ends of topics."""

    def watermarks_of(
        self, topics: Mapping[str, int]
    ) -> Mapping[str, Mapping[int, Watermarks | None]]:
        """Return the bounds of topics with so many partitions; raises KafkaUnavailable."""


@dataclass(frozen=True, kw_only=True)
class ReapCounts:
    """What one pass found, in endpoints; `pause_s` is how long to wait before the next."""

    judged: int = 0
    """Those whose session has been silent for so long that they may be worse."""
    suspect: int = 0
    lost: int = 0
    overdue: int = 0
    """Members of dynamic groups that are not waited for any longer."""
    pause_s: float = _PAUSE_S


@dataclass(kw_only=True)
class _Silence:
    """Since when a session has been silent. One is kept of each, so it is changed in place."""

    beat: int
    endpoints: int
    interval_ms: int
    timeout_ms: int
    since_s: float
    due_s: float
    """When its endpoints are to be judged: none of them gets worse before."""


class Reaper:
    """Judges the endpoints of one database."""

    def __init__(self, *, database: Database, clock: Clock, monotonic: Callable[[], float]) -> None:
        """`clock` dates events and judges nothing."""
        self._database = database
        self._clock = clock
        self._monotonic = monotonic
        self._silences: dict[str, _Silence] = {}
        self._due_s: float | None = None
        self._looks_s: deque[float] = deque(maxlen=_USUAL)
        self._stood_s = 0.0
        """For how long this process may have stood still in this pass, so that no beat came in."""
        self._overdue = RebalanceTimeout(database=database, clock=clock)

    def run_once(self) -> ReapCounts:
        """Look at all beats once, and write down who is worse than before.

        Raises DatabaseUnavailable.
        """
        now_s = self._monotonic()
        late_ms = 0.0 if self._due_s is None else max(0.0, now_s - self._due_s) * 1000
        with self._database.scan() as tx:
            beats = liveness_store.beats(tx)
            behind = liveness_store.behind(tx)
        self._silences = {each.session: self._silence(each, now_s, late_ms) for each in beats}
        due = sorted(
            (silence.due_s, session)
            for session, silence in self._silences.items()
            if silence.due_s <= now_s
        )
        look_s = self._monotonic() - now_s
        # However many rows there are, it takes about as long as the looks before.
        self._stood_s = max(0.0, look_s - max(self._looks_s, default=look_s))
        self._looks_s.append(look_s)
        looked_at, written = self._judge([session for _, session in due], now_s)
        with self._step():
            overdue = self._overdue.judge(behind, now_s, late_ms=late_ms)
        pause_s = min([_PAUSE_S, *(each.interval_ms / 2000 for each in beats)])
        if looked_at >= _PASS:
            pause_s = 0.0
        # How long the pass took is no lateness, but that it stood still is.
        self._due_s = self._monotonic() - self._stood_s + pause_s
        return ReapCounts(
            judged=looked_at,
            suspect=written.count(Health.SUSPECT),
            lost=written.count(Health.LOST),
            overdue=overdue,
            pause_s=pause_s,
        )

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Do what takes a moment: where it takes longer, the process may have stood still."""
        began_s = self._monotonic()
        yield
        self._stood_s = max(self._stood_s, self._monotonic() - began_s)

    def _silence(self, session: SessionBeat, now_s: float, late_ms: float) -> _Silence:
        """Return since when the session has been silent; attaching is no silence either."""
        before = self._silences.get(session.session)
        first_ms = min(3 * session.interval_ms, session.timeout_ms)
        if (
            before is None
            or before.beat != session.beat
            or before.endpoints < session.endpoints
            or late_ms > session.interval_ms
        ):
            return _Silence(
                beat=session.beat,
                endpoints=session.endpoints,
                interval_ms=session.interval_ms,
                timeout_ms=session.timeout_ms,
                since_s=now_s,
                due_s=now_s + first_ms / 1000,
            )
        if (before.interval_ms, before.timeout_ms) != (session.interval_ms, session.timeout_ms):
            # Their owner has changed them, or those that had the shortest are lost.
            before.interval_ms, before.timeout_ms = session.interval_ms, session.timeout_ms
            before.due_s = min(before.due_s, before.since_s + first_ms / 1000)
        before.endpoints = session.endpoints
        return before

    def _judge(self, due: Sequence[str], now_s: float) -> tuple[int, list[Health]]:
        """Judge the endpoints of these sessions; return how many, and how those are that changed.

        Ends early when a pass has had enough of them.
        """
        looked_at, written = 0, list[Endpoint]()
        for part in self._parts(due):
            with self._step():
                found, changed = self._judge_part(part, now_s)
            looked_at += found
            written += changed
            if looked_at >= _PASS:
                break
        return looked_at, [each.health for each in written]

    def _judge_part(self, part: Sequence[str], now_s: float) -> tuple[int, list[Endpoint]]:
        """Judge the endpoints of few sessions, and note when they are to be judged again."""
        with self._database.scan() as tx:
            pulses = liveness_store.pulses(tx, part)
        again_s = dict.fromkeys(part, math.inf)
        worse: dict[str, tuple[EndpointBeat, Health]] = {}
        written: list[Endpoint] = []
        for each in pulses:
            silence = self._silences[each.session]
            if each.beat != silence.beat:
                again_s[each.session] = now_s
                continue
            silent_ms = (now_s - silence.since_s) * 1000
            bounds = {"interval_ms": each.interval_ms, "timeout_ms": each.timeout_ms}
            health = next_health(each.health, silent_ms=silent_ms, **bounds)
            if health is not each.health:
                worse[each.endpoint] = each, health
            after_ms = worse_after_ms(silent_ms=silent_ms, **bounds)
            if after_ms is not None:
                next_s = silence.since_s + after_ms / 1000
                again_s[each.session] = min(again_s[each.session], next_s)
        for some in chunks(list(worse.values()), _AT_ONCE):
            changed = self._write({each.endpoint: (each, health) for each, health in some})
            written += changed
            for endpoint in {each.endpoint for each, _ in some} - {each.id for each in changed}:
                # It has changed since the look.
                again_s[worse[endpoint][0].session] = now_s
        for session, at_s in again_s.items():
            self._silences[session].due_s = at_s
        return len(pulses), written

    def _parts(self, due: Iterable[str]) -> Iterator[list[str]]:
        """Cut sessions into parts by how many endpoints they have."""
        part: list[str] = []
        weight = 0
        for session in due:
            part.append(session)
            weight += self._silences[session].endpoints
            if weight >= _AT_ONCE:
                yield part
                part, weight = [], 0
        if part:
            yield part

    def _write(self, worse: Mapping[str, tuple[EndpointBeat, Health]]) -> list[Endpoint]:
        """Write down who is worse, but for those who have beaten, or changed, since the look."""
        now = self._clock()
        with self._database.write() as tx:
            beats = session_store.hold(tx, {pulse.session for pulse, _ in worse.values()})
            hold_channels(tx, {pulse.channel_uid for pulse, _ in worse.values()})
            changes = [
                (each, _worse(each, worse[each.id][1], now))
                for each in endpoints_store.hold(tx, worse).values()
                if beats.get(each.session) == worse[each.id][0].beat
                and each.health is worse[each.id][0].health
                and not each.superseded
                and not each.is_finished
            ]
            endpoints_store.save(tx, changes)
            regroup(tx, changes, now=now)
            lines = [
                (each.channel_uid, event(each, by="gateway", at=now, cause="no beat"))
                for _, each in changes
            ]
            history.add(tx, lines)
            endpoints_store.revise(tx, {each.channel_uid for _, each in changes})
        for _, each in changes:
            _log.info("an endpoint is silent", endpoint=each.id, health=str(each.health))
        return [each for _, each in changes]


def _worse(endpoint: Endpoint, health: Health, now: datetime) -> Endpoint:
    """Return the endpoint in this health; who is lost has no place in a dynamic group."""
    if health is Health.LOST and endpoint.is_dynamic and endpoint.lives:
        # Pruned by the time at which it lost its place, so that it may return until then.
        return replace(endpoint, health=health, superseded=True, changed_at=now)
    return replace(endpoint, health=health)


@dataclass(frozen=True, kw_only=True)
class EndCounts:
    """What one pass did, in lost writers; `pause_s` is how long to wait before the next."""

    noted: int = 0
    """Those whose topic's ends were written down."""
    pause_s: float = _PAUSE_S


class LostEnds:
    """Writes down where the topics of lost writers ended.

    A loop of its own: while Kafka is away, it waits for that, and judging must not.
    """

    def __init__(
        self, *, database: Database, topics: Topics, monotonic: Callable[[], float]
    ) -> None:
        self._database = database
        self._topics = topics
        self._monotonic = monotonic
        self._asked_s: dict[str, float] = {}

    def run_once(self) -> EndCounts:
        """Ask for the ends of some topics, outside of any transaction.

        Raises DatabaseUnavailable.
        """
        now_s = self._monotonic()
        with self._database.scan() as tx:
            found = liveness_store.lost_writers(tx)
        waiting = {each.endpoint for each in found}
        self._asked_s = {
            endpoint: at_s
            for endpoint, at_s in self._asked_s.items()
            if endpoint in waiting and now_s - at_s < _RETRY_S
        }
        due = [each for each in found if each.endpoint not in self._asked_s]
        some = due[:_AT_ONCE]
        noted = self._note(some)
        self._asked_s |= dict.fromkeys((each.endpoint for each in some), now_s)
        return EndCounts(noted=noted, pause_s=0.0 if len(some) < len(due) else _PAUSE_S)

    def _note(self, writers: Sequence[LostWriter]) -> int:
        if not writers:
            return 0
        try:
            bounds = self._topics.watermarks_of({each.topic: each.partitions for each in writers})
        except KafkaUnavailable as error:
            _log.warning("kafka is away", reason=str(error), lost_writers=len(writers))
            return 0
        noted: list[LostWriter] = []
        with self._database.write() as tx:
            hold_channels(tx, {each.channel_uid for each in writers})
            for each in writers:
                ends = {
                    partition: marks.end_offset
                    for partition, marks in bounds.get(each.topic, {}).items()
                    if marks is not None
                }
                if len(ends) == each.partitions and liveness_store.note_ends(
                    tx, each.endpoint, ends
                ):
                    noted.append(each)
            endpoints_store.revise(tx, {each.channel_uid for each in noted})
        return len(noted)
