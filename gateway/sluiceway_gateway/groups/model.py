"""Groups of endpoints: who may join, and which partitions are whose. Pure."""

import re
from dataclasses import dataclass, replace
from datetime import datetime

from sluiceway_gateway.domain.errors import GroupMode, GroupSize
from sluiceway_gateway.endpoints.model import ANONYMOUS, Mode, Place, Role

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
