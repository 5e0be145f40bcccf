"""pykafka's Broker: requests, one by one, for those who know what they ask for."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sluiceway.broker.admin import ApiVersionsResponse, DescribeGroupsResponse, ListGroupsResponse
from sluiceway.broker.connected import Connected
from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.requests import checked_count
from sluiceway.broker.responses import (
    FetchResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListOffsetResponse,
    MetadataResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    ProduceResponse,
    Response,
    SyncGroupResponse,
)

__all__ = ["Broker"]

R = TypeVar("R", bound=Response)


class Broker(Connected):
    """pykafka's Broker, of channels: `host` and `port` are a gateway's, topics are channels.

    Messages go to and come from Kafka directly, as they are: in a channel of the format `bytes`
    whatever it is, in `avro` the record behind the five bytes that name its schema. Groups and
    their offsets are the gateway's. Names are bytes or str; answers are named in bytes.

    What is refused is a code in the answer, with its reason; with `raise_errors` it is raised, by
    pykafka's names (`exceptions`). Calls raise SocketDisconnectedError where nobody answers.

    `with` closes it, and so tells the readers of what it produced where that ends.
    """

    def fetch_messages(
        self, partition_requests: Iterable[Any], timeout: int = 30_000, min_bytes: int = 1
    ) -> FetchResponse:
        """Return messages of partitions, each from the offset that its request names.

        Waits `timeout` milliseconds at most for `min_bytes` of keys and values; not where a
        partition is refused. Of each partition come `max_bytes` at most, and one message at least.
        Codes: UnknownTopicOrPartition, OffsetOutOfRangeError, TopicAuthorizationFailed.
        """
        handler = self._online()
        timeout_s = checked_count(timeout, "timeout") / 1000
        least = checked_count(min_bytes, "min_bytes")
        return self._answer(
            handler,
            lambda: self._fetching.fetch(partition_requests, timeout_s=timeout_s, min_bytes=least),
        )

    def produce_messages(self, produce_request: Any) -> ProduceResponse | None:
        """Write the messages of a ProduceRequest; return when all replicas have them.

        With `required_acks=0` it does not wait, and returns None. Each partition's messages are
        looked at before any of them is sent; codes: InvalidMessageError, MessageSizeTooLarge,
        UnknownTopicOrPartition, InvalidTopic for a channel that is closed, RequestTimedOut.
        """
        handler = self._online()
        answer = self._asked(handler, lambda: self._producing.produce(produce_request))
        return None if answer is None else self._checked(answer)

    def request_offset_limits(self, partition_requests: Iterable[Any]) -> ListOffsetResponse:
        """Return an offset for each partition: where it begins (-2), where it ends (-1).

        For a time in milliseconds, the first offset that is not older, or the end.
        """
        return self._answer(self._online(), lambda: self._looking.limits(partition_requests))

    def request_metadata(self, topics: Iterable[Any] | None = None) -> MetadataResponse:
        """Describe channels, all that the token may see if none is named, and Kafka's brokers."""
        return self._answer(self._online(), lambda: self._looking.metadata(topics))

    def commit_consumer_group_offsets(
        self,
        consumer_group: bytes | str,
        consumer_group_generation_id: int,
        consumer_id: bytes | str,
        preqs: Iterable[Any],
    ) -> OffsetCommitResponse:
        """Commit the next offsets to read: of a member of the group, under its generation.

        With the generation -1 and an empty id it commits without being one, while nobody is. The
        partitions of a channel are committed together. Codes: UnknownMemberId; RebalanceInProgress
        before the member has synced; IllegalGeneration, also where another has moved the offset of
        a group without members since this process asked; OffsetOutOfRangeError for what was not
        fetched by this process, and for what goes back.
        """
        handler = self._online_for_offsets()
        return self._answer(
            handler,
            lambda: self._offsets.commit(
                consumer_group, consumer_group_generation_id, consumer_id, preqs
            ),
        )

    def fetch_consumer_group_offsets(
        self, consumer_group: bytes | str, preqs: Iterable[Any]
    ) -> OffsetFetchResponse:
        """Return the offsets that a group has committed, -1 where there is none."""
        handler = self._online_for_offsets()
        return self._answer(handler, lambda: self._offsets.fetch(consumer_group, preqs))

    def join_group(
        self,
        connection_id: object,
        consumer_group: bytes | str,
        member_id: bytes | str,
        topic_name: bytes | str,
        membership_protocol: Any = None,
    ) -> JoinGroupResponse:
        """Join a channel's group; with an empty id as a new member, else anew.

        Returns at once. A member that joins anew keeps its partitions until it syncs.
        """
        del connection_id
        handler = self._online()
        return self._answer(
            handler,
            lambda: self._members.join(consumer_group, member_id, topic_name, membership_protocol),
        )

    def sync_group(
        self,
        connection_id: object,
        consumer_group: bytes | str,
        generation_id: int,
        member_id: bytes | str,
        group_assignment: Iterable[Any] = (),
    ) -> SyncGroupResponse:
        """Let go of what the member had, and return what it has in the generation that it joined.

        The gateway shares partitions out; `group_assignment` changes nothing. Partitions that
        another has not let go of yet come later: a heartbeat then says RebalanceInProgress.
        """
        del connection_id
        handler = self._online()
        return self._answer(
            handler,
            lambda: self._members.sync(consumer_group, generation_id, member_id, group_assignment),
        )

    def heartbeat(
        self,
        connection_id: object,
        consumer_group: bytes | str,
        generation_id: int,
        member_id: bytes | str,
    ) -> HeartbeatResponse:
        """Say that the member lives, and hear whether it has to join anew.

        A member that does not within the channel's heartbeat timeout is lost, and others get its
        partitions.
        """
        del connection_id
        handler = self._online()
        return self._answer(
            handler, lambda: self._members.heartbeat(consumer_group, generation_id, member_id)
        )

    def leave_group(
        self, connection_id: object, consumer_group: bytes | str, member_id: bytes | str
    ) -> LeaveGroupResponse:
        """Leave; the others share what the member had."""
        del connection_id
        handler = self._online()
        return self._answer(handler, lambda: self._members.leave(consumer_group, member_id))

    def list_groups(self) -> ListGroupsResponse:
        """List the groups of all channels that the token may see."""
        handler = self._online()
        return self._asked(handler, self._administering.groups)

    def describe_groups(self, group_ids: Iterable[bytes | str]) -> DescribeGroupsResponse:
        """Describe groups, with their readers that are at work."""
        handler = self._online()
        return self._asked(handler, lambda: self._administering.described(group_ids))

    def create_topics(self, topic_reqs: Iterable[Any], timeout: int = 0) -> None:
        """Make channels of the format `bytes`, and wait `timeout` milliseconds for them, if any.

        Raises Conflict where one is there; `Gateway.channel` makes those with a schema.
        """
        handler = self._online()
        timeout_s = checked_count(timeout, "timeout") / 1000
        self._asked(handler, lambda: self._administering.create(topic_reqs, timeout_s))

    def delete_topics(self, topics: Iterable[bytes | str], timeout: int = 0) -> None:
        """Delete channels with their records, and wait `timeout` milliseconds for it, if any.

        Raises Conflict where somebody writes or reads, or has not read all.
        """
        handler = self._online()
        timeout_s = checked_count(timeout, "timeout") / 1000
        self._asked(handler, lambda: self._administering.delete(topics, timeout_s))

    def fetch_api_versions(self) -> ApiVersionsResponse:
        """Return which requests there are; each has the one version 0."""
        self._online()
        return ApiVersionsResponse()

    def _answer(self, handler: RequestHandler, request: Callable[[], R]) -> R:
        return self._checked(self._asked(handler, request))

    def _checked(self, answer: R) -> R:
        return answer.check() if self._raises else answer
