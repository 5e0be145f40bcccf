"""Liveness: suspect and lost endpoints, by counted heartbeats and a monotonic clock.

The reaper remembers, by its own monotonic clock, the time of the last change of each session's
heartbeat number and of each member's share. After a gap between its own passes it restarts the
measurement, so neither an outage of the gateway nor a change of the leader makes an endpoint lost.
It reads no wall clock.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from sluiceway_gateway.channels.store import hold_channels
from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.statements import chunks
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.client import log_unavailable
from sluiceway_gateway.endpoints import liveness_store, session_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.change_store import save_changes
from sluiceway_gateway.endpoints.groups.rebalance_timeout import RebalanceTimeout
from sluiceway_gateway.endpoints.liveness_store import EndpointBeat, LostWriter, SessionBeat
from sluiceway_gateway.endpoints.model import Endpoint, Health, State, next_health, worse_after_ms

_log = structlog.get_logger(__name__)

#: Longest pause between two scans.
_PAUSE_S = 1.0
#: Pause before another request to Kafka for missing end offsets.
_RETRY_S = 30.0
#: Approximate number of endpoints that one query reads and one transaction writes.
_AT_ONCE = 250
#: Recent scans from which the usual duration is computed.
_USUAL = 10


@dataclass(frozen=True, kw_only=True)
class ReapCounts:
    """Endpoints that one pass evaluated; `pause_s` is the time until the next pass."""

    evaluated: int = 0
    """Endpoints of sessions whose silence was long enough for an evaluation."""
    suspect: int = 0
    lost: int = 0
    overdue: int = 0
    """Members of dynamic groups whose shares were released."""
    pause_s: float = _PAUSE_S


@dataclass(kw_only=True)
class _Silence:
    """The silence of a session. Mutable for speed, because there is one per session."""

    beat: int
    endpoints: int
    interval_ms: int
    timeout_ms: int
    since_s: float
    due_s: float
    """The time at which its endpoints are evaluated; their health does not change before."""


class Reaper:
    """Evaluates the health of all endpoints."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        monotonic: Callable[[], float],
        pass_endpoints: int = 10_000,
    ) -> None:
        """`clock` only dates events.

        About `pass_endpoints` are evaluated in one pass; others wait for the next pass.
        """
        self._database = database
        self._clock = clock
        self._monotonic = monotonic
        self._pass_endpoints = pass_endpoints
        self._silences: dict[str, _Silence] = {}
        self._due_s: float | None = None
        self._scans_s: deque[float] = deque(maxlen=_USUAL)
        self._stalled_s = 0.0
        """Time for which the process may have been stopped in this pass."""
        self._rebalance_timeout = RebalanceTimeout(database=database, clock=clock)

    def run_once(self) -> ReapCounts:
        """Scan all sessions once, and save endpoints with worse health.

        Raises DatabaseUnavailable.
        """
        now_s = self._monotonic()
        late_ms = 0.0 if self._due_s is None else max(0.0, now_s - self._due_s) * 1000
        with self._database.scan() as tx:
            sessions = liveness_store.session_beats(tx)
            stale = liveness_store.stale_shares(tx)
        self._silences = {beat.session: self._silence(beat, now_s, late_ms) for beat in sessions}
        due = sorted(
            (silence.due_s, session)
            for session, silence in self._silences.items()
            if silence.due_s <= now_s
        )
        scan_s = self._monotonic() - now_s
        # Assume that a scan takes as long as recent ones.
        self._stalled_s = max(0.0, scan_s - max(self._scans_s, default=scan_s))
        self._scans_s.append(scan_s)
        evaluated, saved = self._evaluate([session for _, session in due], now_s)
        with self._step():
            overdue = self._rebalance_timeout.release(stale, now_s, late_ms=late_ms)
        pause_s = min([_PAUSE_S, *(beat.interval_ms / 2000 for beat in sessions)])
        if evaluated >= self._pass_endpoints:
            pause_s = 0.0
        # The duration of a pass does not count as delay, unless the process was stopped.
        self._due_s = self._monotonic() - self._stalled_s + pause_s
        return ReapCounts(
            evaluated=evaluated,
            suspect=saved.count(Health.SUSPECT),
            lost=saved.count(Health.LOST),
            overdue=overdue,
            pause_s=pause_s,
        )

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Measure a short step. If it takes long, the process may have been stopped."""
        began_s = self._monotonic()
        yield
        self._stalled_s = max(self._stalled_s, self._monotonic() - began_s)

    def _silence(self, session: SessionBeat, now_s: float, late_ms: float) -> _Silence:
        """Return the silence of a session. An attach ends it like a heartbeat."""
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
            # The channel was changed, or the endpoints with the shortest times are lost.
            before.interval_ms, before.timeout_ms = session.interval_ms, session.timeout_ms
            before.due_s = min(before.due_s, before.since_s + first_ms / 1000)
        before.endpoints = session.endpoints
        return before

    def _evaluate(self, due: Sequence[str], now_s: float) -> tuple[int, list[Health]]:
        """Evaluate the endpoints of these sessions, as many as fit into a pass.

        Returns their number, and the health of those that changed.
        """
        evaluated, saved = 0, list[Endpoint]()
        for part in self._parts(due):
            with self._step():
                count, changed = self._evaluate_part(part, now_s)
            evaluated += count
            saved += changed
            if evaluated >= self._pass_endpoints:
                break
        return evaluated, [endpoint.health for endpoint in saved]

    def _evaluate_part(self, part: Sequence[str], now_s: float) -> tuple[int, list[Endpoint]]:
        """Evaluate the endpoints of a few sessions, and set when they are due again."""
        with self._database.scan() as tx:
            beats = liveness_store.endpoint_beats(tx, part)
        again_s = dict.fromkeys(part, math.inf)
        worse: dict[str, tuple[EndpointBeat, Health]] = {}
        saved: list[Endpoint] = []
        for beat in beats:
            silence = self._silences[beat.session]
            if beat.beat != silence.beat:
                again_s[beat.session] = now_s
                continue
            silent_ms = (now_s - silence.since_s) * 1000
            bounds = {"interval_ms": beat.interval_ms, "timeout_ms": beat.timeout_ms}
            health = next_health(beat.health, silent_ms=silent_ms, **bounds)
            if health is not beat.health:
                worse[beat.endpoint] = beat, health
            after_ms = worse_after_ms(silent_ms=silent_ms, **bounds)
            if after_ms is not None:
                next_s = silence.since_s + after_ms / 1000
                again_s[beat.session] = min(again_s[beat.session], next_s)
        for chunk in chunks(list(worse.values()), _AT_ONCE):
            changed = self._write({beat.endpoint: (beat, health) for beat, health in chunk})
            saved += changed
            for id_ in {beat.endpoint for beat, _ in chunk} - {endpoint.id for endpoint in changed}:
                # Changed since the scan.
                again_s[worse[id_][0].session] = now_s
        for session, at_s in again_s.items():
            self._silences[session].due_s = at_s
        return len(beats), saved

    def _parts(self, due: Iterable[str]) -> Iterator[list[str]]:
        """Split sessions into parts by their numbers of endpoints."""
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
        """Save worse health, except of endpoints with a heartbeat or a change since the scan."""
        now = self._clock()
        with self._database.write() as tx:
            numbers = session_store.hold(tx, {beat.session for beat, _ in worse.values()})
            hold_channels(tx, {beat.channel_uid for beat, _ in worse.values()})
            changes = [
                (endpoint, _worse(endpoint, worse[endpoint.id][1], now))
                for endpoint in endpoints_store.hold(tx, worse).values()
                if numbers.get(endpoint.session) == worse[endpoint.id][0].beat
                and endpoint.health is worse[endpoint.id][0].health
                and not endpoint.superseded
                and not endpoint.is_finished
            ]
            save_changes(tx, changes, by="gateway", now=now, cause="no heartbeat")
        for _, endpoint in changes:
            _log.info("an endpoint is silent", endpoint=endpoint.id, health=str(endpoint.health))
        return [endpoint for _, endpoint in changes]


def _worse(endpoint: Endpoint, health: Health, now: datetime) -> Endpoint:
    """Return the endpoint with this health; a lost member of a dynamic group loses its place."""
    if health is not Health.LOST or endpoint.state is State.ERROR:
        return replace(endpoint, health=health)
    superseded = endpoint.superseded or (endpoint.is_dynamic and endpoint.lives)
    # For pruning, and for problems, which expire.
    return replace(endpoint, health=health, superseded=superseded, changed_at=now)


@dataclass(frozen=True, kw_only=True)
class EndCounts:
    """Lost writers that one pass handled; `pause_s` is the time until the next pass."""

    noted: int = 0
    """Writers whose topics' ends were saved."""
    pause_s: float = _PAUSE_S


class LostEnds:
    """Saves the end offsets of the topics of lost writers.

    Separate from the reaper, which must not wait for Kafka.
    """

    def __init__(
        self, *, database: Database, kafka: KafkaAdmin, monotonic: Callable[[], float]
    ) -> None:
        self._database = database
        self._kafka = kafka
        self._monotonic = monotonic
        self._requested_s: dict[str, float] = {}

    def run_once(self) -> EndCounts:
        """Read the ends of some topics, outside of transactions.

        Raises DatabaseUnavailable.
        """
        now_s = self._monotonic()
        with self._database.scan() as tx:
            lost = liveness_store.lost_writers(tx)
        waiting = {writer.endpoint for writer in lost}
        self._requested_s = {
            endpoint: at_s
            for endpoint, at_s in self._requested_s.items()
            if endpoint in waiting and now_s - at_s < _RETRY_S
        }
        due = [writer for writer in lost if writer.endpoint not in self._requested_s]
        writers = due[:_AT_ONCE]
        noted = self._save(writers)
        self._requested_s |= dict.fromkeys((writer.endpoint for writer in writers), now_s)
        return EndCounts(noted=noted, pause_s=0.0 if len(writers) < len(due) else _PAUSE_S)

    def _save(self, writers: Sequence[LostWriter]) -> int:
        if not writers:
            return 0
        try:
            bounds = self._kafka.watermarks_of(
                {writer.topic: writer.partitions for writer in writers}
            )
        except KafkaUnavailable as error:
            log_unavailable(_log, error, lost_writers=len(writers))
            return 0
        noted: list[LostWriter] = []
        with self._database.write() as tx:
            hold_channels(tx, {writer.channel_uid for writer in writers})
            for writer in writers:
                ends = {
                    partition: marks.end_offset
                    for partition, marks in bounds.get(writer.topic, {}).items()
                    if marks is not None
                }
                if len(ends) == writer.partitions and liveness_store.save_lost_ends(
                    tx, writer, ends
                ):
                    noted.append(writer)
            endpoints_store.revise(tx, {writer.channel_uid for writer in noted})
        return len(noted)
