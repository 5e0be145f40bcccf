"""Group state of a process: members, fetched offsets and standalone commits of its Brokers."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluiceway.endpoint.committer import StandaloneCommitter
from sluiceway.fork_guard import ForkGuard
from sluiceway.rest.endpoint_models import Position
from sluiceway.rest.endpoints import EndpointCalls
from sluiceway.rest.models import Connection

__all__ = ["GroupState", "JoinedMember", "group_state"]


@dataclass(kw_only=True)
class JoinedMember:
    """A member of a dynamic group. Its heartbeats and syncs are requests of the program's own.

    It is not an EndpointHandle for that reason: nothing may send heartbeats in the background.
    """

    id: str
    channel: str
    uid: str
    topic_id: str | None
    group: str
    epoch: int
    session: str
    takes: frozenset[str] = frozenset()
    """What heartbeats may carry beyond what every gateway accepts."""
    joined: int = 0
    """The generation that the last join returned."""
    generation: int | None = None
    """The generation of its assignment; None: it has none."""
    partitions: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    started: bool = False
    """Whether it ever had an assignment."""
    heartbeats: int = 0
    commits: int = 0
    known: dict[int, int] = field(default_factory=dict)
    """Committed offsets as last seen, by partition."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def commit(self, calls: EndpointCalls, offsets: Mapping[int, int]) -> None:
        """Commit the next offsets to read, all or none. Raises GatewayError."""
        with self.lock:
            self.commits += 1
            body = {
                "uid": self.uid,
                "id": self.id,
                "epoch": self.epoch,
                "generation": self.generation or 1,
                "topic_id": self.topic_id,
                "number": self.commits,
            }
            positions = {p: Position(offset=offset) for p, offset in offsets.items()}
            calls.commit(self.channel, self.group, body, positions=positions)
            self.known |= offsets


class GroupState:
    """Group state that all Brokers of a process share.

    pykafka's consumers fetch by one Broker, and join groups and commit by another.
    """

    def __init__(self) -> None:
        self.members: dict[str, JoinedMember] = {}
        self._lock = threading.Lock()
        self._fetched: dict[str | None, dict[int, int]] = {}
        self._committers: dict[tuple[str, str | None, str], StandaloneCommitter] = {}

    def member(self, id_: str, group: str) -> JoinedMember | None:
        """Return the group's member with this id."""
        found = self.members.get(id_)
        return found if found is not None and found.group == group else None

    def committer(self, connection: Connection, group: str) -> StandaloneCommitter:
        """Return the committer for a group that this process did not join."""
        uid, topic_id = connection.channel_uid, connection.topic_id
        with self._lock:
            return self._committers.setdefault(
                (uid, topic_id, group),
                StandaloneCommitter(connection.channel_name, group, uid=uid, topic_id=topic_id),
            )

    def add_fetched(self, topic_id: str | None, partition: int, offset: int) -> None:
        """Allow commits up to an offset, as the messages before it were fetched."""
        with self._lock:
            found = self._fetched.setdefault(topic_id, {})
            found[partition] = max(offset, found.get(partition, 0))

    def fetched(self, topic_id: str | None) -> Mapping[int, int]:
        """Return the offset up to which each partition of a topic was fetched."""
        with self._lock:
            return dict(self._fetched.get(topic_id, {}))


_STATES: dict[ForkGuard, GroupState] = {}


def group_state() -> GroupState:
    """Return the state of this process; a forked process has its own."""
    guard = ForkGuard()
    return _STATES.get(guard) or _STATES.setdefault(guard, GroupState())
