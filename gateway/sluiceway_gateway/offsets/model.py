"""Decisions about commits, and acknowledgement. Pure."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sluiceway_gateway.core.auth.model import Principal
from sluiceway_gateway.core.errors import (
    EndpointNotFound,
    GoesBack,
    IllegalTransition,
    NoGroup,
    NotAssigned,
    PositionMoved,
)
from sluiceway_gateway.endpoints.groups.assignment import (
    Member,
    endpoint_partitions,
    held_partitions,
    require_share,
)
from sluiceway_gateway.endpoints.groups.model import Group
from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, PositionOwner, Role, State
from sluiceway_gateway.endpoints.positions import (
    Committed,
    Position,
    require_generation,
    require_topic,
)


def position_moved(group: str, partition: int, at: Position | None) -> PositionMoved:
    """Return the error for a stored position, or None, that the reader did not set."""
    present = "no position" if at is None else f"offset {at.offset}, record {at.record}"
    return PositionMoved(
        f"The group {group!r} has {present} in partition {partition}, which this reader did not "
        "set, so nothing was committed: another one reads the partition for the group. Read the "
        "group's positions and continue from there, or stop."
    )


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit of an endpoint: all of its positions, or none."""

    channel: str
    """Its name."""
    channel_uid: str
    group: str
    endpoint: str
    epoch: int
    generation: int
    topic_id: str
    number: int
    """From 1; a number that is not above the last one changes nothing."""
    positions: tuple[Position, ...]

    def committed(self, now: datetime) -> tuple[Committed, ...]:
        """Return the positions as they are stored."""
        return tuple(
            Committed(
                position=position,
                topic_id=self.topic_id,
                epoch=self.epoch,
                number=self.number,
                committed_at=now,
            )
            for position in self.positions
        )


PendingCommit = tuple[Commit, Principal]
"""A commit and its principal, which the commit's transaction authenticates again."""


@dataclass(frozen=True, kw_only=True)
class CommitResult:
    """A valid commit, and the positions of its partitions after it."""

    commit: Commit
    is_new: bool
    """False for a repeated or delayed one, which changes nothing."""
    group: Group
    owner: PositionOwner
    number: int
    """The number of the endpoint's last commit."""
    positions: tuple[Committed, ...]

    @property
    def member(self) -> int:
        """The member that owns the positions; -1 in a shared group."""
        return self.owner[2]


@dataclass(frozen=True, kw_only=True)
class CommitTarget:
    """The group and the topic that an endpoint commits to."""

    endpoint: str
    """The endpoint's id."""
    channel: str
    """Its name."""
    group: Group
    topic_id: str | None
    partitions: int
    session_owner: str | None
    """The owner of the session that attached it."""


@dataclass(frozen=True, kw_only=True)
class CommitContext:
    """The state that decides about a commit; the endpoint is locked."""

    endpoint: Endpoint
    target: CommitTarget
    stored: Mapping[int, Committed]
    members: Sequence[Member] = ()
    """The live members of a dynamic group, which need no lock: none can take back a partition that
    it has released from a member with a share of a later generation."""


def decide(
    commit: Commit, principal: Principal, context: CommitContext | None, *, now: datetime
) -> CommitResult:
    """Return the result of a commit; `context` is None without its endpoint.

    Raises EndpointNotFound, Forbidden, Fenced, NoGroup, NotAssigned, StaleGeneration, TopicChanged,
    GoesBack and IllegalTransition.
    """
    channel = context and (context.target.channel, context.endpoint.channel_uid)
    if context is None or channel != (commit.channel, commit.channel_uid):
        raise EndpointNotFound(f"The channel {commit.channel!r} has no endpoint {commit.endpoint}.")
    endpoint, target = context.endpoint, context.target
    principal.require_own(target.session_owner, f"The session of {endpoint.where}")
    is_new = _validate(commit, context)
    stored = (context.stored.get(position.partition) for position in commit.positions)
    return CommitResult(
        commit=commit,
        is_new=is_new,
        group=target.group,
        owner=endpoint.position_owner,
        number=max(commit.number, endpoint.commits),
        positions=commit.committed(now) if is_new else tuple(filter(None, stored)),
    )


def _validate(commit: Commit, context: CommitContext) -> bool:
    """Return True for a valid new commit, False for a repeated or delayed one."""
    endpoint, group = context.endpoint, context.target.group
    endpoint.require(epoch=commit.epoch)
    if endpoint.place.role is Role.WRITER or endpoint.place.group == ANONYMOUS:
        raise NoGroup(
            f"The endpoint {endpoint.id} is {endpoint.where}: only readers of a group commit. "
            "Attach with group, index and size."
        )
    if commit.group != endpoint.place.group:
        raise NotAssigned(
            f"The endpoint {endpoint.id} is of the group {endpoint.place.group!r}, not of "
            f"{commit.group!r}."
        )
    if endpoint.is_dynamic:
        # The group's generation may have risen since; a held partition is still the member's.
        require_share(endpoint, commit.generation)
    else:
        require_generation(group, commit.generation)
        require_generation(group, endpoint.generation)
    require_topic(context.target.topic_id, commit.topic_id)
    if commit.number <= endpoint.commits:
        return False
    if endpoint.state is State.CLOSED:
        raise IllegalTransition(f"The endpoint {endpoint.id} is closed and cannot commit.")
    own = _own(context)
    for position in commit.positions:
        if position.partition not in own:
            size = "" if endpoint.size is None else f", of {endpoint.size}"
            raise NotAssigned(
                f"The partition {position.partition} is not one of {endpoint.where}{size}; the "
                f"channel has {context.target.partitions} partitions."
            )
        stored = context.stored.get(position.partition)
        if stored is not None:
            require_forward(position, stored, group)
    return True


def _own(context: CommitContext) -> Container[int]:
    endpoint, partitions = context.endpoint, context.target.partitions
    if endpoint.is_dynamic:
        return held_partitions(endpoint, context.members, partitions)
    return endpoint_partitions(endpoint, partitions)


def require_forward(position: Position, stored: Committed, group: Group) -> None:
    """Raise GoesBack if the position is before the stored one."""
    at = stored.position
    if position.order < at.order:
        raise GoesBack(
            f"The group {group.name!r} has committed offset {at.offset}, record {at.record} of "
            f"partition {at.partition}; a commit cannot go back to offset {position.offset}, "
            f"record {position.record}. To read again, close the readers and use offsets/reset."
        )


@dataclass(kw_only=True)
class CommittedOffsets:
    """Committed offsets of a group; `members` are the owners of positions, -1 for the group."""

    members: tuple[int, ...]
    offsets: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """By member and partition: the topic's id, and the offset of the next message."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Awaited offsets, by partition of the topic with this id."""

    topic_id: str
    offsets: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A partition in which a group, or a member, has not committed far enough."""

    index: int | None
    """The index of the member in a broadcast group."""
    partition: int
    committed: int | None
    """None if nothing is committed in this topic."""
    wanted: int


@dataclass(frozen=True, kw_only=True)
class AckResult:
    """Partitions in which a group has not committed far enough.

    `known`: the group ever had a member.
    """

    known: bool
    missing: tuple[Missing, ...]

    @property
    def passed(self) -> bool:
        """Whether the group has committed past all of the offsets."""
        return self.known and not self.missing


def ack_result(committed: CommittedOffsets | None, bounds: Bounds) -> AckResult:
    """Compare committed offsets, None for a group without any member, with the bounds."""
    if committed is None:
        return AckResult(known=False, missing=())
    missing = []
    for member in committed.members:
        for partition, wanted in bounds.offsets.items():
            topic_id, offset = committed.offsets.get((member, partition), (None, 0))
            if topic_id != bounds.topic_id or offset < wanted:
                missing.append(
                    Missing(
                        index=None if member < 0 else member,
                        partition=partition,
                        committed=offset if topic_id == bounds.topic_id else None,
                        wanted=wanted,
                    )
                )
    return AckResult(known=True, missing=tuple(missing))
