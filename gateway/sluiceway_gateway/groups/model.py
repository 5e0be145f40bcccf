"""Groups: names, membership, and the assignment of partitions, static and dynamic. Pure.

In a dynamic group, a member's share is its rank among the live members, ordered by index, and
their number: the share contains the partitions p with p modulo the number equal to the rank. Every
join and leave raises the group's generation, and each member takes its share of the new generation
once it is ready to release the old one. If several shares contain a partition, the share of the
lowest generation holds it, and the others wait. So a partition has one holder at any time, and
passes to the next one when the holder releases it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, Mode, Place, Role, Share
from sluiceway_gateway.errors import GroupMode, GroupSize, IllegalTransition, StaleGeneration

GROUP_LENGTH = 249
"""Maximum length of a group's name: at most 996 bytes, which fit into an index of PostgreSQL."""
# UTF-8 has no surrogates.
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def check_group(name: str) -> str:
    """Return a valid group name; raises ValueError naming the broken rule."""
    return _checked(name, "a group's name")


def check_static_id(name: str) -> str:
    """Return a valid static id; raises ValueError naming the broken rule."""
    return _checked(name, "a static id")


def _checked(name: str, what: str) -> str:
    if not 1 <= len(name) <= GROUP_LENGTH:
        raise ValueError(f"{what} has 1 to {GROUP_LENGTH} characters, this one has {len(name)}")
    if _REFUSED.search(name):
        raise ValueError(f"{what} has no control characters: {name!r} does")
    return name


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """The mode and size of a group, as requested by a member."""

    mode: Mode = Mode.SHARED
    size: int | None = None
    """None for anonymous endpoints and dynamic groups."""
    dynamic: bool = False


@dataclass(frozen=True, kw_only=True)
class Group:
    """The replicas of one logical reader or writer."""

    channel_uid: str
    role: Role
    name: str
    mode: Mode
    size: int | None
    """The number of members, in a dynamic group of live ones; None for the anonymous endpoints of
    a role, which are independent of each other."""
    generation: int
    """Counts changes of size and mode and resets; in a dynamic group, also joins and leaves."""
    epoch: int
    """Number of instances that were attached to it so far."""
    next_index: int
    """The index of the next member that requests none."""
    dynamic: bool = False
    """Whether members have no fixed places."""
    changed_at: datetime | None = None
    """Time of the last change of the generation."""

    def matches(self, config: GroupConfig) -> bool:
        """Whether the group is of this kind, and, unless it is dynamic, of this size."""
        same_kind = (self.mode, self.dynamic) == (config.mode, config.dynamic)
        return same_kind and (self.dynamic or self.size == config.size)

    def reconfigured(self, config: GroupConfig, *, live: int, now: datetime) -> "Group":
        """Return the group as requested, in a new generation; itself if it matches.

        Raises GroupSize or GroupMode while a member is alive.
        """
        if self.matches(config):
            return self
        members = f"{live} of its members {'is' if live == 1 else 'are'} alive"
        if live and self.dynamic != config.dynamic:
            is_, other = ("dynamic", "with") if self.dynamic else ("of a fixed size", "without")
            raise GroupSize(
                f"The group {self.name!r} is {is_}, and {members}. Join it as it is, or {other} "
                "an index and a size after all members have closed."
            )
        if live and self.size != config.size:
            raise GroupSize(
                f"The group {self.name!r} has the size {self.size}, not {config.size}, and "
                f"{members}. Join with its size, or after all members have closed."
            )
        if live:
            raise GroupMode(
                f"The group {self.name!r} is {self.mode}, not {config.mode}, and {members}. Join "
                "it as it is, use another group, or join after all members have closed."
            )
        size = 1 if config.dynamic else config.size
        group = replace(self, size=size, mode=config.mode, dynamic=config.dynamic)
        return group.next_generation(now)

    def has_positions(self, member: int) -> bool:
        """Return whether the group has positions for a member; -1 stands for the whole group.

        Positions of former members stay stored after a change of mode or size.
        """
        return member < 0 if self.mode is Mode.SHARED else 0 <= member < (self.size or 0)

    def has_place(self, index: int, mode: Mode) -> bool:
        """Return whether the group has this place, after a change of mode or size."""
        return mode is self.mode and (mode is Mode.SHARED or self.has_positions(index))

    def next_generation(self, now: datetime, *, size: int | None = None) -> "Group":
        """Return the group in a new generation, with another `size` if given."""
        generation = self.generation + 1
        return replace(self, generation=generation, size=size or self.size, changed_at=now)

    def rebalanced(self, *, live: int, now: datetime) -> "Group":
        """Return a dynamic group in a new generation, after members joined or left."""
        return self.next_generation(now, size=max(1, live))

    def with_member(self, index: int | None) -> tuple["Group", Place]:
        """Return the group with a new instance, and the place of that instance."""
        group = self
        if self.name == ANONYMOUS or index is None:
            index = self.next_index
            group = replace(self, next_index=index + 1)
        place = Place(role=self.role, group=self.name, index=index)
        return replace(group, epoch=self.epoch + 1), place


def new_group(channel_uid: str, role: Role, name: str, config: GroupConfig) -> Group:
    """Return a group without members."""
    return Group(
        channel_uid=channel_uid,
        role=role,
        name=name,
        mode=config.mode,
        size=1 if config.dynamic else config.size,
        generation=1,
        epoch=0,
        next_index=0,
        dynamic=config.dynamic,
    )


def assigned_partitions(place: Place, config: GroupConfig, partitions: int) -> range:
    """Return the partitions of a member, on a channel with `partitions` partitions.

    A member of a shared group of readers has every `size`-th one; a member of a dynamic group has
    none before it takes its share; all other endpoints have all.
    """
    if place.role is not Role.READER or config.mode is not Mode.SHARED:
        return range(partitions)
    if config.dynamic:
        return range(0)
    return range(partitions) if config.size is None else range(place.index, partitions, config.size)


def endpoint_partitions(endpoint: Endpoint, partitions: int) -> range:
    """Return the partitions of an endpoint; for a dynamic member, those of its share."""
    if endpoint.share is not None:
        return endpoint.share.of(partitions)
    config = GroupConfig(mode=endpoint.mode, size=endpoint.size, dynamic=endpoint.is_dynamic)
    return assigned_partitions(endpoint.place, config, partitions)


def position_member(place: Place, mode: Mode) -> int:
    """Return the member index of an endpoint's positions; -1 if the group shares them."""
    return place.index if mode is Mode.BROADCAST else -1


@dataclass(frozen=True, kw_only=True)
class Member:
    """A live member of a dynamic group, for the computation of shares."""

    endpoint: str
    index: int
    """Ascending in the order of joins; kept by a restart with a static id."""
    generation: int
    """The generation of its share."""
    share: Share | None


@dataclass(frozen=True, kw_only=True)
class Split:
    """The partitions of a share: held by its member, or still pending with other members."""

    own: tuple[int, ...]
    pending: tuple[int, ...]


def target_share(members: Iterable[Member], endpoint: str) -> Share:
    """Return the share of a live member in the group's current generation."""
    ordered = sorted(members, key=lambda each: each.index)
    return Share(index=[each.endpoint for each in ordered].index(endpoint), size=len(ordered))


def split(share: Share, generation: int, others: Sequence[Member], partitions: int) -> Split:
    """Return which partitions of a share its member holds, and which are pending."""
    before = [each.share for each in others if each.share and each.generation < generation]
    own: list[int] = []
    pending: list[int] = []
    for partition in share.of(partitions):
        waits = any(partition in each for each in before)
        (pending if waits else own).append(partition)
    return Split(own=tuple(own), pending=tuple(pending))


def held_partitions(
    endpoint: Endpoint, others: Sequence[Member], partitions: int
) -> tuple[int, ...]:
    """Return the partitions of its last share that a dynamic member holds."""
    if endpoint.share is None or not endpoint.lives:
        return ()
    return split(endpoint.share, endpoint.generation, others, partitions).own


def share_generation(endpoint: Endpoint) -> int | None:
    """Return the generation of an endpoint's share; None without a share."""
    return None if endpoint.share is None else endpoint.generation


def with_share(
    endpoint: Endpoint, group: Group, members: Sequence[Member], *, take: int, has: int | None
) -> Endpoint:
    """Return the member with its share of the generation `take`, or unchanged.

    It takes the share only while the group is at `take` and its current share is of the
    generation `has`, so a delayed request changes nothing.
    """
    if take != group.generation or share_generation(endpoint) != has or has == take:
        return endpoint
    return replace(endpoint, share=target_share(members, endpoint.id), generation=take)


def require_live(endpoint: Endpoint) -> None:
    """Raise StaleGeneration for a lost member, IllegalTransition for a closed or failed one."""
    if endpoint.may_return:
        raise StaleGeneration(
            f"The endpoint {endpoint.id} was lost: no heartbeat arrived within the channel's "
            "timeout, and its partitions went to other members. Send a heartbeat, sync, and "
            "continue at the group's positions."
        )
    if not endpoint.lives:
        raise IllegalTransition(
            f"The endpoint {endpoint.id} is {endpoint.state} and has no assignment. Attach a new "
            "instance."
        )


def require_share(endpoint: Endpoint, generation: int) -> None:
    """Raise StaleGeneration unless the member's share is of this generation."""
    if share_generation(endpoint) != generation:
        current = "no assignment"
        if endpoint.share is not None:
            current = f"the assignment of generation {share_generation(endpoint)}"
        raise StaleGeneration(
            f"Expected generation {generation}, but {endpoint.where} has {current}: its partitions "
            "were released, or not released in time. Sync, and continue at the group's positions."
        )
