"""Groups: kinds and members of the endpoints of one logical reader or writer. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.core.auth.model import Owned, OwnedKind
from sluiceway_gateway.core.errors import GroupLargerThanPinned, GroupMode, GroupSize
from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, GroupKey, Mode, Place, Role


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
    owner: str | None = None
    """Label of its owner, SHARED for every label; None for nobody."""

    def owned(self, channel: str) -> Owned:
        """Return the group as its owner's, in the channel of this name."""
        return Owned(
            channel=channel,
            channel_uid=self.channel_uid,
            kind=OwnedKind.READERS if self.role is Role.READER else OwnedKind.WRITERS,
            name=self.name,
            owner=self.owner,
        )

    def claimed_by(self, label: str | None) -> "Group":
        """Return the group as the label's, if nobody owns it; anonymous endpoints stay nobody's."""
        unowned = self.owner is None and self.name != ANONYMOUS
        return replace(self, owner=label) if unowned and label is not None else self

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

    def keeps_reports(self, generation: int) -> bool:
        """Return whether the last positions reported by former members of this generation apply.

        A reset deletes positions, and another size or mode changes whose they are. In dynamic
        groups, every join and leave makes a generation, and members of broadcast groups keep their
        positions at another size.
        """
        return self.dynamic or self.mode is Mode.BROADCAST or generation == self.generation

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


def departures(changes: Iterable[tuple[Endpoint | None, Endpoint]]) -> dict[GroupKey, list[str]]:
    """Return the dynamic groups whose live members change, each with those that leave, by id.

    A new endpoint has None before it.
    """
    departed: dict[GroupKey, list[str]] = {}
    for before, after in changes:
        was_alive = before is not None and before.lives
        if after.is_dynamic and was_alive != after.lives:
            leaving = departed.setdefault(after.group_key, [])
            if was_alive:
                leaving.append(after.id)
    return departed


def finished_after(before: Group, after: Group, through: Mapping[int, int]) -> Mapping[int, int]:
    """Return the ends of a group's places after a change of its size or mode.

    `through` has the number of the last writer that each place has read to its end, by index; -1
    stands for all places without their own. Places of another size share the positions of the
    former ones, so they have read only what all of these have. Members of broadcast groups keep
    their positions, and with another mode all positions are others.
    """
    if before.mode is not after.mode:
        return {}
    if before.mode is Mode.BROADCAST:
        return through
    common = through.get(-1, 0)
    if not before.dynamic:
        common = min(through.get(index, common) for index in range(before.size or 1))
    return {-1: common} if common else {}


def require_growable(channel: Channel, group: str, size: int) -> None:
    """Raise GroupLargerThanPinned if the group needs more partitions, and there will be no more."""
    if size > channel.spec.partitions and (channel.spec.pinned or channel.adopted):
        reason = "its topic was adopted" if channel.adopted else "it is pinned"
        raise GroupLargerThanPinned(
            f"The group {group!r} cannot have {size} members: the channel {channel.name!r} has "
            f"{channel.spec.partitions} partitions and cannot grow, because {reason}. Use a "
            "smaller group."
        )


def new_group(
    channel_uid: str, role: Role, name: str, config: GroupConfig, *, owner: str | None = None
) -> Group:
    """Return a group without members; the anonymous endpoints of a role have no owner."""
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
        owner=None if name == ANONYMOUS else owner,
    )
