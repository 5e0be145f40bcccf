"""The offsets of groups: committing them, and asking for them."""

from collections.abc import Mapping
from typing import Any

from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.errors import Refusal, of_group
from sluiceway.broker.exceptions import (
    IllegalGeneration,
    OffsetOutOfRangeError,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from sluiceway.broker.group_members import ALONE, MEMBERS, REACH, Member, Seat, beyond
from sluiceway.broker.requests import ByName, each_once, in_bytes, in_text
from sluiceway.broker.responses import (
    OffsetCommitPartitionResponse,
    OffsetCommitResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchResponse,
)
from sluiceway.errors import OptionError, SluicewayError
from sluiceway.rest.endpoint_models import Position
from sluiceway.rest.models import Connection

__all__ = ["Offsets"]

_NONE = -1


class Offsets:
    """What one Broker asks about groups' offsets; `Broker` says what each call promises."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._calls = handler.control.endpoints

    def commit(
        self, group: Any, generation: Any, consumer_id: Any, requests: Any
    ) -> OffsetCommitResponse:
        """Commit, each channel's partitions together."""
        name, id_ = in_text(group, "group"), in_text(consumer_id, "member")
        if type(generation) is not int:
            raise OptionError(f"the generation is {generation!r}; it takes a number")
        by_topic: dict[bytes, dict[int, Any]] = {}
        for each in each_once(requests):
            topic = in_bytes(each.topic_name, "topic")
            by_topic.setdefault(topic, {})[each.partition_id] = each
        topics: ByName[dict[int, OffsetCommitPartitionResponse]] = ByName()
        for topic, asked in by_topic.items():
            refusals = self._committed(topic, asked, name, generation, id_)
            topics[topic] = {
                partition: OffsetCommitPartitionResponse(refusal.err, refusal.reason)
                for partition, refusal in refusals.items()
            }
        return OffsetCommitResponse(topics)

    def fetch(self, group: Any, requests: Any) -> OffsetFetchResponse:
        """Return what is committed."""
        name = in_text(group, "group")
        topics: ByName[dict[int, OffsetFetchPartitionResponse]] = ByName()
        known: dict[bytes, Mapping[int, Position] | Refusal] = {}
        for each in each_once(requests):
            topic = in_bytes(each.topic_name, "topic")
            place = self._handler.located(topic, each.partition_id)
            answers = topics.setdefault(topic, {})
            if isinstance(place, Refusal):
                answers[each.partition_id] = _unknown_offset(place)
                continue
            if topic not in known:
                known[topic] = self._known(place, name)
            found = known[topic]
            if isinstance(found, Refusal):
                answers[each.partition_id] = _unknown_offset(found)
                continue
            at = found.get(each.partition_id)
            answers[each.partition_id] = OffsetFetchPartitionResponse(at.offset if at else _NONE)
        return OffsetFetchResponse(topics)

    def _known(self, place: Connection, group: str) -> Mapping[int, Position] | Refusal:
        try:
            found = self._calls.committed(place.channel_name, group, index=None)
        except OptionError:
            raise
        except SluicewayError as error:
            return of_group(error)
        ALONE.learn(place, group, found)
        return found

    def _committed(
        self, topic: bytes, asked: Mapping[int, Any], group: str, generation: int, id_: str
    ) -> dict[int, Refusal]:
        """Commit what can be of one channel, all of it or none; say how it went for each."""
        refusals: dict[int, Refusal] = {}
        try:
            if not id_ and generation < 0:
                connection = self._handler.connection(topic)
                known = ALONE.known(self._calls, connection, group)
                offsets = {partition: at.offset for partition, at in known.items()}
                places = self._places(topic, asked, connection.topic_id, offsets, refusals)
                if places:
                    ALONE.commit(self._calls, connection, group, places)
            else:
                seat = _seat(topic, group, generation, id_)
                if isinstance(seat, Refusal):
                    return dict.fromkeys(asked, seat)
                places = self._places(topic, asked, seat.topic_id, seat.known, refusals)
                if places:
                    seat.commit(self._calls, places)
        except OptionError:
            raise
        except SluicewayError as error:
            refusal = of_group(error)
            return {partition: refusals.get(partition, refusal) for partition in asked}
        return {partition: refusals.get(partition, Refusal()) for partition in asked}

    def _places(
        self,
        topic: bytes,
        asked: Mapping[int, Any],
        topic_id: str | None,
        known: Mapping[int, int],
        refusals: dict[int, Refusal],
    ) -> dict[int, int]:
        """Return what may be committed; what may not is put into `refusals`."""
        reach = REACH.of(topic_id)
        places = {}
        for partition, each in asked.items():
            refusal = self._refusal(topic, each, reach, known)
            if refusal is None:
                places[partition] = each.offset
            else:
                refusals[partition] = refusal
        return places

    def _refusal(
        self, topic: bytes, asked: Any, reach: Mapping[int, int], known: Mapping[int, int]
    ) -> Refusal | None:
        place = self._handler.located(topic, asked.partition_id)
        if isinstance(place, Refusal):
            return place
        if type(asked.offset) is not int:
            raise OptionError(f"offset is {asked.offset!r} in {asked!r}; it takes a number")
        if asked.offset < 0:
            return Refusal.of(OffsetOutOfRangeError, f"{asked.offset} is no offset")
        return beyond(asked.partition_id, asked.offset, reach, known)


def _seat(topic: bytes, group: str, generation: int, id_: str) -> Seat | Refusal:
    member = MEMBERS.find(id_, group)
    if member is None:
        return Refusal.of(
            UnknownMemberId,
            f"the group {group!r} has no member {id_!r} in this process: join it, or commit "
            "with the generation -1 and an empty id while nobody has",
        )
    return _as_member(member, topic, generation)


def _as_member(member: Member, topic: bytes, generation: int) -> Seat | Refusal:
    if topic != member.channel.encode():
        return Refusal.of(
            UnknownTopicOrPartition,
            f"the member {member.id!r} joined the group for {member.channel!r} alone",
        )
    if generation == member.generation:
        return member
    if generation == member.joined:
        return Refusal.of(RebalanceInProgress, "the member has not synced in this generation yet")
    return Refusal.of(
        IllegalGeneration,
        f"the generation is {generation}, and the member's share is of {member.generation}: join "
        "and sync anew, and go on where the group's offsets stand",
    )


def _unknown_offset(refusal: Refusal) -> OffsetFetchPartitionResponse:
    return OffsetFetchPartitionResponse(_NONE, b"", refusal.err, refusal.reason)
