"""Groups: membership rules and partition assignment, static and dynamic. Pure.

A member's share is its rank among the living, by epoch: partition p is that of the member whose
rank is p modulo their number. Whoever comes or goes raises the group's generation, and each
member takes its share of that when it is ready to let go of the one that it has. Of all whose
shares have a partition, the one of the lowest generation holds it: the others wait. So a
partition has one holder at any time, and passes on at the moment at which this one lets go.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, Mode, Place, Role, Share
from sluiceway_gateway.errors import GroupMode, GroupSize, IllegalTransition, StaleGeneration

GROUP_PATTERN = r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,199}$"
_NAME = re.compile(GROUP_PATTERN.removesuffix("$") + r"\Z")


def check_group(name: str) -> str:
    """Return `name` if a group may have it; raises ValueError saying the rule."""
    if not _NAME.match(name):
        raise ValueError(
            "a group's name has 1 to 200 characters of a-z, A-Z, 0-9, '.', '_' and '-', and starts "
            f"with a letter or a digit: {name[:250]!r} does not"
        )
    return name


@dataclass(frozen=True, kw_only=True)
class Group:
    """The replicas of one logical reader or writer."""

    channel_uid: str
    role: Role
    name: str
    mode: Mode
    size: int | None
    """How many members it has, living ones where it is dynamic; None for the anonymous ones of a
    role, who have nothing to do with one another."""
    generation: int
    """Counts the sizes, modes and resets; where it is dynamic, also who comes and goes."""
    epoch: int
    """Counts the instances that were attached to it."""
    next_index: int
    """For the next one that names no index."""
    dynamic: bool = False
    """Whether its members come and go, without places of their own."""
    changed_at: datetime | None = None
    """When the generation last went up."""


def founded(
    channel_uid: str,
    role: Role,
    name: str,
    *,
    mode: Mode,
    size: int | None,
    dynamic: bool = False,
) -> Group:
    """Return the group as its first member finds it."""
    return Group(
        channel_uid=channel_uid,
        role=role,
        name=name,
        mode=mode,
        size=1 if dynamic else size,
        generation=1,
        epoch=0,
        next_index=0,
        dynamic=dynamic,
    )


def fits(group: Group, *, mode: Mode, size: int | None, dynamic: bool = False) -> bool:
    """Whether the group is as somebody asks for it; nobody asks for a dynamic one's size."""
    return (group.mode, group.dynamic) == (mode, dynamic) and (dynamic or group.size == size)


def fitted(
    group: Group,
    *,
    mode: Mode,
    size: int | None,
    living: int,
    dynamic: bool = False,
    now: datetime | None = None,
) -> Group:
    """Return the group as somebody asks for it: itself, if it is so.

    Its size, its mode and whether it is dynamic change, in a new generation, only while none of
    its members lives; raises GroupSize and GroupMode.
    """
    if fits(group, mode=mode, size=size, dynamic=dynamic):
        return group
    members = f"{living} of its members {'lives' if living == 1 else 'live'}"
    if living and group.dynamic != dynamic:
        is_, other = ("dynamic", "with") if group.dynamic else ("of a fixed size", "without")
        raise GroupSize(
            f"The group {group.name!r} is {is_}, and {members}: join as it is, or {other} an "
            "index and a size when all have closed."
        )
    if living and group.size != size:
        raise GroupSize(
            f"The group {group.name!r} has the size {group.size}, not {size}, and {members}: join "
            "with the size that it has, or when all have closed."
        )
    if living:
        raise GroupMode(
            f"The group {group.name!r} is {group.mode}, not {mode}, and {members}: join as it is, "
            "take another group, or come when all have closed."
        )
    return replace(
        group,
        size=1 if dynamic else size,
        mode=mode,
        dynamic=dynamic,
        generation=group.generation + 1,
        changed_at=now,
    )


def resized(group: Group, size: int, *, now: datetime) -> Group:
    """Return the group with another size, in a new generation."""
    return replace(group, size=size, generation=group.generation + 1, changed_at=now)


def joined(group: Group, index: int | None) -> tuple[Group, Place]:
    """Return the group with one instance more, and the place that this has."""
    if group.name == ANONYMOUS or index is None:
        index = group.next_index
        group = replace(group, next_index=index + 1)
    place = Place(role=group.role, group=group.name, index=index)
    return replace(group, epoch=group.epoch + 1), place


def assigned(place: Place, *, mode: Mode, size: int | None, partitions: int) -> range:
    """Return the partitions that are a member's: of shared groups every `size`-th.

    What members of dynamic groups have is in `sharing`.
    """
    if place.role is Role.READER and mode is Mode.SHARED and size is not None:
        return range(place.index, partitions, size)
    return range(partitions)


def member_of_positions(place: Place, mode: Mode) -> int:
    """Return whose positions a member commits: its own, or -1 for those of the whole group."""
    return place.index if mode is Mode.BROADCAST else -1


@dataclass(frozen=True, kw_only=True)
class Member:
    """A living member of a dynamic group, as far as it concerns the others."""

    endpoint: str
    epoch: int
    generation: int
    """Of its share."""
    share: Share | None


@dataclass(frozen=True, kw_only=True)
class Split:
    """The partitions of a share: those that its member has, and those that are still another's."""

    own: tuple[int, ...]
    pending: tuple[int, ...]


def target_share(members: Iterable[Member], endpoint: str) -> Share:
    """Return the share that a living member is to have in the group's present generation."""
    ordered = sorted(members, key=lambda each: each.epoch)
    return Share(index=[each.endpoint for each in ordered].index(endpoint), size=len(ordered))


def split(share: Share, generation: int, others: Sequence[Member], partitions: int) -> Split:
    """Return which partitions of a share its member has, and for which it waits."""
    before = [each.share for each in others if each.share and each.generation < generation]
    own: list[int] = []
    pending: list[int] = []
    for partition in share.of(partitions):
        waits = any(partition in each for each in before)
        (pending if waits else own).append(partition)
    return Split(own=tuple(own), pending=tuple(pending))


def held(endpoint: Endpoint, others: Sequence[Member], partitions: int) -> tuple[int, ...]:
    """Return the partitions that a member has by the share that it took last."""
    if endpoint.share is None or not endpoint.lives:
        return ()
    return split(endpoint.share, endpoint.generation, others, partitions).own


def share_generation(endpoint: Endpoint) -> int | None:
    """Return the generation of its share; None if it has none."""
    return None if endpoint.share is None else endpoint.generation


def taken(
    endpoint: Endpoint, group: Group, members: Sequence[Member], *, take: int, has: int | None
) -> Endpoint:
    """Return the member with its share of the generation `take`; itself, if it cannot have that.

    It can while the group is at `take`, and its own share is the one that it says: a request that
    comes late changes nothing.
    """
    if take != group.generation or share_generation(endpoint) != has or has == take:
        return endpoint
    return replace(endpoint, share=target_share(members, endpoint.id), generation=take)


def regrouped(group: Group, *, living: int, now: datetime) -> Group:
    """Return the group in a new generation, as somebody came or went."""
    return replace(group, generation=group.generation + 1, size=max(1, living), changed_at=now)


def require_at_work(endpoint: Endpoint) -> None:
    """Raise StaleGeneration for a lost member, IllegalTransition for one that closed or failed."""
    if endpoint.may_return:
        raise StaleGeneration(
            f"The endpoint {endpoint.id} was lost: no heartbeat within the channel's timeout, "
            "and its partitions went to the others. Send a heartbeat, then sync, and go on where "
            "the positions of the group stand."
        )
    if not endpoint.lives:
        raise IllegalTransition(
            f"The endpoint {endpoint.id} is {endpoint.state} and has no share of its group's "
            "partitions: attach a new instance."
        )


def require_share(endpoint: Endpoint, generation: int) -> None:
    """Raise StaleGeneration unless the member's share is of this generation."""
    if share_generation(endpoint) != generation:
        has = "has none" if endpoint.share is None else f"is of {endpoint.generation}"
        raise StaleGeneration(
            f"The share of {endpoint.where} {has}, not of the generation {generation}: it let go "
            "of those partitions, or was not waited for any longer. Sync, and go on where the "
            "positions of the group stand."
        )
