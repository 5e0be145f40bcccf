"""Acknowledgement: waits for groups to commit past given offsets."""

from collections.abc import Mapping
from dataclasses import dataclass

from anyio import to_thread

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.service import require_channel
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.longpoll import Poller
from sluiceway_gateway.offsets.store import CommittedOffsets, GroupKey, committed_offsets


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Offsets, by partition of the topic with this id, that a group is to commit past."""

    topic_id: str
    offsets: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A partition in which a group, or a member, has not committed far enough."""

    member: int
    """The member's index; -1 in a shared group."""
    partition: int
    committed: int | None
    """None: nothing in this topic."""
    wanted: int


@dataclass(frozen=True, kw_only=True)
class AckResult:
    """Partitions in which a group has not committed far enough.

    `known` is whether the group ever had a member.
    """

    known: bool
    missing: tuple[Missing, ...]

    @property
    def passed(self) -> bool:
        """Whether the group has committed past all of the offsets."""
        return self.known and not self.missing


class Acknowledgements:
    """Waits of one process until groups have committed past offsets."""

    def __init__(self, database: Database, *, limit: int, poll_s: float) -> None:
        self._database = database
        self._poller = Poller(self._committed, limit=limit, poll_s=poll_s, immediate=False)
        self.close = self._poller.close

    @property
    def waiting(self) -> int:
        """The number of waits at present."""
        return self._poller.waiting

    async def wait(
        self, name: str, group: str, bounds: Bounds, *, uid: str, timeout_s: float
    ) -> AckResult:
        """Return the result once the group has passed all of the bounds, or the time is up.

        A group that never had a member is waited for. Raises ChannelNotFound and UidMismatch, and
        TooManyWaiters at the limit.
        """
        key = (uid, group)
        result = await to_thread.run_sync(self._result, name, key, bounds)
        if result.passed or timeout_s <= 0 or self._poller.is_closed:
            return result
        await self._poller.wait(
            key, lambda committed: ack_result(committed, bounds).passed, timeout_s=timeout_s
        )
        return await to_thread.run_sync(self._result, name, key, bounds)

    def _result(self, name: str, key: GroupKey, bounds: Bounds) -> AckResult:
        with self._database.read() as tx:
            require_channel(name, channels_store.find(tx, name), key[0])
            return ack_result(committed_offsets(tx, [key]).get(key), bounds)

    def _committed(self, keys: tuple[GroupKey, ...]) -> dict[GroupKey, CommittedOffsets]:
        with self._database.read() as tx:
            return committed_offsets(tx, keys)


def ack_result(committed: CommittedOffsets | None, bounds: Bounds) -> AckResult:
    """Compare committed offsets, None for a group without any member, with the bounds."""
    if committed is None:
        return AckResult(known=False, missing=())
    missing = []
    for member in committed.members:
        for partition, wanted in bounds.offsets.items():
            topic_id, offset = committed.offsets.get((member, partition), (None, 0))
            if topic_id != bounds.topic_id or offset < wanted:
                missing.append(
                    Missing(
                        member=member,
                        partition=partition,
                        committed=offset if topic_id == bounds.topic_id else None,
                        wanted=wanted,
                    )
                )
    return AckResult(known=True, missing=tuple(missing))
