"""Idle channels: closed, then removed, after their time to live.

Used is a channel that somebody writes or reads, commits to, or connects to, and one whose topic
grows. No call to Kafka is made inside a transaction; while Kafka is away, nothing is closed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import structlog

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel, Phase, sources
from sluiceway_gateway.clock import Clock
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.errors import DatabaseUnavailable, KafkaUnavailable
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.lifecycle.model import idled, is_quiet, watch
from sluiceway_gateway.lifecycle.store import (
    SPARE,
    Usage,
    save_status,
    touch,
    usage,
    usages,
    write_down,
)

_log = structlog.get_logger(__name__)

_PAUSE_S = 5.0
#: By how much a clock has to jump forward to count as set: no pass takes so long between two looks.
_SET = timedelta(seconds=1)
#: How many channels are noted in one transaction.
_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class IdleCounts:
    """What one pass found, in channels; `pause_s` is how long to wait before the next."""

    looked_at: int = 0
    """In Kafka, as nobody seems to use them."""
    closed: int = 0
    removed: int = 0
    changed: int = 0
    """Closed, on their way out, or with another condition."""
    pause_s: float = _PAUSE_S


@dataclass(frozen=True, kw_only=True)
class _Seen:
    ends: Mapping[int, int]
    since_s: float
    """When the topic was first seen like this."""


class TtlReaper:
    """Looks after the channels of one database that nobody uses.

    How far topics have grown lies in its memory: after a change of the replica that leads, they are
    watched anew, which puts off an end by a tenth of the channel's time at most. What a wall clock
    jumps forward, as the monotonic clock tells, is no time without use: it puts off all ends.
    """

    def __init__(
        self, *, database: Database, logs: KafkaAdmin, clock: Clock, monotonic: Callable[[], float]
    ) -> None:
        self._database = database
        self._logs = logs
        self._clock = clock
        self._monotonic = monotonic
        self._seen: dict[str, _Seen] = {}
        self._asked_s: dict[str, float] = {}
        self._apart = self._clocks_apart()

    def run_once(self) -> IdleCounts:
        """Look once at all channels that have a time to be idle; raises DatabaseUnavailable."""
        now = self._clock()
        with self._database.scan() as tx:
            found = usages(tx)
        apart = self._clocks_apart()
        if apart - self._apart > _SET:
            found = self._put_off(found, apart - self._apart)
        self._apart = apart
        self._note_living([each for each in found if each.lives], now)
        quiet = [
            each
            for each in found
            if not each.lives and is_quiet(each.channel, used_at=each.used_at, now=now)
        ]
        uids = {each.channel.uid for each in quiet}
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in uids}
        self._asked_s = {uid: at_s for uid, at_s in self._asked_s.items() if uid in uids}
        looked_at = sum(self._look(each, now) for each in quiet)
        changes = [self._settle(each, now) for each in found]
        phases = [each.phase for each in changes if each is not None]
        return IdleCounts(
            looked_at=looked_at,
            closed=phases.count(Phase.CLOSED),
            removed=phases.count(Phase.DELETING),
            changed=len(phases),
        )

    def _note_living(self, living: list[Usage], now: datetime) -> None:
        """Write down, now and then, that somebody is there: when he is lost, that was the last."""
        due = [each.channel.uid for each in living if each.used_at < now - SPARE]
        for start in range(0, len(due), _AT_ONCE):
            with self._database.write() as tx:
                for uid in due[start : start + _AT_ONCE]:
                    touch(tx, uid, now)

    def _clocks_apart(self) -> timedelta:
        """Return what the wall clock tells more than the monotonic one."""
        return self._clock() - datetime.fromtimestamp(0, UTC) - timedelta(seconds=self._monotonic())

    def _put_off(self, found: list[Usage], by: timedelta) -> list[Usage]:
        """Have all channels be used so much later: return them like that."""
        _log.warning("the clock was set forward: idle channels stay for longer", by=str(by))
        later = [replace(each, used_at=each.used_at + by) for each in found]
        for start in range(0, len(later), _AT_ONCE):
            with self._database.write() as tx:
                for each in later[start : start + _AT_ONCE]:
                    touch(tx, each.channel.uid, each.used_at, spare=timedelta(0))
        return later

    def _look(self, quiet: Usage, now: datetime) -> bool:
        """See whether the topic has grown, if it is time to; that is a use."""
        channel, now_s = quiet.channel, self._monotonic()
        every_s = watch(channel).total_seconds() / 2
        if now_s - self._asked_s.get(channel.uid, float("-inf")) < every_s:
            return False
        self._asked_s[channel.uid] = now_s
        partitions = range(channel.topic.partitions or 0)
        before = self._seen.get(channel.uid)
        try:
            marks = self._logs.watermarks(channel.topic.name, partitions)
            newest = None
            if before is None:
                newest = self._logs.newest(channel.topic.name, partitions)
        except KafkaUnavailable as error:
            _log.warning("kafka is away", reason=str(error), topic=channel.topic.name)
            self._seen.pop(channel.uid, None)
            return True
        ends = {p: mark.end_offset for p, mark in marks.items() if mark is not None}
        if len(ends) < len(partitions):
            self._seen.pop(channel.uid, None)
            return True
        if before is None or before.ends != ends:
            self._seen[channel.uid] = _Seen(ends=ends, since_s=now_s)
            grown_at = now if before is not None else newest
            if grown_at is not None and grown_at > quiet.used_at:
                with self._database.write() as tx:
                    touch(tx, channel.uid, min(grown_at, now), spare=timedelta(0))
        return True

    def _settle(self, found: Usage, now: datetime) -> Channel | None:
        """Write down how the channel stands; None if that is as it was."""
        if self._following(found, now) is found.channel:
            return None
        with self._database.write() as tx:
            held = channels_store.hold(tx, found.channel.name)
            present = None if held is None else usage(tx, found.channel.uid)
            if held is None or present is None:
                return None
            following = self._following(present, now)
            if following is present.channel:
                return None
            if following.phase is present.channel.phase:
                save_status(tx, following, was=present.channel)
                return following
            what = "closed" if following.phase is Phase.CLOSED else "removed"
            since = present.used_at.isoformat(timespec="seconds")
            write_down(tx, held, f"{what}: nobody has used it since {since}", at=now)
            endpoints_store.revise(tx, [held.uid])
            channels_store.save(
                tx, following, was=present.channel, from_phases=sources(following.phase)
            )
        _log.info(f"an idle channel is {what}", channel=held.name, uid=held.uid, used_at=since)
        return following

    def _following(self, found: Usage, now: datetime) -> Channel:
        channel, seen = found.channel, self._seen.get(found.channel.uid)
        watched_s = 0.0 if seen is None else self._monotonic() - seen.since_s
        return idled(
            channel,
            used_at=now if found.lives else found.used_at,
            watched=seen is not None and watched_s >= watch(channel).total_seconds(),
            now=now,
        )


class UsageRecorder:
    """Notes that somebody asks how to reach a channel; once a minute for each channel."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._noted: dict[str, datetime] = {}

    def note(self, channel: Channel) -> None:
        """Write it down, if the channel comes to its end when nobody uses it."""
        now = self._clock()
        before = self._noted.get(channel.uid)
        if channel.spec.idle_ms is None or (before is not None and abs(now - before) < SPARE):
            return
        try:
            with self._database.write() as tx:
                touch(tx, channel.uid, now)
        except DatabaseUnavailable as error:
            # Whoever asks gets the answer all the same; he will attach, commit or write.
            _log.warning("a use is not noted", channel=channel.name, reason=str(error))
            return
        self._noted[channel.uid] = now
