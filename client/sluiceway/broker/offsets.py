"""Offset requests: commits and committed offsets, with and without membership."""

from collections.abc import Mapping
from typing import Any

from sluiceway.api.endpoints import Position
from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.exceptions import (
    IllegalGeneration,
    OffsetMetadataTooLarge,
    OffsetOutOfRangeError,
    ProtocolClientError,
    RebalanceInProgress,
    UnknownTopicOrPartition,
    group_refusal,
)
from sluiceway.broker.groups import JoinedMember, group_state
from sluiceway.broker.protocol import (
    ByName,
    OffsetCommitPartitionResponse,
    OffsetCommitResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchResponse,
    checked_generation,
    in_bytes,
    in_text,
    last_requests,
)
from sluiceway.errors import OptionError, SluicewayError

__all__ = ["OffsetRequests"]

_MAX_METADATA = 4096


class OffsetRequests:
    """Offset requests of groups by one Broker; `Broker` documents each of them."""

    def __init__(self, handler: RequestHandler) -> None:
        self.handler = handler
        self._calls = handler.control.endpoints

    def commit(
        self, group: Any, generation: Any, consumer_id: Any, requests: Any
    ) -> OffsetCommitResponse:
        """Commit, the partitions of each channel together."""
        name, id_ = in_text(group, "group"), in_text(consumer_id, "member")
        checked_generation(generation)
        by_topic: dict[bytes, dict[int, Any]] = {}
        for request in last_requests(requests):
            topic = in_bytes(request.topic_name, "topic")
            by_topic.setdefault(topic, {})[request.partition_id] = request
        topics: ByName[dict[int, OffsetCommitPartitionResponse]] = ByName()
        for topic, requested in by_topic.items():
            responses = topics[topic] = dict.fromkeys(requested, OffsetCommitPartitionResponse(0))
            refusals: dict[int, ProtocolClientError] = {}
            try:
                self._commit(topic, requested, name, generation, id_, refusals)
            except SluicewayError as error:
                refusals = dict.fromkeys(requested, group_refusal(error)) | refusals
            for partition, refusal in refusals.items():
                responses[partition] = OffsetCommitPartitionResponse(refusal.ERROR_CODE).because(
                    refusal
                )
            if refusals:
                # The name may belong to another channel by now.
                self.handler.forget(topic)
        return OffsetCommitResponse(topics)

    def fetch(self, group: Any, requests: Any) -> OffsetFetchResponse:
        """Return committed offsets."""
        name = in_text(group, "group")
        topics: ByName[dict[int, OffsetFetchPartitionResponse]] = ByName()
        committed: dict[bytes, Mapping[int, Position]] = {}
        for request in last_requests(requests):
            topic = in_bytes(request.topic_name, "topic")
            try:
                connection = self.handler.locate(topic, request.partition_id)
                if topic not in committed:
                    committer = group_state().committer(connection, name)
                    committed[topic] = committer.fetch(calls=self._calls)
                at = committed[topic].get(request.partition_id)
                metadata = (at.metadata or "").encode() if at else b""
                response = OffsetFetchPartitionResponse(at.offset if at else -1, metadata, 0)
            except SluicewayError as error:
                refusal = group_refusal(error)
                response = OffsetFetchPartitionResponse(-1, b"", refusal.ERROR_CODE).because(
                    refusal
                )
            topics.setdefault(topic, {})[request.partition_id] = response
        return OffsetFetchResponse(topics)

    def _commit(
        self,
        topic: bytes,
        requested: Mapping[int, Any],
        group: str,
        generation: int,
        id_: str,
        refusals: dict[int, ProtocolClientError],
    ) -> None:
        """Commit the valid offsets of one channel, all or none; put others into `refusals`."""
        if id_ or generation >= 0:
            member = _committing_member(topic, group, generation, id_)
            topic_id, committer = member.topic_id, member.commits
        else:
            connection = self.handler.connection(topic)
            topic_id, committer = connection.topic_id, group_state().committer(connection, group)
        fetched = group_state().fetched(topic_id)
        committed = committer.last_committed(calls=self._calls)
        positions = {}
        for partition, request in requested.items():
            at = committed.get(partition)
            furthest = max(fetched.get(partition, 0), at.offset if at else 0)
            try:
                self._check(topic, request, furthest)
                positions[partition] = Position(offset=request.offset, metadata=_metadata(request))
            except ProtocolClientError as refusal:
                refusals[partition] = refusal
        if positions:
            committer.commit(None, lambda: positions, calls=self._calls)

    def _check(self, topic: bytes, request: Any, furthest: int) -> None:
        """Raise the refusal of a commit past `furthest` or of an invalid offset."""
        self.handler.locate(topic, request.partition_id)
        if type(request.offset) is not int:
            raise OptionError(f"offset is {request.offset!r} in {request!r}; it takes a number")
        if request.offset < 0:
            raise OffsetOutOfRangeError(f"{request.offset} is not an offset")
        if request.offset > furthest:
            raise OffsetOutOfRangeError(
                f"{request.offset} is past the messages that this process has fetched, which "
                f"end at {furthest}; fetch the following ones first, or move the group with "
                "channel.reset()"
            )


def _metadata(request: Any) -> str | None:
    """Return the text to store with an offset. Raises OffsetMetadataTooLarge, OptionError."""
    metadata = getattr(request, "metadata", None)
    if not metadata:
        return None
    try:
        text = metadata if isinstance(metadata, str) else metadata.decode()
        text.encode()
    except (AttributeError, UnicodeError) as error:
        raise OptionError(
            f"metadata is {metadata!r} in {request!r}; it takes UTF-8 text"
        ) from error
    if "\0" in text:
        raise OptionError(f"metadata is {metadata!r} in {request!r}; it takes text without NUL")
    if len(text) > _MAX_METADATA:
        raise OffsetMetadataTooLarge(
            f"the metadata have {len(text)} characters; the limit is {_MAX_METADATA}. Shorten them"
        )
    return text


def _committing_member(topic: bytes, group: str, generation: int, id_: str) -> JoinedMember:
    """Return the member that may commit in this generation. Raises ProtocolClientError."""
    member = group_state().member(id_, group)
    if topic != member.channel.encode():
        raise UnknownTopicOrPartition(
            f"the member {member.id!r} joined the group for {member.channel!r} only"
        )
    if generation == member.generation:
        return member
    if generation == member.joined:
        raise RebalanceInProgress("the member has not synced in this generation yet")
    raise IllegalGeneration(
        f"the generation is {generation}, but the member's assignment has {member.generation}: "
        "join and sync again, and continue from the group's committed offsets"
    )
