"""Group members of this process, and who commits for a group."""

import os
import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from sluiceway.broker.errors import Refusal
from sluiceway.broker.exceptions import OffsetOutOfRangeError
from sluiceway.errors import GatewayUnavailable
from sluiceway.rest.endpoint_models import Position
from sluiceway.rest.endpoints import EndpointCalls
from sluiceway.rest.models import Connection


@dataclass(kw_only=True)
class Seat:
    """An endpoint of a group, as far as it takes to commit."""

    id: str
    channel: str
    uid: str
    topic_id: str | None
    group: str
    epoch: int
    generation: int | None = None
    """Of its share of the partitions; None: it has none."""
    number: int = 0
    known: dict[int, int] = field(default_factory=dict)
    """What is committed, by partition, as far as it was heard."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def learn(self, positions: Mapping[int, Position]) -> None:
        """Note what is committed."""
        self.known |= {partition: at.offset for partition, at in positions.items()}

    def commit(self, calls: EndpointCalls, places: Mapping[int, int]) -> None:
        """Commit the next offsets to read, all or none; raises GatewayError."""
        with self.lock:
            self.number += 1
            body = {
                "uid": self.uid,
                "id": self.id,
                "epoch": self.epoch,
                "generation": self.generation or 1,
                "topic_id": self.topic_id,
                "number": self.number,
            }
            positions = {p: Position(offset=offset) for p, offset in places.items()}
            calls.commit(self.channel, self.group, body, positions=positions)
            self.known |= places


class StandaloneCommitter:
    """Who commits for a group without having joined it: this process, as far as it knows.

    What stands is compared with what this process knows of it, so that two that read one partition
    by mistake do not overtake each other in silence. One for the process: what fetches offsets and
    what commits them may be several Brokers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[Hashable, threading.Lock] = {}
        self._known: dict[Hashable, dict[int, Position]] = {}
        self._doubtful: dict[Hashable, dict[int, Position]] = {}

    def learn(self, connection: Connection, group: str, found: Mapping[int, Position]) -> None:
        """Note where a group stands, as somebody has asked."""
        with self._lock:
            self._known[_key(connection, group)] = dict(found)
            self._doubtful.pop(_key(connection, group), None)

    def known(
        self, calls: EndpointCalls, connection: Connection, group: str
    ) -> Mapping[int, Position]:
        """Return where the group stands as far as is known; asks if nothing is."""
        key = _key(connection, group)
        found, doubtful = self._known.get(key), self._doubtful.get(key)
        if found is not None and not doubtful:
            return found
        stored = calls.committed(connection.channel_name, group, index=None)
        if found is not None and doubtful:
            # Whether a commit counts whose answer did not come; what others did is theirs.
            stored = found | {p: at for p, at in doubtful.items() if stored.get(p) == at}
        self.learn(connection, group, stored)
        return stored

    def commit(
        self,
        calls: EndpointCalls,
        connection: Connection,
        group: str,
        places: Mapping[int, int],
    ) -> None:
        """Commit the next offsets to read, all or none; raises GatewayError."""
        key = _key(connection, group)
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        # One after the other: each says where the one before has left it.
        with turn:
            before = self.known(calls, connection, group)
            after = {p: Position(offset=offset) for p, offset in places.items()}
            try:
                calls.advance(
                    connection.channel_name,
                    group,
                    {"uid": connection.channel_uid, "topic_id": connection.topic_id},
                    positions=after,
                    before={p: before[p] for p in places if p in before},
                )
            except GatewayUnavailable:
                with self._lock:
                    self._doubtful[key] = after
                raise
            self.learn(connection, group, {**before, **after})


def _key(connection: Connection, group: str) -> Hashable:
    return os.getpid(), connection.channel_uid, group


def beyond(
    partition: int, offset: int, reach: Mapping[int, int], known: Mapping[int, int]
) -> Refusal | None:
    """Return what to say of a commit past what was fetched; None if it is not."""
    furthest = max(reach.get(partition, 0), known.get(partition, 0))
    if offset <= furthest:
        return None
    return Refusal.of(
        OffsetOutOfRangeError,
        f"{offset} is past what this process has fetched of the partition, which is up to "
        f"{furthest}; fetch from there on first, or put the group there with channel.reset()",
    )


ALONE = StandaloneCommitter()


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


class FetchedOffsets:
    """By topic id and partition, the offset up to which messages were fetched or asked for.

    One for the process: what fetches and what commits may be two Brokers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._furthest: dict[tuple[int, str | None], dict[int, int]] = {}

    def extend(self, topic_id: str | None, partition: int, offset: int) -> None:
        """Note that messages up to there may be committed."""
        with self._lock:
            found = self._furthest.setdefault((os.getpid(), topic_id), {})
            found[partition] = max(offset, found.get(partition, 0))

    def of(self, topic_id: str | None) -> Mapping[int, int]:
        """Return how far each partition of a topic was fetched."""
        with self._lock:
            return dict(self._furthest.get((os.getpid(), topic_id), {}))


REACH = FetchedOffsets()

__all__ = ["ALONE", "MEMBERS", "FetchedOffsets", "Member", "Seat", "beyond"]
