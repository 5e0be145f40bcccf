"""Judging who has fallen silent, by counted beats and a clock that only goes forward.

What the reaper has seen lies in its memory: after a gap of its own it counts anew, so neither a
gateway's outage nor a change of the replica that leads makes anybody lost. No wall clock is read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from sluiceway_gateway.domain.endpoint import Endpoint, Health, event, judged
from sluiceway_gateway.domain.errors import KafkaUnavailable
from sluiceway_gateway.services.clock import Clock
from sluiceway_gateway.services.overdue import Overdue
from sluiceway_gateway.services.ports import Topics
from sluiceway_gateway.services.sharing import regroup
from sluiceway_gateway.store import endpoints, history, sessions
from sluiceway_gateway.store.channels import hold_channels
from sluiceway_gateway.store.engine import Database
from sluiceway_gateway.store.reaped import LostWriter, Pulse, note_ends, sight

_log = structlog.get_logger(__name__)

#: The longest pause between two looks.
_PAUSE_S = 1.0
#: How long to wait before asking Kafka again for the ends of a topic that it did not give.
_RETRY_S = 30.0


@dataclass(frozen=True, kw_only=True)
class ReapCounts:
    """What one pass found, in endpoints; `pause_s` is how long to wait before the next."""

    judged: int = 0
    suspect: int = 0
    lost: int = 0
    ends: int = 0
    """Lost writers whose topic's ends were written down."""
    overdue: int = 0
    """Members of dynamic groups that are not waited for any longer."""
    pause_s: float = _PAUSE_S


@dataclass(frozen=True, kw_only=True)
class _Seen:
    beat: int
    since_s: float


class Reaper:
    """Judges the endpoints of one database."""

    def __init__(
        self,
        *,
        database: Database,
        topics: Topics,
        clock: Clock,
        monotonic: Callable[[], float],
    ) -> None:
        """`clock` dates events and judges nothing."""
        self._database = database
        self._topics = topics
        self._clock = clock
        self._monotonic = monotonic
        self._seen: dict[str, _Seen] = {}
        self._due_s: float | None = None
        self._asked_s: dict[str, float] = {}
        self._overdue = Overdue(database=database, clock=clock)

    def run_once(self) -> ReapCounts:
        """Look at all beats once, and write down who is worse than before.

        Raises DatabaseUnavailable.
        """
        now_s = self._monotonic()
        with self._database.read() as tx:
            seen = sight(tx)
        found = seen.pulses
        late_ms = 0.0 if self._due_s is None else (now_s - self._due_s) * 1000
        self._seen = {each.endpoint: self._sight(each, now_s, late_ms) for each in found}
        pause_s = min([_PAUSE_S, *(each.interval_ms / 2000 for each in found)])
        self._due_s = now_s + pause_s
        worse = {
            each.endpoint: (each, health)
            for each in found
            if (health := self._judged(each, now_s)) is not each.health
        }
        written = self._write(worse) if worse else []
        return ReapCounts(
            judged=len(found),
            suspect=written.count(Health.SUSPECT),
            lost=written.count(Health.LOST),
            ends=self._note_ends(seen.lost_writers, now_s),
            overdue=self._overdue.judge(seen.behind, now_s, late_ms=late_ms),
            pause_s=0.0 if Health.LOST in written else pause_s,
        )

    def _sight(self, pulse: Pulse, now_s: float, late_ms: float) -> _Seen:
        before = self._seen.get(pulse.endpoint)
        if before is None or before.beat != pulse.beat or late_ms > pulse.interval_ms:
            return _Seen(beat=pulse.beat, since_s=now_s)
        return before

    def _judged(self, pulse: Pulse, now_s: float) -> Health:
        return judged(
            pulse.health,
            silent_ms=(now_s - self._seen[pulse.endpoint].since_s) * 1000,
            interval_ms=pulse.interval_ms,
            patience_ms=pulse.patience_ms,
        )

    def _write(self, worse: Mapping[str, tuple[Pulse, Health]]) -> list[Health]:
        """Write down who is worse, but for those who have beaten, or changed, since the look."""
        now = self._clock()
        with self._database.write() as tx:
            beats = sessions.hold(tx, {pulse.session for pulse, _ in worse.values()})
            hold_channels(tx, {pulse.channel_uid for pulse, _ in worse.values()})
            changes = [
                (each, _worse(each, worse[each.id][1], now))
                for each in endpoints.hold(tx, worse).values()
                if beats.get(each.session) == worse[each.id][0].beat
                and each.health is worse[each.id][0].health
                and not each.superseded
                and not each.is_finished
            ]
            endpoints.save(tx, changes)
            regroup(tx, changes, now=now)
            lines = [
                (each.channel_uid, event(each, by="gateway", at=now, cause="no beat"))
                for _, each in changes
            ]
            history.add(tx, lines)
            endpoints.revise(tx, {each.channel_uid for _, each in changes})
        for _, each in changes:
            _log.info("an endpoint is silent", endpoint=each.id, health=str(each.health))
        return [each.health for _, each in changes]

    def _note_ends(self, unfinished: list[LostWriter], now_s: float) -> int:
        """Write down where the topics of lost writers end, outside of any transaction."""
        due = [
            each
            for each in unfinished
            if now_s - self._asked_s.get(each.endpoint, -_RETRY_S) >= _RETRY_S
        ]
        before, self._asked_s = self._asked_s, dict.fromkeys((each.endpoint for each in due), now_s)
        for each in unfinished:
            self._asked_s.setdefault(each.endpoint, before.get(each.endpoint, now_s))
        noted = 0
        for each in due:
            try:
                bounds = self._topics.watermarks(each.topic, range(each.partitions))
            except KafkaUnavailable as error:
                _log.warning("kafka is away", reason=str(error), topic=each.topic)
                return noted
            ends = {
                partition: marks.end_offset
                for partition, marks in bounds.items()
                if marks is not None
            }
            if len(ends) < each.partitions:
                continue
            with self._database.write() as tx:
                hold_channels(tx, [each.channel_uid])
                if note_ends(tx, each.endpoint, ends):
                    endpoints.revise(tx, [each.channel_uid])
                    noted += 1
        return noted


def _worse(endpoint: Endpoint, health: Health, now: datetime) -> Endpoint:
    """Return the endpoint in this health; who is lost has no place in a dynamic group."""
    if health is Health.LOST and endpoint.is_dynamic and endpoint.lives:
        # Pruned by the time at which it lost its place, so that it may return until then.
        return replace(endpoint, health=health, superseded=True, changed_at=now)
    return replace(endpoint, health=health)
