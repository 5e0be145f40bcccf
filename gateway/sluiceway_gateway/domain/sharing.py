"""Dynamic groups: who has which partitions while members come and go. Pure.

A member's share is its rank among the living, by epoch: partition p is that of the member whose
rank is p modulo their number. Whoever comes or goes raises the group's generation, and each
member takes its share of that when it is ready to let go of the one that it has. Of all whose
shares have a partition, the one of the lowest generation holds it: the others wait. So a
partition has one holder at any time, and passes on at the moment at which this one lets go.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sluiceway_gateway.domain.errors import IllegalTransition, StaleGeneration
from sluiceway_gateway.endpoints.model import Endpoint, Share
from sluiceway_gateway.groups.model import Group


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


def due(members: Iterable[Member], endpoint: str) -> Share:
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
    return replace(endpoint, share=due(members, endpoint.id), generation=take)


def regrouped(group: Group, *, living: int, now: datetime) -> Group:
    """Return the group in a new generation, as somebody came or went."""
    return replace(group, generation=group.generation + 1, size=max(1, living), changed_at=now)


def require_at_work(endpoint: Endpoint) -> None:
    """Raise StaleGeneration for a lost member, IllegalTransition for one that closed or failed."""
    if endpoint.may_return:
        raise StaleGeneration(
            f"The endpoint {endpoint.id} was lost: no heartbeat came for the channel's patience, "
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
