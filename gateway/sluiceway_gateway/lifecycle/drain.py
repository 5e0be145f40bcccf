"""Closing channels, once all that was written to them is read.

No call to Kafka is made inside a transaction. The ends are asked for when no writer is at work any
more; whether that is still so, and who has read up to them, is looked at again where it is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel, Phase
from sluiceway_gateway.clock import Clock
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.domain.attendance import Attendance
from sluiceway_gateway.domain.errors import KafkaUnavailable
from sluiceway_gateway.kafka.calls import Topics
from sluiceway_gateway.kafka.model import Watermarks
from sluiceway_gateway.lifecycle.model import drained
from sluiceway_gateway.lifecycle.store import attendance, closing, save_status

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

    def __init__(self, *, database: Database, topics: Topics, clock: Clock) -> None:
        self._database = database
        self._topics = topics
        self._clock = clock

    def run_once(self) -> DrainCounts:
        """Look once at every channel that is closing; raises DatabaseUnavailable."""
        with self._database.scan() as tx:
            found = [(each, attendance(tx, each)) for each in closing(tx)]
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
            following = drained(held, attendance(tx, held), marks, now=self._clock())
            if following is held:
                return channel
            save_status(tx, following, was=held)
        if following.phase is Phase.CLOSED:
            _log.info("a channel is drained and closed", channel=channel.name)
        return following
