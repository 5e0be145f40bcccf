"""What stands against deleting a channel: who is at work, and what is not read."""

from collections.abc import Mapping

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import FINISHING, Channel, Phase
from sluiceway_gateway.db import idempotency
from sluiceway_gateway.db.engine import Database, ReadTransaction
from sluiceway_gateway.domain.attendance import Attendance, in_words, unread
from sluiceway_gateway.domain.errors import (
    ConcurrentChange,
    EndpointsLive,
    KafkaUnavailable,
    UnreadData,
)
from sluiceway_gateway.domain.request import Request
from sluiceway_gateway.kafka.calls import Topics
from sluiceway_gateway.kafka.model import Watermarks
from sluiceway_gateway.lifecycle.store import attendance

Marks = Mapping[int, Watermarks]
_FORCE = "force=true deletes the channel all the same"


class Leaving:
    """Looks, before a channel of one database is deleted, whether its records were read."""

    def __init__(self, database: Database, topics: Topics) -> None:
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
            present = attendance(tx, channel)
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
    present = attendance(tx, channel)
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
