"""Offset requests of groups: commit and fetch."""

from collections.abc import Mapping
from typing import Any

from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.exceptions import (
    IllegalGeneration,
    OffsetOutOfRangeError,
    RebalanceInProgress,
    Refusal,
    UnknownMemberId,
    UnknownTopicOrPartition,
    group_refusal,
)
from sluiceway.broker.groups import JoinedMember, group_state
from sluiceway.broker.requests import ByName, checked_generation, each_once, in_bytes, in_text
from sluiceway.broker.responses import (
    OffsetCommitPartitionResponse,
    OffsetCommitResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchResponse,
)
from sluiceway.errors import OptionError, SluicewayError
from sluiceway.rest.endpoint_models import Position
from sluiceway.rest.models import Connection

__all__ = ["OffsetRequests"]

_NONE = -1


class OffsetRequests:
    """Offset requests of one Broker; `Broker` documents each of them."""

    def __init__(self, handler: RequestHandler) -> None:
        self.handler = handler
        self._calls = handler.control.endpoints

    def commit(
        self, group: Any, generation: Any, consumer_id: Any, requests: Any
    ) -> OffsetCommitResponse:
        """Commit, each channel's partitions together."""
        name, id_ = in_text(group, "group"), in_text(consumer_id, "member")
        checked_generation(generation)
        by_topic: dict[bytes, dict[int, Any]] = {}
        for each in each_once(requests):
            topic = in_bytes(each.topic_name, "topic")
            by_topic.setdefault(topic, {})[each.partition_id] = each
        topics: ByName[dict[int, OffsetCommitPartitionResponse]] = ByName()
        for topic, asked in by_topic.items():
            refusals: dict[int, Refusal] = {}
            rest = Refusal()
            try:
                self._commit(topic, asked, name, generation, id_, refusals)
            except OptionError:
                raise
            except SluicewayError as error:
                rest = group_refusal(error)
            answers = {partition: refusals.get(partition, rest) for partition in asked}
            topics[topic] = {
                partition: OffsetCommitPartitionResponse(each.err, each.reason)
                for partition, each in answers.items()
            }
        return OffsetCommitResponse(topics)

    def fetch(self, group: Any, requests: Any) -> OffsetFetchResponse:
        """Return committed offsets."""
        name = in_text(group, "group")
        topics: ByName[dict[int, OffsetFetchPartitionResponse]] = ByName()
        known: dict[bytes, Mapping[int, Position] | Refusal] = {}
        for each in each_once(requests):
            topic = in_bytes(each.topic_name, "topic")
            found: Any = self.handler.locate(topic, each.partition_id)
            if not isinstance(found, Refusal):
                if topic not in known:
                    known[topic] = self._committed(found, name)
                found = known[topic]
            if isinstance(found, Refusal):
                answer = OffsetFetchPartitionResponse(_NONE, b"", found.err, found.reason)
            else:
                at = found.get(each.partition_id)
                answer = OffsetFetchPartitionResponse(at.offset if at else _NONE)
            topics.setdefault(topic, {})[each.partition_id] = answer
        return OffsetFetchResponse(topics)

    def _committed(self, connection: Connection, group: str) -> Mapping[int, Position] | Refusal:
        try:
            return group_state().committer(connection, group).fetch(self._calls)
        except OptionError:
            raise
        except SluicewayError as error:
            return group_refusal(error)

    def _commit(
        self,
        topic: bytes,
        asked: Mapping[int, Any],
        group: str,
        generation: int,
        id_: str,
        refusals: dict[int, Refusal],
    ) -> None:
        """Commit the valid offsets of one channel, all or none; put others into `refusals`."""
        if not id_ and generation < 0:
            connection = self.handler.connection(topic)
            committer = group_state().committer(connection, group)
            known = {p: at.offset for p, at in committer.known(self._calls).items()}
            offsets = self._valid(topic, asked, connection.topic_id, known, refusals)
            if offsets:
                positions = {p: Position(offset=offset) for p, offset in offsets.items()}
                committer.commit(self._calls, positions)
            return
        member = _member(topic, group, generation, id_)
        if isinstance(member, Refusal):
            refusals |= dict.fromkeys(asked, member)
            return
        offsets = self._valid(topic, asked, member.topic_id, member.known, refusals)
        if offsets:
            member.commit(self._calls, offsets)

    def _valid(
        self,
        topic: bytes,
        asked: Mapping[int, Any],
        topic_id: str | None,
        known: Mapping[int, int],
        refusals: dict[int, Refusal],
    ) -> dict[int, int]:
        """Return the offsets that may be committed; put the others into `refusals`."""
        fetched = group_state().fetched(topic_id)
        offsets = {}
        for partition, each in asked.items():
            furthest = max(fetched.get(partition, 0), known.get(partition, 0))
            refusal = self._refusal(topic, each, furthest)
            if refusal is None:
                offsets[partition] = each.offset
            else:
                refusals[partition] = refusal
        return offsets

    def _refusal(self, topic: bytes, asked: Any, furthest: int) -> Refusal | None:
        found = self.handler.locate(topic, asked.partition_id)
        if isinstance(found, Refusal):
            return found
        if type(asked.offset) is not int:
            raise OptionError(f"offset is {asked.offset!r} in {asked!r}; it takes a number")
        if asked.offset < 0:
            return Refusal.of(OffsetOutOfRangeError, f"{asked.offset} is not an offset")
        if asked.offset <= furthest:
            return None
        return Refusal.of(
            OffsetOutOfRangeError,
            f"{asked.offset} is past what this process has fetched of the partition, which is up "
            f"to {furthest}; fetch from there on first, or move the group with channel.reset()",
        )


def _member(topic: bytes, group: str, generation: int, id_: str) -> JoinedMember | Refusal:
    """Return the member that may commit under this generation."""
    member = group_state().member(id_, group)
    if member is None:
        return Refusal.of(
            UnknownMemberId,
            f"the group {group!r} has no member {id_!r} in this process: join it, or commit "
            "with the generation -1 and an empty id while it has no members",
        )
    if topic != member.channel.encode():
        return Refusal.of(
            UnknownTopicOrPartition,
            f"the member {member.id!r} joined the group for {member.channel!r} only",
        )
    if generation == member.generation:
        return member
    if generation == member.joined:
        return Refusal.of(RebalanceInProgress, "the member has not synced in this generation yet")
    return Refusal.of(
        IllegalGeneration,
        f"the generation is {generation}, but the member's assignment has {member.generation}: "
        "join and sync again, and continue from the group's committed offsets",
    )
