"""Positions of groups, and the validation of commits."""

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
    """The next record to read: a message's offset, and how many of its records are done."""

    partition: int
    offset: int
    record: int = 0


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A stored position, and the commit that it comes from."""

    position: Position
    topic_id: str
    epoch: int
    """The endpoint's epoch; 0 after a reset."""
    number: int
    committed_at: datetime


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
    """From 1; a number not above the last one changes nothing."""
    positions: tuple[Position, ...]


@dataclass(frozen=True, kw_only=True)
class CommitContext:
    """The locked state that a commit is validated against."""

    endpoint: Endpoint
    group: Group
    topic_id: str | None
    partitions: int
    stored: Mapping[int, Committed]
    others: tuple[Member, ...] = ()
    """The living members of a dynamic group besides this one."""


def validate_commit(commit: Commit, context: CommitContext) -> bool:
    """Return True for a valid new commit, False for a repeat, however late.

    Raises Fenced, NoGroup, NotAssigned, StaleGeneration, TopicChanged, GoesBack and
    IllegalTransition.
    """
    endpoint, group = context.endpoint, context.group
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
        # The group's generation rises with new members; a held partition stays the member's own.
        require_share(endpoint, commit.generation)
    else:
        require_generation(group, commit.generation)
        require_generation(group, endpoint.generation)
    require_topic(context.topic_id, commit.topic_id)
    if commit.number <= endpoint.commits:
        return False
    if endpoint.state is State.CLOSED:
        raise IllegalTransition(f"The endpoint {endpoint.id} is closed and cannot commit.")
    own = _own(context)
    for asked in commit.positions:
        if asked.partition not in own:
            size = "" if endpoint.size is None else f", of {endpoint.size}"
            raise NotAssigned(
                f"The partition {asked.partition} is not one of {endpoint.where}{size}; the "
                f"channel has {context.partitions} partitions."
            )
        stored = context.stored.get(asked.partition)
        if stored is not None:
            require_forward(asked, stored, group)
    return True


def _own(context: CommitContext) -> Container[int]:
    endpoint, partitions = context.endpoint, context.partitions
    if endpoint.is_dynamic:
        return held_partitions(endpoint, context.others, partitions)
    return endpoint_partitions(endpoint, partitions)


def require_generation(group: Group, generation: int) -> None:
    """Raise StaleGeneration unless the group has this generation."""
    if generation != group.generation:
        raise StaleGeneration(
            f"The group {group.name!r} is at generation {group.generation}, not {generation}: it "
            "was resized or reset. Attach a new instance; it continues from the committed offsets."
        )


def require_topic(topic_id: str | None, given: str) -> None:
    """Raise TopicChanged unless this is the channel's topic."""
    if given != topic_id:
        raise TopicChanged(
            f"The channel's topic has the id {topic_id}, but the positions are of {given}. Attach "
            "again, or set the group's positions with offsets/reset."
        )


def require_forward(asked: Position, stored: Committed, group: Group) -> None:
    """Raise GoesBack if the position is before the stored one."""
    at = stored.position
    if (asked.offset, asked.record) < (at.offset, at.record):
        raise GoesBack(
            f"The group {group.name!r} has committed offset {at.offset}, record {at.record} of "
            f"partition {at.partition}; a commit cannot go back to offset {asked.offset}, record "
            f"{asked.record}. To read again, close the readers and use offsets/reset."
        )
