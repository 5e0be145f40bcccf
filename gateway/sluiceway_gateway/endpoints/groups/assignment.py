"""Partition assignment in groups, static and dynamic. Pure.

In a dynamic group, a member's share is its rank among the live members, ordered by index, and
their number: the share contains the partitions p with p modulo the number equal to the rank. Every
join and leave raises the group's generation, and each member takes its share of the new generation
once it is ready to release the old one. If several shares contain a partition, the share of the
lowest generation holds it, and the others wait. So a partition has one holder at any time, and
passes to the next one when the holder releases it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sluiceway_gateway.core.errors import IllegalTransition, StaleGeneration
from sluiceway_gateway.endpoints.groups.model import Group
from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, Mode, Place, Role, Share


def assigned_partitions(place: Place, mode: Mode, size: int | None, partitions: int) -> range:
    """Return the partitions of a member, on a channel with `partitions` partitions.

    A member of a shared group of readers has every `size`-th one; a member of a dynamic group has
    none before it takes its share; all other endpoints have all.
    """
    if place.role is not Role.READER or place.group == ANONYMOUS or mode is not Mode.SHARED:
        return range(partitions)
    return range(0) if size is None else range(place.index, partitions, size)


def endpoint_partitions(endpoint: Endpoint, partitions: int) -> range:
    """Return the partitions of an endpoint; for a dynamic member, those of its share."""
    if endpoint.share is not None:
        return endpoint.share.of(partitions)
    return assigned_partitions(endpoint.place, endpoint.mode, endpoint.size, partitions)


def reading_place(reader: Endpoint) -> tuple[str, str, int]:
    """Return the key of a place whose end a reader of a group stores; see its `store.py`."""
    index = -1 if reader.is_dynamic else reader.place.index
    return reader.channel_uid, reader.place.group, index


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
    ordered = sorted(members, key=lambda member: member.index)
    return Share(index=[member.endpoint for member in ordered].index(endpoint), size=len(ordered))


def split(share: Share, generation: int, others: Sequence[Member], partitions: int) -> Split:
    """Return which partitions of a share its member holds, and which are pending."""
    earlier_shares = [
        member.share for member in others if member.share and member.generation < generation
    ]
    own: list[int] = []
    pending: list[int] = []
    for partition in share.of(partitions):
        waits = any(partition in earlier_share for earlier_share in earlier_shares)
        (pending if waits else own).append(partition)
    return Split(own=tuple(own), pending=tuple(pending))


def held_partitions(
    endpoint: Endpoint, members: Sequence[Member], partitions: int
) -> tuple[int, ...]:
    """Return the partitions of its last share that one of the live members holds."""
    if endpoint.share is None or not endpoint.lives:
        return ()
    return split(endpoint.share, endpoint.generation, members, partitions).own


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
