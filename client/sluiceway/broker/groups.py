"""Consumer groups: lists, members of this process, committed offsets."""

import contextlib
import functools
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from sluiceway import Connection, Endpoint, Position
from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.exceptions import (
    IllegalGeneration,
    InconsistentGroupProtocol,
    OffsetMetadataTooLarge,
    OffsetOutOfRangeError,
    ProtocolClientError,
    RebalanceInProgress,
    UnknownError,
    UnknownMemberId,
    UnknownTopicOrPartition,
    group_refusal,
)
from sluiceway.broker.protocol import (
    ByName,
    DescribeGroupResponse,
    DescribeGroupsResponse,
    GroupListing,
    GroupMember,
    GroupResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsResponse,
    MemberAssignment,
    OffsetCommitPartitionResponse,
    OffsetCommitResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
    checked_generation,
    in_bytes,
    in_text,
    requests_by_topic,
)
from sluiceway.errors import ChannelNotFound, Fenced, OptionError, SluicewayError
from sluiceway.spi import (
    Control,
    EndpointEnd,
    EndpointReport,
    Membership,
    OffsetCommitter,
    Process,
    SyncResult,
    sync,
    this_process,
)

__all__ = [
    "JoinedMember",
    "commit_offsets",
    "describe_groups",
    "fetch_offsets",
    "group_state",
    "heartbeat",
    "join_group",
    "leave_group",
    "list_groups",
    "sync_group",
]

LOGGER = logging.getLogger("sluiceway.broker")

_MAX_METADATA = 4096

R = TypeVar("R", bound=GroupResponse)


class JoinedMember:
    """A member of a dynamic group, whose program sends the heartbeats and syncs.

    It is not an AttachedEndpoint, because nothing may send heartbeats in the background. The
    requests of several Brokers may be for one member: `lock` is held during each, and `calls` are
    those of the last one.
    """

    def __init__(
        self, connection: Connection, group: str, *, control: Control, timeout_s: float
    ) -> None:
        """Attach as a new member. Raises GatewayError."""
        self.id = uuid.uuid4().hex
        self.channel = connection.channel_name
        self.uid = connection.channel_uid
        self.topic_id = connection.topic_id
        self.group = group
        self.membership: Membership | None = Membership(group=group, index=None, size=None)
        self.calls = control.endpoints
        self.timeout_s = timeout_s
        self.lock = threading.RLock()
        self._session = uuid.uuid4().hex
        self.attached = self.calls.attach(
            self.channel,
            uid=self.uid,
            instance=self.id,
            session=self._session,
            role="reader",
            membership=self.membership,
        )
        self.commits = OffsetCommitter(
            self.channel, group, uid=self.uid, topic_id=self.topic_id, member=self
        )
        self._heartbeats = 0
        self._current: int | None = None
        self._offer: SyncResult | None = None
        self._assignment: SyncResult | None = None

    @property
    def joined(self) -> int:
        """The generation of the last join; 0 before it."""
        return 0 if self._offer is None else self._offer.generation

    @property
    def generation(self) -> int | None:
        """The generation of its assignment; None: it has none."""
        return None if self._offer is None else self._offer.has

    def join(self) -> None:
        """Request the group's generation, and the generation of the partitions that it still has.

        A reset, or a rebalance after its timeout, may have taken its partitions.
        """
        self._offer = sync(self)

    def take(self) -> tuple[int, ...]:
        """Take the partitions of the generation in which it joined. Raises RebalanceInProgress."""
        taken = sync(self, self._offer)
        if not taken.taken or taken.generation != self.joined:
            raise _rejoin("the membership has changed since it joined")
        self.commits.revoke(() if self._assignment is None else self._assignment.partitions)
        self.commits.assign({}, taken.positions)
        self.attached = replace(self.attached, generation=taken.generation)
        self._offer = self._assignment = taken
        return taken.partitions

    def require_current(self) -> None:
        """Raise RebalanceInProgress if it has to join again, as of the last heartbeat."""
        if self._current != self.joined:
            raise _rejoin("the membership has changed")
        pending = () if self._assignment is None else self._assignment.pending
        if pending and sync(self).pending != pending:
            raise _rejoin("partitions of another member are free")

    def heartbeat_now(self) -> None:
        """Send a heartbeat. Raises GatewayError, ProtocolClientError."""
        self._heartbeats += 1
        report = EndpointReport(
            id=self.id,
            epoch=self.attached.epoch,
            state="opened" if self._assignment is None else "started",
            positions=self._positions(),
        )
        response = self.calls.heartbeat(
            self._session, self._heartbeats, [report], timeout_s=self.timeout_s
        )
        result = response.results.get(self.id)
        if result is None or result.status in ("fenced", "gone"):
            why = "the gateway removed it" if result is None else result.reason or result.status
            raise _unknown(self.id, self.group, why)
        if result.status != "ok":
            raise UnknownError(result.reason or result.status)
        self._current = result.generation

    def detach(self) -> None:
        """Leave the group."""
        end = EndpointEnd(
            uid=self.uid, epoch=self.attached.epoch, state="closed", positions=self._positions()
        )
        self.calls.detach(self.channel, self.id, end, timeout_s=self.timeout_s)

    def check(self) -> None:
        """Do nothing: the gateway refuses the requests of a member that has to stop."""

    def fence(self, error: Fenced) -> None:
        """Do nothing, as `check`."""

    def _positions(self) -> Mapping[int, tuple[int, int]] | None:
        if "positions" not in self.attached.takes or self._assignment is None:
            return None
        fetched = group_state().fetched(self.topic_id)
        return {p: (fetched[p], 0) for p in self._assignment.partitions if p in fetched} or None


class GroupState:
    """Group state shared by all Brokers of a process.

    pykafka's consumers fetch with one Broker, and join groups and commit with another.
    """

    def __init__(self) -> None:
        self.members: dict[str, JoinedMember] = {}
        self._lock = threading.Lock()
        self._fetched: dict[str | None, dict[int, int]] = {}
        self._committers: dict[tuple[str, str | None, str], OffsetCommitter] = {}

    def member(self, id_: str, group: str) -> JoinedMember:
        """Return the group's member that this process joined. Raises UnknownMemberId."""
        member = self.members.get(id_)
        if member is None or member.group != group:
            raise _unknown(id_, group, "it did not join in this process, or has left")
        return member

    def committer(self, connection: Connection, group: str) -> OffsetCommitter:
        """Return the committer for a group that this process did not join."""
        uid, topic_id = connection.channel_uid, connection.topic_id
        key = (uid, topic_id, group)
        return self._committers.get(key) or self._committers.setdefault(
            key, OffsetCommitter(connection.channel_name, group, uid=uid, topic_id=topic_id)
        )

    def add_fetched(self, topic_id: str | None, partition: int, offset: int) -> None:
        """Allow commits up to an offset: the messages before it were fetched."""
        with self._lock:
            offsets = self._fetched.setdefault(topic_id, {})
            offsets[partition] = max(offset, offsets.get(partition, 0))

    def fetched(self, topic_id: str | None) -> Mapping[int, int]:
        """Return the offset up to which each partition of a topic was fetched."""
        with self._lock:
            return dict(self._fetched.get(topic_id, {}))


_STATES: dict[Process, GroupState] = {}


def group_state() -> GroupState:
    """Return the state of this process; a forked process has its own."""
    process = this_process()
    return _STATES.get(process) or _STATES.setdefault(process, GroupState())


def list_groups(handler: RequestHandler) -> ListGroupsResponse:
    """List the groups of all channels that the token may see."""
    names: list[bytes] = []
    for channel in list(handler.control.channels()):
        # It may have been deleted since.
        with contextlib.suppress(ChannelNotFound):
            names += _group_names(handler, channel.name)
    return ListGroupsResponse(ByName({name: GroupListing(name) for name in names}))


def describe_groups(handler: RequestHandler, group_ids: Iterable[Any]) -> DescribeGroupsResponse:
    """Describe groups, with their live readers."""
    names = [in_bytes(group_id, "group") for group_id in group_ids]
    groups: set[bytes] = set()
    members: dict[bytes, dict[bytes, GroupMember]] = {}
    for channel in list(handler.control.channels()):
        assignment = MemberAssignment([(channel.name.encode(), [])])
        # It may have been deleted since.
        with contextlib.suppress(ChannelNotFound):
            groups.update(_group_names(handler, channel.name))
            for reader in _live_readers(handler, channel.name):
                if reader.group:
                    id_ = reader.id.encode()
                    group = members.setdefault(reader.group.encode(), {})
                    group[id_] = GroupMember(id_, b"", b"", None, assignment)
    described: ByName[DescribeGroupResponse] = ByName()
    for name in names:
        live = members.get(name, {})
        state = b"Stable" if live else b"Empty" if name in groups else b"Dead"
        described[name] = DescribeGroupResponse(0, name, state, b"consumer", b"", live)
    return DescribeGroupsResponse(described)


def join_group(
    handler: RequestHandler, group: Any, member_id: Any, topic: Any, protocol: Any
) -> JoinGroupResponse:
    """Join as a new member, or again."""
    name, id_ = in_text(group, "group"), in_text(member_id, "member")
    topic_name = in_text(topic, "topic")

    def joined(member: JoinedMember) -> JoinGroupResponse:
        if member.channel != topic_name:
            raise InconsistentGroupProtocol(
                f"the member {member.id!r} joined for {member.channel!r}, not for "
                f"{topic_name!r}: a group belongs to one channel; join with an empty id for "
                "another"
            )
        member.join()
        readers = _live_readers(handler, member.channel, group=member.group)
        # In the order in which they joined.
        ids = [reader.id for reader in sorted(readers, key=lambda reader: reader.index)]
        leader = ids[0] if ids else member.id
        metadata = getattr(protocol, "metadata", None)
        return JoinGroupResponse(
            generation_id=member.joined,
            group_protocol=in_bytes(getattr(protocol, "protocol_name", b""), "protocol"),
            leader_id=leader.encode(),
            member_id=member.id.encode(),
            members={id_.encode(): metadata for id_ in ids} if leader == member.id else {},
        )

    attach = None if id_ else functools.partial(_attach, handler, name, topic_name)
    return _answer(handler, joined, JoinGroupResponse, name, id_, attach, member_id=id_.encode())


def sync_group(
    handler: RequestHandler, group: Any, generation: Any, member_id: Any, assignment: Iterable[Any]
) -> SyncGroupResponse:
    """Take the assignment of a generation."""
    checked_generation(generation)
    # The gateway assigns the partitions, and ignores the leader's assignment.
    list(assignment)

    def synced(member: JoinedMember) -> SyncGroupResponse:
        if generation != member.joined:
            raise _stale(member, generation)
        pairs = [(member.channel.encode(), list(member.take()))]
        return SyncGroupResponse(member_assignment=MemberAssignment(pairs))

    return _answer(handler, synced, SyncGroupResponse, group, member_id)


def heartbeat(
    handler: RequestHandler, group: Any, generation: Any, member_id: Any
) -> HeartbeatResponse:
    """Send a heartbeat; the response says whether to join again."""
    checked_generation(generation)

    def sent(member: JoinedMember) -> HeartbeatResponse:
        member.heartbeat_now()
        if generation not in (member.generation, member.joined):
            raise _stale(member, generation)
        member.require_current()
        return HeartbeatResponse()

    return _answer(handler, sent, HeartbeatResponse, group, member_id)


def leave_group(handler: RequestHandler, group: Any, member_id: Any) -> LeaveGroupResponse:
    """Leave the group."""

    def left(member: JoinedMember) -> LeaveGroupResponse:
        _detach(member)
        return LeaveGroupResponse()

    return _answer(handler, left, LeaveGroupResponse, group, member_id)


def commit_offsets(
    handler: RequestHandler, group: Any, generation: Any, member_id: Any, requests: Any
) -> OffsetCommitResponse:
    """Commit, the partitions of each channel together."""
    name, id_ = in_text(group, "group"), in_text(member_id, "member")
    checked_generation(generation)
    topics: ByName[dict[int, OffsetCommitPartitionResponse]] = ByName()
    for topic, requested in requests_by_topic(requests).items():
        responses = topics[topic] = dict.fromkeys(requested, OffsetCommitPartitionResponse(0))
        refusals: dict[int, ProtocolClientError] = {}
        try:
            _commit_topic(handler, topic, requested, name, generation, id_, refusals)
        except SluicewayError as error:
            refusals = dict.fromkeys(requested, group_refusal(error)) | refusals
        for partition, refusal in refusals.items():
            responses[partition] = OffsetCommitPartitionResponse(refusal.ERROR_CODE).because(
                refusal
            )
        if refusals:
            # The name may belong to another channel by now.
            handler.forget(topic)
    return OffsetCommitResponse(topics)


def fetch_offsets(handler: RequestHandler, group: Any, requests: Any) -> OffsetFetchResponse:
    """Return committed offsets."""
    name = in_text(group, "group")
    topics: ByName[dict[int, OffsetFetchPartitionResponse]] = ByName()
    for topic, requested in requests_by_topic(requests).items():
        responses = topics[topic] = {}
        committed: Mapping[int, Position] | None = None
        for partition in requested:
            try:
                connection = handler.locate(topic, partition)
                if committed is None:
                    committer = group_state().committer(connection, name)
                    committed = committer.fetch(calls=handler.control.endpoints)
                at = committed.get(partition)
                metadata = (at.metadata or "").encode() if at else b""
                response = OffsetFetchPartitionResponse(at.offset if at else -1, metadata, 0)
            except SluicewayError as error:
                refusal = group_refusal(error)
                response = OffsetFetchPartitionResponse(-1, b"", refusal.ERROR_CODE)
                response.because(refusal)
            responses[partition] = response
    return OffsetFetchResponse(topics)


def _answer(
    handler: RequestHandler,
    call: Callable[[JoinedMember], R],
    kind: type[R],
    group: Any,
    id_: Any,
    attach: Callable[[], JoinedMember] | None = None,
    **fields: Any,
) -> R:
    """Return the result of `call` for the member, or a refusal; forget an unknown member."""
    name, id_ = in_text(group, "group"), in_text(id_, "member")
    member: JoinedMember | None = None
    try:
        member = group_state().member(id_, name) if attach is None else attach()
        with member.lock:
            member.calls, member.timeout_s = handler.control.endpoints, handler.timeout_s
            return call(member)
    except BaseException as error:
        if member is not None and attach is not None:
            # Its id is lost, and until its timeout it would hold partitions.
            try:
                _detach(member)
            except SluicewayError as failure:
                LOGGER.warning("a member that has not joined is still attached: %s", failure)
        if not isinstance(error, SluicewayError):
            raise
        refusal = group_refusal(error)
    if member is not None and isinstance(refusal, UnknownMemberId):
        group_state().members.pop(member.id, None)
    return kind(refusal.ERROR_CODE, reason=str(refusal), **fields)


def _attach(handler: RequestHandler, group: str, topic: str) -> JoinedMember:
    connection = handler.connection(topic, fresh=True)
    member = JoinedMember(connection, group, control=handler.control, timeout_s=handler.timeout_s)
    group_state().members[member.id] = member
    return member


def _detach(member: JoinedMember) -> None:
    member.detach()
    group_state().members.pop(member.id, None)


def _group_names(handler: RequestHandler, channel: str) -> Iterator[bytes]:
    report = handler.control.status(channel)
    return (group.group.encode() for group in (report.groups if report is not None else ()))


def _live_readers(
    handler: RequestHandler, channel: str, *, group: str | None = None
) -> list[Endpoint]:
    endpoints, _ = handler.control.endpoints.endpoints(channel, group=group)
    return [
        endpoint for endpoint in endpoints or () if endpoint.role == "reader" and endpoint.lives
    ]


def _commit_topic(
    handler: RequestHandler,
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
        connection = handler.connection(topic)
        topic_id, committer = connection.topic_id, group_state().committer(connection, group)
    fetched = group_state().fetched(topic_id)
    committed = committer.last_committed(calls=handler.control.endpoints)
    positions = {}
    for partition, request in requested.items():
        at = committed.get(partition)
        furthest = max(fetched.get(partition, 0), at.offset if at else 0)
        try:
            handler.locate(topic, partition)
            _check_offset(request, furthest)
            positions[partition] = Position(offset=request.offset, metadata=_metadata(request))
        except ProtocolClientError as refusal:
            refusals[partition] = refusal
    if positions:
        committer.commit(None, lambda: positions, calls=handler.control.endpoints)


def _check_offset(request: Any, furthest: int) -> None:
    """Raise the refusal of a commit past `furthest` or of an invalid offset."""
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


def _unknown(id_: str, group: str, why: str) -> UnknownMemberId:
    return UnknownMemberId(
        f"the group {group!r} has no member {id_!r}: {why}. Join with an empty id"
    )


def _stale(member: JoinedMember, generation: int) -> IllegalGeneration:
    return IllegalGeneration(
        f"the generation is {generation}, but the member {member.id!r} of the group "
        f"{member.group!r} joined the generation {member.joined}: join again"
    )


def _rejoin(why: str) -> RebalanceInProgress:
    return RebalanceInProgress(f"{why}: commit, and join again with the same id")
