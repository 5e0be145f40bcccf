"""Channels that nobody uses: closed after the time that their owner set, then removed. Pure."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from sluiceway_gateway.channels.change import deleted
from sluiceway_gateway.channels.model import Channel, Condition, Phase, with_condition
from sluiceway_gateway.lifecycle.model import closed

IDLE = "Idle"
"""The type of the condition."""
PHASES = frozenset({Phase.READY, Phase.CLOSING, Phase.CLOSED})
"""Those that come to their end by being idle. Others wait for somebody, who should find them."""
_LONGEST_WATCH = timedelta(hours=1)


def limit(channel: Channel) -> timedelta:
    """Return how long it may be idle."""
    assert channel.spec.idle_ms is not None  # noqa: S101 - the callers have looked
    return timedelta(milliseconds=channel.spec.idle_ms)


def watch(channel: Channel) -> timedelta:
    """Return how long its topic has to be seen unmoved before anything is done to it."""
    return min(limit(channel) / 10, _LONGEST_WATCH)


def is_quiet(channel: Channel, *, used_at: datetime, now: datetime) -> bool:
    """Tell whether it has not been used for so long that its topic should be looked at."""
    return now - used_at >= limit(channel) / 2


def idled(channel: Channel, *, used_at: datetime, watched: bool, now: datetime) -> Channel:
    """Return the channel as it is after so long without use: itself, if nothing is new.

    It is closed after its time, whatever was not read, and deleted after as long again; both only
    if its topic was `watched`. Before, its condition `Idle` says when.
    """
    idle = limit(channel)
    closes_at = used_at + idle
    if now < closes_at:
        return _said(channel, *_before(channel, used_at, now), now=now)
    before = channel.condition(IDLE)
    since = before.last_transition_at if before and before.status == "True" else now
    removed_at = max(since, closes_at) + idle
    reason, message = "Unused", _remains(channel, used_at, removed_at)
    if channel.phase is Phase.CLOSED:
        if watched and now >= removed_at:
            return deleted(channel, keep_topic=False, now=now)
        return _said(channel, "True", reason, message, now=now)
    if not watched:
        return _said(channel, *_before(channel, used_at, now), now=now)
    shut = closed(channel, reason=IDLE, message="It was closed as nobody used it.", now=now)
    return replace(
        shut, conditions=_with(shut, _condition("True", reason, message, now)).conditions
    )


def _before(
    channel: Channel, used_at: datetime, now: datetime
) -> tuple[Literal["False"], str, str]:
    idle = limit(channel)
    fate = "its topic stays" if channel.adopted else "its records with it"
    if not is_quiet(channel, used_at=used_at, now=now):
        if channel.phase is Phase.CLOSED:
            message = (
                f"The channel is in use. When nobody uses it for {_span(2 * idle)} it is removed."
            )
            return "False", "InUse", message
        return (
            "False",
            "InUse",
            f"The channel is in use. When nobody uses it for {_span(idle)} it is closed, and after "
            f"as long again removed; {fate}.",
        )
    if channel.phase is Phase.CLOSED:
        return "False", "Quiet", _remains(channel, used_at, used_at + 2 * idle)
    return (
        "False",
        "Quiet",
        f"Nobody has used the channel since {_shown(used_at)}: it is closed at "
        f"{_shown(used_at + idle)}, and removed {_span(idle)} later, {fate}, unless somebody uses "
        "it.",
    )


def _remains(channel: Channel, used_at: datetime, removed_at: datetime) -> str:
    fate = "forgotten, and its topic stays" if channel.adopted else "removed with its records"
    return (
        f"Nobody has used the channel since {_shown(used_at)}: it is {fate} at "
        f"{_shown(removed_at)}, unless somebody reads it, or changes spec.idle_ms."
    )


def _said(
    channel: Channel, status: Literal["True", "False"], reason: str, message: str, *, now: datetime
) -> Channel:
    following = _with(channel, _condition(status, reason, message, now))
    return channel if following == channel else replace(following, revision=channel.revision + 1)


def _with(channel: Channel, condition: Condition) -> Channel:
    return replace(channel, conditions=with_condition(channel.conditions, condition))


def _condition(
    status: Literal["True", "False"], reason: str, message: str, now: datetime
) -> Condition:
    return Condition(
        type=IDLE, status=status, reason=reason, message=message, last_transition_at=now
    )


def _span(time: timedelta) -> str:
    for unit, seconds in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        count, rest = divmod(time.total_seconds(), seconds)
        if count > 1 and not rest:
            return f"{count:,.0f} {unit}"
    return f"{time.total_seconds():,g} seconds"


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
