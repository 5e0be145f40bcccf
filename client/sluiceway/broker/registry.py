"""The members of groups that this process is."""

import os
import threading
from dataclasses import dataclass

from sluiceway.broker.group_members import Seat

__all__ = ["MEMBERS", "Member"]


@dataclass(kw_only=True)
class Member(Seat):
    """A member of a group whose members come and go."""

    session: str
    joined: int = 0
    """The generation that it was told when it joined last."""
    partitions: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    started: bool = False
    """Whether it has ever had a share."""
    beats: int = 0
    takes: frozenset[str] = frozenset()
    """What beats may carry beyond what every gateway takes."""


class Registry:
    """The members of this process by id, whichever Broker they joined by."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: dict[tuple[int, str], Member] = {}

    def put(self, member: Member) -> None:
        """Keep a member."""
        with self._lock:
            self._members[os.getpid(), member.id] = member

    def find(self, id_: str, group: str) -> Member | None:
        """Return the member of that id, if it is of that group."""
        found = self._members.get((os.getpid(), id_))
        return found if found is not None and found.group == group else None

    def drop(self, member: Member) -> None:
        """Forget a member."""
        with self._lock:
            self._members.pop((os.getpid(), member.id), None)


MEMBERS = Registry()
