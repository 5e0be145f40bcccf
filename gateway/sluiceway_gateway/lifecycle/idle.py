"""Idle channels: closed, then deleted, after the idle TTL.

Open endpoints, commits, connections and new messages in the topic are uses. No transaction is open
during a call to Kafka, and no channel is closed while Kafka is unavailable.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

import structlog

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.audited_fields import fields_of
from sluiceway_gateway.channels.change import deleted
from sluiceway_gateway.channels.model import Channel, Phase, sources
from sluiceway_gateway.channels.store import record_use
from sluiceway_gateway.channels.usage import idle_ttl, use_interval
from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.clock import Clock, clocks_apart
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.statements import chunks
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin, require_watermarks
from sluiceway_gateway.core.kafka.client import log_unavailable
from sluiceway_gateway.core.passes import run_steps
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.change_store import add_events
from sluiceway_gateway.endpoints.model import Event
from sluiceway_gateway.lifecycle.model import closed
from sluiceway_gateway.lifecycle.store import LastUse, last_use, last_uses

_log = structlog.get_logger(__name__)

_PAUSE_S = 5.0
#: Larger jumps of the wall clock mean that it was set forward.
_CLOCK_JUMP = timedelta(seconds=1)
#: Uses saved in one transaction.
_BATCH_SIZE = 500
#: Type of the condition.
_IDLE = "Idle"
_LONGEST_WATCH = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class IdleCounts:
    """Channels that one pass handled; `pause_s` is the time until the next pass."""

    checked: int = 0
    """Unused ones, whose topics were checked."""
    closed: int = 0
    deleted: int = 0
    changed: int = 0
    """Closed, deleted, or with another condition."""
    pause_s: float = _PAUSE_S


@dataclass(frozen=True, kw_only=True)
class _TopicEnds:
    ends: Mapping[int, int]
    since_s: float
    """Time at which these ends were first observed."""


class TtlReaper:
    """Closes and deletes idle channels.

    End offsets of topics are kept in memory. A new leader starts to watch topics again, which
    delays a close by at most a tenth of the idle TTL. A forward jump of the wall clock, compared
    with the monotonic clock, does not count as idle time: it delays all closes by the same time.
    """

    def __init__(
        self, *, database: Database, kafka: KafkaAdmin, clock: Clock, monotonic: Callable[[], float]
    ) -> None:
        self._database = database
        self._kafka = kafka
        self._clock = clock
        self._monotonic = monotonic
        self._seen: dict[str, _TopicEnds] = {}
        self._checked_s: dict[str, float] = {}
        self._apart = clocks_apart(self._clock, self._monotonic)

    def run_once(self) -> IdleCounts:
        """Check each channel with an idle TTL once; raises DatabaseUnavailable."""
        now = self._clock()
        with self._database.scan() as tx:
            uses = last_uses(tx)
        apart = clocks_apart(self._clock, self._monotonic)
        if apart - self._apart > _CLOCK_JUMP:
            uses = self._postpone(uses, apart - self._apart)
        self._apart = apart
        self._record(
            [
                replace(use, used_at=now)
                for use in uses
                if use.lives and use.used_at < now - use_interval(use.channel)
            ]
        )
        quiet = [
            use
            for use in uses
            if not use.lives and is_quiet(use.channel, used_at=use.used_at, now=now)
        ]
        uids = {use.channel.uid for use in quiet}
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in uids}
        self._checked_s = {uid: at_s for uid, at_s in self._checked_s.items() if uid in uids}

        def handle(use: LastUse) -> tuple[bool, Channel | None]:
            is_checked = use.channel.uid in uids and self._check_topic(use, now)
            return is_checked, self._update(use, now)

        results = run_steps(partial(handle, use) for use in uses)
        checked = sum(is_checked for is_checked, _ in results)
        phases = [changed.phase for _, changed in results if changed is not None]
        return IdleCounts(
            checked=checked,
            closed=phases.count(Phase.CLOSED),
            deleted=phases.count(Phase.DELETING),
            changed=len(phases),
        )

    def _record(self, uses: list[LastUse]) -> None:
        for chunk in chunks(uses, _BATCH_SIZE):
            with self._database.write() as tx:
                for use in chunk:
                    record_use(tx, use.channel.uid, use.used_at)

    def _postpone(self, uses: list[LastUse], by: timedelta) -> list[LastUse]:
        """Move all last uses forward, and return them."""
        _log.warning("the clock was set forward; idle channels are kept for longer", by=str(by))
        later = [replace(use, used_at=use.used_at + by) for use in uses]
        self._record(later)
        return later

    def _check_topic(self, quiet: LastUse, now: datetime) -> bool:
        """Save a use if the topic has grown; returns whether the check was due.

        It is due twice in a watch period, and right before the channel is closed or deleted.
        """
        channel, now_s = quiet.channel, self._monotonic()
        every_s = watch_period(channel).total_seconds() / 2
        is_ending = self._updated(quiet, now).phase is not channel.phase
        if not is_ending and now_s - self._checked_s.get(channel.uid, float("-inf")) < every_s:
            return False
        self._checked_s[channel.uid] = now_s
        partitions = range(channel.topic.partitions or 0)
        before = self._seen.get(channel.uid)
        try:
            bounds = require_watermarks(self._kafka, channel.topic.name, len(partitions))
            grown_at: datetime | None = now
            if before is None:
                grown_at = self._kafka.newest(channel.topic.name, partitions)
        except KafkaUnavailable as error:
            log_unavailable(_log, error, topic=channel.topic.name)
            self._seen.pop(channel.uid, None)
            return True
        ends = {partition: marks.end_offset for partition, marks in bounds.items()}
        if before is None or before.ends != ends:
            self._seen[channel.uid] = _TopicEnds(ends=ends, since_s=now_s)
            if grown_at is not None and grown_at > quiet.used_at:
                with self._database.write() as tx:
                    record_use(tx, channel.uid, min(grown_at, now))
        return True

    def _update(self, use: LastUse, now: datetime) -> Channel | None:
        """Save the channel's new status; None if nothing changed."""
        if self._updated(use, now) is use.channel:
            return None
        with self._database.write() as tx:
            held = channels_store.hold(tx, use.channel.name)
            present = None if held is None else last_use(tx, use.channel.uid)
            if held is None or present is None:
                return None
            updated = self._updated(present, now)
            if updated is present.channel:
                return None
            if updated.phase is present.channel.phase:
                # Without waking the reconciler, because nothing changes in Kafka.
                channels_store.replace_row(tx, updated, was=present.channel)
                return updated
            what = "closed" if updated.phase is Phase.CLOSED else "deleted"
            since = present.used_at.isoformat(timespec="seconds")
            cause = f"{what}: not used since {since}"
            add_events(tx, [Event(channel_uid=held.uid, at=now, cause=cause, by="gateway")])
            closes = updated.phase is Phase.CLOSED
            audit_store.add(
                tx,
                updated,
                AuditedAction.CLOSE if closes else AuditedAction.DELETE,
                by=None,
                at=now,
                reason=cause,
                old=fields_of(present.channel),
                new=fields_of(updated),
            )
            endpoints_store.revise(tx, [held.uid])
            channels_store.save(
                tx, updated, was=present.channel, from_phases=sources(updated.phase)
            )
        _log.info(f"an idle channel is {what}", channel=held.name, uid=held.uid, used_at=since)
        return updated

    def _updated(self, use: LastUse, now: datetime) -> Channel:
        channel, seen = use.channel, self._seen.get(use.channel.uid)
        watched_s = 0.0 if seen is None else self._monotonic() - seen.since_s
        return apply_idle_ttl(
            channel,
            used_at=now if use.lives else use.used_at,
            watched=seen is not None and watched_s >= watch_period(channel).total_seconds(),
            now=now,
        )


def watch_period(channel: Channel) -> timedelta:
    """Return the time for which the topic must not grow before the channel is closed or deleted."""
    return min(idle_ttl(channel) / 10, _LONGEST_WATCH)


def is_quiet(channel: Channel, *, used_at: datetime, now: datetime) -> bool:
    """Return whether half the idle TTL has passed without use; the topic is checked then."""
    return now - used_at >= idle_ttl(channel) / 2


def apply_idle_ttl(channel: Channel, *, used_at: datetime, watched: bool, now: datetime) -> Channel:
    """Return the channel with its idle TTL applied, or itself if nothing changed.

    It is closed after the limit, even with unread records, and deleted after the same time again;
    both only if its topic was `watched`. Its condition `Idle` announces both.
    """
    idle = idle_ttl(channel)
    closes_at = used_at + idle
    if now < closes_at:
        return _announced(channel, *_before(channel, used_at, now), now=now)
    before = channel.condition(_IDLE)
    since = before.last_transition_at if before and before.status == "True" else now
    deleted_at = max(since, closes_at) + idle
    reason, message = "Unused", _remains(channel, used_at, deleted_at)
    if channel.phase is Phase.CLOSED:
        if watched and now >= deleted_at:
            return deleted(channel, keep_topic=False, now=now)
        return _announced(channel, "True", reason, message, now=now)
    if not watched:
        return _announced(channel, *_before(channel, used_at, now), now=now)
    shut = closed(
        channel, reason=_IDLE, message="The channel was closed because it was not used.", now=now
    )
    return shut.with_condition(_IDLE, "True", reason, message, now)


def _before(
    channel: Channel, used_at: datetime, now: datetime
) -> tuple[Literal["False"], str, str]:
    idle, is_closed = idle_ttl(channel), channel.phase is Phase.CLOSED
    end = _deletion(channel)
    if not is_quiet(channel, used_at=used_at, now=now):
        span = _span(2 * idle if is_closed else idle)
        steps = end if is_closed else f"closed, and after the same time again {end}"
        return "False", "InUse", f"The channel is in use. After {span} without use it is {steps}."
    if is_closed:
        return "False", "Quiet", _remains(channel, used_at, used_at + 2 * idle)
    return (
        "False",
        "Quiet",
        f"The channel has not been used since {_shown(used_at)}: it is closed at "
        f"{_shown(used_at + idle)}, and {end} {_span(idle)} later, unless it is used.",
    )


def _remains(channel: Channel, used_at: datetime, deleted_at: datetime) -> str:
    return (
        f"The channel has not been used since {_shown(used_at)}: it is {_deletion(channel)} at "
        f"{_shown(deleted_at)}, unless it is read, or spec.idle_ms is changed."
    )


def _deletion(channel: Channel) -> str:
    return "deleted without its topic" if channel.adopted else "deleted with its records"


def _announced(
    channel: Channel, status: Literal["True", "False"], reason: str, message: str, *, now: datetime
) -> Channel:
    updated = channel.with_condition(_IDLE, status, reason, message, now)
    return channel if updated == channel else replace(updated, revision=channel.revision + 1)


def _span(time: timedelta) -> str:
    for unit, seconds in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        count, rest = divmod(time.total_seconds(), seconds)
        if count > 1 and not rest:
            return f"{count:,.0f} {unit}"
    return f"{time.total_seconds():,g} seconds"


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
