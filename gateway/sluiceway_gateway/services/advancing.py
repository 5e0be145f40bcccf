"""Commits of readers that are no members: who names partitions for himself, and shares nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.clock import Clock, system_clock
from sluiceway_gateway.db.engine import Database, WriteTransaction
from sluiceway_gateway.domain.errors import GroupMode, MembersOpen, NotAssigned, PositionMoved
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.model import Mode, Role
from sluiceway_gateway.groups import store as groups_store
from sluiceway_gateway.groups.model import Group, founded
from sluiceway_gateway.offsets.model import Committed, Position, require_forward, require_topic
from sluiceway_gateway.offsets.service import GroupReport
from sluiceway_gateway.services.incarnation import incarnation
from sluiceway_gateway.store import positions
from sluiceway_gateway.store.positions import Placed


@dataclass(frozen=True, kw_only=True)
class Advance:
    """Where positions are to be, and where the reader knows them to be."""

    positions: tuple[Position, ...]
    before: Mapping[int, Position]
    """By partition; one that is left out has none."""
    topic_id: str


class Advancing:
    """Positions of one database's groups, moved by readers that are no members of them."""

    def __init__(self, database: Database, *, clock: Clock = system_clock) -> None:
        self._database = database
        self._clock = clock

    def advance(
        self, name: str, group: str, advance: Advance, *, uid: str, principal: Principal
    ) -> GroupReport:
        """Move all positions from where they are said to be, or none; a repeat changes nothing.

        The group is made if nobody was ever in it. Raises ChannelNotFound, UidMismatch, Forbidden,
        TopicChanged, NotAssigned, GroupMode, MembersOpen while a member lives, PositionMoved where
        somebody else moved one, and GoesBack.
        """
        principal.require(Action.READ, name)
        with self._database.write() as tx:
            channel = incarnation(name, channels_store.hold(tx, name), uid)
            require_topic(channel.topic.id, advance.topic_id)
            _require_there(channel, advance)
            found = _group(tx, channel, group)
            _require_deserted(tx, found)
            stored = {
                each.position.partition: each
                for _, each in positions.of(tx, channel.uid, group, member=-1)
            }
            moving = [
                asked
                for asked in advance.positions
                if _moves(asked, stored.get(asked.partition), advance, found)
            ]
            whose = (channel.uid, group, -1)
            placed = [
                Placed(whose=whose, position=each, topic_id=advance.topic_id) for each in moving
            ]
            positions.put(tx, placed, now=self._clock())
            kept = positions.of(tx, channel.uid, group, member=-1)
        named = {each.partition for each in advance.positions}
        return GroupReport(
            group=found,
            positions=tuple(each for each in kept if each[1].position.partition in named),
            resets=(),
        )


def _group(tx: WriteTransaction, channel: Channel, name: str) -> Group:
    found = groups_store.find(tx, channel.uid, Role.READER, name)
    if found is None:
        found = founded(channel.uid, Role.READER, name, mode=Mode.SHARED, size=None, dynamic=True)
        groups_store.save(tx, found)
    if found.mode is Mode.BROADCAST:
        raise GroupMode(
            f"The group {name!r} is broadcast: each of its members has positions of its own, and "
            "nobody else moves them. Take another group."
        )
    return found


def _require_deserted(tx: WriteTransaction, group: Group) -> None:
    """Have commits under way end first; raises MembersOpen while a member lives."""
    members = [
        each.id for each in endpoints_store.members(tx, group.channel_uid, group.role, group.name)
    ]
    living = [each for each in endpoints_store.hold(tx, members).values() if each.lives]
    if living:
        raise MembersOpen(
            f"The group {group.name!r} has members that read, {len(living)} of them: they alone "
            "commit. Join the group, take another one, or wait until they have closed."
        )


def _require_there(channel: Channel, advance: Advance) -> None:
    partitions = max(channel.spec.partitions, channel.topic.partitions or 0)
    beyond = [each.partition for each in advance.positions if each.partition >= partitions]
    if beyond:
        raise NotAssigned(
            f"The channel {channel.name!r} has {partitions} partitions, and no partition "
            f"{min(beyond)}."
        )


def _moves(asked: Position, stored: Committed | None, advance: Advance, group: Group) -> bool:
    """Whether the position is to be moved; False where it stands there already."""
    at = None if stored is None else stored.position
    if stored is not None and stored.topic_id == advance.topic_id and at == asked:
        return False
    before = advance.before.get(asked.partition)
    if at != before:
        stands = "nowhere" if at is None else f"at offset {at.offset}, record {at.record}"
        raise PositionMoved(
            f"The group {group.name!r} stands {stands} in partition {asked.partition}, and not "
            "where this reader left it: somebody else reads that partition for the group. Ask "
            "where it stands, and go on from there, or stop."
        )
    if stored is not None:
        require_forward(asked, stored, group)
    return True
