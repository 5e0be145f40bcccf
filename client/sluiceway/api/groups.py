"""Groups: memberships, and the progress of commits, as values."""

from dataclasses import dataclass
from typing import Literal

from sluiceway.api.arguments import group_path, whole_number
from sluiceway.errors import OptionError

__all__ = ["CommitProgress", "Membership", "Mode", "PartitionShortfall", "membership"]

Mode = Literal["shared", "broadcast"]


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A place in a group: `index` of `size`; members of dynamic groups have neither.

    A member of a dynamic group with a `static_id` takes over from its predecessor with this id.
    """

    group: str
    index: int | None
    size: int | None
    mode: Mode = "shared"
    static_id: str | None = None

    @property
    def dynamic(self) -> bool:
        """True for a group without a fixed size: each join and leave reassigns its partitions."""
        return self.size is None

    def __str__(self) -> str:
        return self.group if self.dynamic else f"{self.group}[{self.index} of {self.size}]"


def membership(
    group: str | None,
    index: int | None,
    size: int | None,
    mode: Mode = "shared",
    *,
    dynamic: bool = False,
) -> Membership | None:
    """Check the arguments and return the membership; a group alone has one member.

    Raises OptionError.
    """
    if dynamic:
        if group is None or index is not None or size is not None or mode != "shared":
            raise OptionError(
                "a member of a dynamic group has only the group's name: omit index, size and mode"
            )
        group_path("any", group)
        return Membership(group=group, index=None, size=None)
    if group is None:
        if index is not None or size is not None or mode != "shared":
            raise OptionError("index, size and mode need a group: give its name with group=…")
        return None
    if mode not in ("shared", "broadcast"):
        raise OptionError(f"mode is {mode!r}; it must be 'shared' or 'broadcast'")
    if index is None and size is None:
        index, size = 0, 1
    length = whole_number(size, 1)
    place = None if length is None else whole_number(index, 0, length)
    if place is None:
        raise OptionError(
            f"index is {index!r} and size is {size!r}: give both or neither; indexes run from 0 "
            "to size - 1"
        )
    group_path("any", group)
    return Membership(group=group, index=place, size=length, mode=mode)


@dataclass(frozen=True, kw_only=True)
class PartitionShortfall:
    """A partition in which a group has not committed up to the wanted offset.

    `index` is the member's in a broadcast group.
    """

    index: int | None
    partition: int
    committed: int | None
    wanted: int


@dataclass(frozen=True, kw_only=True)
class CommitProgress:
    """Whether a group has committed past given offsets; `lacking` counts the missing partitions."""

    passed: bool
    known: bool
    lacking: int
    missing: tuple[PartitionShortfall, ...]
