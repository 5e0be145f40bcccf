"""Positions of groups, and the rules of a commit. Pure."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import datetime

from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, Role, State
from sluiceway_gateway.errors import (
    GoesBack,
    IllegalTransition,
    NoGroup,
    NotAssigned,
    StaleGeneration,
    TopicChanged,
)
from sluiceway_gateway.groups.model import (
    Group,
    Member,
    endpoint_partitions,
    held_partitions,
    require_share,
)


@dataclass(frozen=True, kw_only=True)
class Position:
    """The next record to read: a message, and how many of its records are done."""

    partition: int
    offset: int
    record: int = 0


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A position as it stands, and what put it there."""

    position: Position
    topic_id: str
    epoch: int
    """That of the endpoint; 0 after a reset."""
    number: int
    committed_at: datetime


@dataclass(frozen=True, kw_only=True)
class Commit:
    """What an endpoint asks to have committed: all of it, or nothing."""

    channel: str
    """Its name."""
    channel_uid: str
    group: str
    endpoint: str
    epoch: int
    generation: int
    topic_id: str
    number: int
    """From 1; a number that is not above the last that counted changes nothing."""
    positions: tuple[Position, ...]


@dataclass(frozen=True, kw_only=True)
class CommitContext:
    """What a commit is held against, while nobody else can change it."""

    endpoint: Endpoint
    group: Group
    topic_id: str | None
    partitions: int
    stored: Mapping[int, Committed]
    others: tuple[Member, ...] = ()
    """The living members of a dynamic group besides this one."""


def validate_commit(commit: Commit, standing: CommitContext) -> bool:
    """Whether the commit is new, and right; False for a repeat, however late it comes.

    Raises Fenced, NoGroup, NotAssigned, StaleGeneration, TopicChanged, GoesBack and
    IllegalTransition.
    """
    endpoint, group = standing.endpoint, standing.group
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
        # The group's generation goes up when somebody comes; what is held stays one's own.
        require_share(endpoint, commit.generation)
    else:
        require_generation(group, commit.generation)
        require_generation(group, endpoint.generation)
    require_topic(standing.topic_id, commit.topic_id)
    if commit.number <= endpoint.commits:
        return False
    if endpoint.state is State.CLOSED:
        raise IllegalTransition(f"The endpoint {endpoint.id} is closed and commits no more.")
    own = _own(standing)
    for asked in commit.positions:
        if asked.partition not in own:
            size = "" if endpoint.size is None else f", of {endpoint.size}"
            raise NotAssigned(
                f"The partition {asked.partition} is not one of {endpoint.where}{size}; the "
                f"channel has {standing.partitions} partitions."
            )
        stored = standing.stored.get(asked.partition)
        if stored is not None:
            require_forward(asked, stored, group)
    return True


def _own(standing: CommitContext) -> Container[int]:
    endpoint, partitions = standing.endpoint, standing.partitions
    if endpoint.is_dynamic:
        return held_partitions(endpoint, standing.others, partitions)
    return endpoint_partitions(endpoint, partitions)


def require_generation(group: Group, generation: int) -> None:
    """Raise StaleGeneration unless the group is still at this generation."""
    if generation != group.generation:
        raise StaleGeneration(
            f"The group {group.name!r} is at generation {group.generation}, not {generation}: its "
            "size was changed or its positions were reset meanwhile. Attach a new instance, which "
            "goes on where the positions stand."
        )


def require_topic(topic_id: str | None, given: str) -> None:
    """Raise TopicChanged unless this is the channel's topic."""
    if given != topic_id:
        raise TopicChanged(
            f"The channel's topic has the id {topic_id}, the positions are of {given}: they say "
            "nothing about this topic. Attach anew, or set the group by offsets/reset."
        )


def require_forward(asked: Position, stored: Committed, group: Group) -> None:
    """Raise GoesBack where a commit lies before what is committed."""
    at = stored.position
    if (asked.offset, asked.record) < (at.offset, at.record):
        raise GoesBack(
            f"The group {group.name!r} stands at offset {at.offset}, record {at.record} of "
            f"partition {at.partition}; a commit does not go back to offset {asked.offset}, record "
            f"{asked.record}. To read again, close the readers and use offsets/reset."
        )
