"""Mirror: writes positions to Kafka's group offsets, which the gateway never reads."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.client import log_unavailable
from sluiceway_gateway.core.kafka.model import Cause, Rejection
from sluiceway_gateway.offsets.store import MirroredOffset, mirrored_offsets

_log = structlog.get_logger(__name__)

#: Maximum delay of the offsets in Kafka.
_PAUSE_S = 1.0
#: Pause before a refused group is retried.
_RETRY_S = 15.0
#: Interval at which all positions are read, instead of recent ones only. Replicas' clocks, which
#: date positions, must differ by less.
_FULL_S = 60.0
#: Interval at which all positions are written again. Kafka removes the offsets of groups without
#: members `offsets.retention.minutes` after they were written, a week by default.
_REWRITE_S = 3600.0

_Offsets = dict[tuple[str, int], int]


@dataclass(frozen=True, kw_only=True)
class MirrorCounts:
    """Results of one pass, in Kafka's groups."""

    written: int = 0
    refused: int = 0
    pause_s: float = _PAUSE_S


class Mirror:
    """Writes the positions of mirrored channels to Kafka's group offsets."""

    def __init__(
        self,
        *,
        database: Database,
        kafka: KafkaAdmin,
        prefix: str,
        leads: Callable[[], bool],
        clock: Clock,
        monotonic: Callable[[], float],
    ) -> None:
        """`prefix` precedes the group's name in Kafka; `leads` is `Leader.leads`."""
        self._database = database
        self._kafka = kafka
        self._prefix = prefix
        self._leads = leads
        self._clock = clock
        self._monotonic = monotonic
        self._written: dict[str, _Offsets] = defaultdict(dict)
        self._refused: dict[str, float] = {}
        self._passed_s: float | None = None
        self._full_s: float | None = None
        self._rewritten_s = -math.inf
        self._since: datetime | None = None

    def run_once(self) -> MirrorCounts:
        """Write what has changed since the last pass, hourly everything.

        Raises DatabaseUnavailable.
        """
        now_s = self._monotonic()
        # After a pause another replica may have written, so this one's record is outdated.
        paused = self._passed_s is None or now_s - self._passed_s > _FULL_S
        if paused or now_s - self._rewritten_s >= _REWRITE_S:
            self._written.clear()
            self._full_s = None
            self._rewritten_s = now_s
        self._passed_s = now_s
        full = self._full_s is None or now_s - self._full_s >= _FULL_S
        if full:
            self._full_s = now_s
        with self._database.scan() as tx:
            mirrored = mirrored_offsets(tx, None if full else self._since)
        self._since = self._clock() - timedelta(seconds=_FULL_S)
        changed = self._changed(mirrored)
        if full:
            self._forget_others(mirrored)
        due = {
            group: offsets
            for group, offsets in changed.items()
            if now_s - self._refused.get(group, -_RETRY_S) >= _RETRY_S
        }
        if not due:
            return MirrorCounts()
        if not self._leads():
            # Another replica may have written later positions since these were read.
            self._passed_s = None
            return MirrorCounts()
        try:
            outcomes = self._kafka.commit_offsets(due)
        except KafkaUnavailable as error:
            log_unavailable(_log, error, groups=len(due))
            self._full_s = None
            return MirrorCounts(refused=len(due))
        for group, rejection in outcomes.items():
            self._note(group, due[group], rejection, now_s)
        refused = sum(rejection is not None for rejection in outcomes.values())
        return MirrorCounts(written=len(outcomes) - refused, refused=refused)

    def _changed(self, mirrored: list[MirroredOffset]) -> dict[str, _Offsets]:
        changed: dict[str, _Offsets] = defaultdict(dict)
        for position in mirrored:
            group, partition = self._name(position), (position.topic, position.partition)
            if self._written[group].get(partition) != position.offset:
                changed[group][partition] = position.offset
        return changed

    def _forget_others(self, mirrored: list[MirroredOffset]) -> None:
        """Drop state of groups that no longer exist."""
        there = {
            (self._name(position), position.topic, position.partition) for position in mirrored
        }
        for group, offsets in list(self._written.items()):
            left = {
                partition: at for partition, at in offsets.items() if (group, *partition) in there
            }
            self._written[group] = left
            if not left:
                del self._written[group]

    def _name(self, position: MirroredOffset) -> str:
        """Return the group's name in Kafka."""
        group = self._prefix + position.group
        return group if position.member < 0 else f"{group}-{position.member}"

    def _note(
        self, group: str, offsets: _Offsets, rejection: Rejection | None, now_s: float
    ) -> None:
        if rejection is not None and rejection.cause is Cause.UNAVAILABLE:
            # The group's coordinator is unavailable: retry in the next pass.
            self._full_s = None
            return
        if rejection is None:
            self._written[group] |= offsets
            if self._refused.pop(group, None) is not None:
                _log.info("the group is mirrored again", group=group)
            return
        if group not in self._refused:
            _log.warning(
                "Kafka refuses a group's offsets; the gateway retries. If the group has Kafka "
                "consumers as members, stop them, or set SLUICEWAY_MIRROR_PREFIX",
                group=group,
                cause=str(rejection.cause),
                reason=rejection.message,
            )
        self._refused[group] = now_s
        # Read again in the retry, even if it was committed long ago.
        self._full_s = now_s - _FULL_S + _RETRY_S
