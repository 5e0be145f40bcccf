"""Draining of closing channels, and the guard of deletion.

No transaction is open during a call to Kafka. End offsets are read when no writer is open any more.
The transaction that uses them checks again that no writer is or was open since, and which groups
have read up to them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import structlog

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import FINISHING, Channel, Delivery, Phase
from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db import idempotency
from sluiceway_gateway.core.db.engine import Database, ReadTransaction
from sluiceway_gateway.core.db.idempotency import Request
from sluiceway_gateway.core.errors import (
    ConcurrentChange,
    EndpointsLive,
    KafkaUnavailable,
    UnreadData,
)
from sluiceway_gateway.core.kafka.admin import KafkaAdmin, require_watermarks
from sluiceway_gateway.core.kafka.client import log_unavailable
from sluiceway_gateway.core.kafka.model import Watermarks
from sluiceway_gateway.core.passes import run_steps
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.model import listed
from sluiceway_gateway.lifecycle.model import ChannelUsage, drained, unread
from sluiceway_gateway.lifecycle.store import closing_channels, usage_of_channel, visible_ends

_log = structlog.get_logger(__name__)

_PAUSE_S = 1.0
_FORCE = "force=true deletes the channel anyway"

TopicBounds = Mapping[int, Watermarks]
"""The watermarks of all partitions of a topic."""


@dataclass(frozen=True, kw_only=True)
class DrainCounts:
    """Channels that one pass handled; `pause_s` is the time until the next pass."""

    closing: int = 0
    closed: int = 0
    changed: int = 0
    """Closed, or with another condition."""
    pause_s: float = _PAUSE_S


class Drainer:
    """Closes closing channels after all records are written and read."""

    def __init__(self, *, database: Database, kafka: KafkaAdmin, clock: Clock) -> None:
        self._database = database
        self._kafka = kafka
        self._clock = clock

    def run_once(self) -> DrainCounts:
        """Check each closing channel once; raises DatabaseUnavailable."""
        with self._database.scan() as tx:
            usages = [(channel, usage_of_channel(tx, channel)) for channel in closing_channels(tx)]
        updated = run_steps(partial(self._check, channel, usage) for channel, usage in usages)
        phases = [channel.phase for channel in updated if channel is not None]
        return DrainCounts(
            closing=len(usages), closed=phases.count(Phase.CLOSED), changed=len(phases)
        )

    def _check(self, channel: Channel, usage: ChannelUsage) -> Channel | None:
        return self._update(channel, usage, self._bounds(channel, usage))

    def _bounds(self, channel: Channel, usage: ChannelUsage) -> TopicBounds | None:
        """Return the topic's watermarks if they are needed and available."""
        if usage.writers or usage.ungrouped or usage.is_finished:
            return None
        topic = channel.topic
        try:
            return require_watermarks(self._kafka, topic.name, topic.partitions or 0)
        except KafkaUnavailable as error:
            log_unavailable(_log, error, topic=topic.name)
            return None

    def _update(
        self, channel: Channel, before: ChannelUsage, bounds: TopicBounds | None
    ) -> Channel | None:
        """Save the channel's new status; None if nothing changed, or it is no longer closing.

        `before` is its usage before `bounds` were read.
        """
        with self._database.write() as tx:
            held = channels_store.hold(tx, channel.name)
            if held is None or held.uid != channel.uid or held.phase is not Phase.CLOSING:
                return None
            usage = usage_of_channel(tx, held)
            if bounds is not None:
                if usage.last_writer != before.last_writer:
                    # A lost writer returned, and may have written behind the end offsets.
                    return None
                bounds = _readable(tx, held, bounds)
            updated = drained(held, usage, bounds, now=self._clock())
            if updated is held:
                return None
            # Without waking the reconciler, because nothing changes in Kafka.
            channels_store.replace_row(tx, updated, was=held)
        if updated.phase is Phase.CLOSED:
            _log.info("a channel is drained and closed", channel=channel.name)
        return updated


@dataclass(frozen=True, kw_only=True)
class DeletionBounds:
    """The watermarks of a topic, read while no endpoint was open."""

    watermarks: TopicBounds
    endpoints_revision: int
    """The revision of the channel's endpoints before they were read."""


def bounds_for_deletion(
    database: Database, kafka: KafkaAdmin, name: str, request: Request | None, *, if_empty: bool
) -> DeletionBounds | None:
    """Return the bounds that show whether all records were read; None if they are not needed.

    `if_empty` needs them even without readers. Call outside of transactions. Raises
    KafkaUnavailable.
    """
    with database.read() as tx:
        channel = channels_store.find(tx, name)
        if channel is None or (request is not None and idempotency.known(tx, request)):
            return None
        usage = usage_of_channel(tx, channel)
        if usage.live or not _is_checked(channel, usage, if_empty=if_empty):
            return None
        revision = endpoints_store.revision(tx, channel.uid)
    watermarks = require_watermarks(
        kafka,
        channel.topic.name,
        channel.topic.partitions or 0,
        unknown=f"Cannot check whether the channel {name!r} was read completely ({_FORCE}).",
    )
    return DeletionBounds(watermarks=watermarks, endpoints_revision=revision)


def require_unused(
    tx: ReadTransaction,
    channel: Channel,
    *,
    keeps_topic: bool,
    bounds: DeletionBounds | None,
    if_empty: bool,
) -> None:
    """Raise EndpointsLive while an endpoint is open, UnreadData if a group has unread records.

    If the topic is kept, unread records are allowed. With `if_empty`, any record in a topic that
    would be deleted raises UnreadData. Raises ConcurrentChange if an endpoint attached, or changed,
    after `bounds` were read: it may have written records.
    """
    usage = usage_of_channel(tx, channel)
    if usage.live:
        raise EndpointsLive(
            f"The channel {channel.name!r} is in use by {listed(usage.live)}. Close the channel "
            f"and wait until they have closed; {_FORCE}."
        )
    if keeps_topic or not _is_checked(channel, usage, if_empty=if_empty):
        return
    if bounds is None or bounds.endpoints_revision != endpoints_store.revision(tx, channel.uid):
        raise ConcurrentChange(
            f"An endpoint of the channel {channel.name!r} changed at the same time; send the "
            "request again."
        )
    held = sum(marks.end_offset - marks.begin_offset for marks in bounds.watermarks.values())
    if if_empty and held:
        raise UnreadData(
            f"The topic {channel.topic.name!r} of the channel {channel.name!r} has up to {held} "
            f"messages, which would be deleted too. Keep the topic or the channel; {_FORCE}."
        )
    left = unread(usage.groups, _readable(tx, channel, bounds.watermarks), idle_members=True)
    if left:
        raise UnreadData(
            f"The channel {channel.name!r} has unread records: {listed(left)}. Read and commit "
            "them, reset these groups to the end (`sluiceway channels reset "
            f"{channel.name} GROUP --to latest`), or keep the topic; {_FORCE}."
        )


def _readable(tx: ReadTransaction, channel: Channel, bounds: TopicBounds) -> TopicBounds:
    """Return the bounds of the messages that readers get, now or after the end of open batches.

    On exactly-once channels, uncommitted messages may follow, which no group reads.
    """
    if channel.spec.delivery is not Delivery.EXACTLY_ONCE:
        return bounds
    ends = visible_ends(tx, channel.uid)
    if ends is None:
        return bounds
    return {
        partition: replace(marks, end_offset=ends.get(partition, 0))
        for partition, marks in bounds.items()
    }


def _is_checked(channel: Channel, usage: ChannelUsage, *, if_empty: bool) -> bool:
    """Return whether to look for records before the channel is deleted.

    With `if_empty` any record forbids the deletion, otherwise one that a group has not read.
    Records of an adopted topic forbid nothing, because it is kept.
    """
    has_readers = any(group_usage.members or group_usage.positions for group_usage in usage.groups)
    condition = channel.condition("Ready")
    has_topic = channel.phase is Phase.READY or (
        channel.phase in FINISHING and condition is not None and condition.status == "True"
    )
    return (if_empty or has_readers) and has_topic and not channel.adopted
