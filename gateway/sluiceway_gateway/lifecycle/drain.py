"""Draining of closing channels, and the guard of deletion.

No call to Kafka is made inside a transaction. The ends are asked for when no writer is at work any
more; whether that is still so, and who has read up to them, is looked at again where it is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import FINISHING, Channel, Phase
from sluiceway_gateway.clock import Clock
from sluiceway_gateway.db import idempotency
from sluiceway_gateway.db.engine import Database, ReadTransaction
from sluiceway_gateway.db.idempotency import Request
from sluiceway_gateway.errors import ConcurrentChange, EndpointsLive, KafkaUnavailable, UnreadData
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.kafka.model import Watermarks
from sluiceway_gateway.lifecycle.model import Attendance, drained, in_words, unread
from sluiceway_gateway.lifecycle.store import closing, save_status, usage_of_channel

_log = structlog.get_logger(__name__)

_PAUSE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class DrainCounts:
    """What one pass found, in channels; `pause_s` is how long to wait before the next."""

    closing: int = 0
    closed: int = 0
    changed: int = 0
    """Closed, or waiting for somebody else than before."""
    pause_s: float = _PAUSE_S


class Drainer:
    """Closes the channels of one database that are closing."""

    def __init__(self, *, database: Database, topics: KafkaAdmin, clock: Clock) -> None:
        self._database = database
        self._topics = topics
        self._clock = clock

    def run_once(self) -> DrainCounts:
        """Look once at every channel that is closing; raises DatabaseUnavailable."""
        with self._database.scan() as tx:
            found = [(each, usage_of_channel(tx, each)) for each in closing(tx)]
        settled = [self._settle(each, self._marks(each, present)) for each, present in found]
        changed = [
            now for was, now in zip(found, settled, strict=True) if now not in (None, was[0])
        ]
        return DrainCounts(
            closing=len(found),
            closed=sum(each is not None and each.phase is Phase.CLOSED for each in changed),
            changed=len(changed),
        )

    def _marks(self, channel: Channel, present: Attendance) -> Mapping[int, Watermarks] | None:
        """Return where the topic begins and ends, if that matters and Kafka tells."""
        if present.writers or present.loners or present.is_over:
            return None
        try:
            found = self._topics.watermarks(
                channel.topic.name, range(channel.topic.partitions or 0)
            )
        except KafkaUnavailable as error:
            _log.warning("kafka is away", reason=str(error), topic=channel.topic.name)
            return None
        known = {partition: mark for partition, mark in found.items() if mark is not None}
        return known if len(known) == len(found) else None

    def _settle(self, channel: Channel, marks: Mapping[int, Watermarks] | None) -> Channel | None:
        """Write down how the channel stands; None if it is not there any more."""
        with self._database.write() as tx:
            held = channels_store.hold(tx, channel.name)
            if held is None or held.uid != channel.uid or held.phase is not Phase.CLOSING:
                return None
            following = drained(held, usage_of_channel(tx, held), marks, now=self._clock())
            if following is held:
                return channel
            save_status(tx, following, was=held)
        if following.phase is Phase.CLOSED:
            _log.info("a channel is drained and closed", channel=channel.name)
        return following


Marks = Mapping[int, Watermarks]
_FORCE = "force=true deletes the channel all the same"


class Leaving:
    """Looks, before a channel of one database is deleted, whether its records were read."""

    def __init__(self, database: Database, topics: KafkaAdmin) -> None:
        self._database = database
        self._topics = topics

    def marks(self, name: str, request: Request | None) -> Marks | None:
        """Return where the channel's topic begins and ends; None if that does not matter (yet).

        No transaction is open meanwhile. Raises KafkaUnavailable where Kafka does not tell.
        """
        with self._database.read() as tx:
            channel = channels_store.find(tx, name)
            if channel is None or (request is not None and idempotency.known(tx, request)):
                return None
            present = usage_of_channel(tx, channel)
            if present.living or not _is_followed(channel, present):
                return None
        try:
            found = self._topics.watermarks(
                channel.topic.name, range(channel.topic.partitions or 0)
            )
        except KafkaUnavailable as error:
            raise KafkaUnavailable(f"{_unknown(name)} {error}", error.lockout) from error
        silent = [partition for partition, mark in found.items() if mark is None]
        if silent:
            raise KafkaUnavailable(
                f"{_unknown(name)} Kafka does not tell where partition {silent[0]} ends."
            )
        return {partition: mark for partition, mark in found.items() if mark is not None}


def require_deserted(
    tx: ReadTransaction, channel: Channel, *, keeps_topic: bool, marks: Marks | None
) -> None:
    """Raise EndpointsLive while somebody is at work, UnreadData if a group has not read all.

    What is kept need not have been read. Raises ConcurrentChange for a group that came after
    `marks` were taken.
    """
    present = usage_of_channel(tx, channel)
    if present.living:
        raise EndpointsLive(
            f"The channel {channel.name!r} is in use by {in_words(present.living)}: wait until "
            f"they have closed, which closing the channel asks them to; {_FORCE}."
        )
    if keeps_topic or not _is_followed(channel, present):
        return
    if marks is None:
        raise ConcurrentChange(
            f"A group began to read the channel {channel.name!r} at the same time; send the "
            "request again."
        )
    left = unread(present.followers, marks, idle_members=True)
    if left:
        raise UnreadData(
            f"The channel {channel.name!r} holds what was not read: {in_words(left)}. Read and "
            f"commit it, reset these groups to the end, or keep the topic; {_FORCE}."
        )


def _is_followed(channel: Channel, present: Attendance) -> bool:
    """Tell whether there are records that somebody may still want to read."""
    condition = channel.condition("Ready")
    there = channel.phase is Phase.READY or (
        channel.phase in FINISHING and condition is not None and condition.status == "True"
    )
    readers = any(each.members or each.positions for each in present.followers)
    return there and readers and not channel.adopted


def _unknown(name: str) -> str:
    return f"Whether all of the channel {name!r} was read cannot be known now ({_FORCE})."
