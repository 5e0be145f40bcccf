"""Read, reset and advance the positions of a group."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.service import require_channel
from sluiceway_gateway.clock import Clock, system_clock
from sluiceway_gateway.db import idempotency
from sluiceway_gateway.db.engine import Database, ReadTransaction, WriteTransaction
from sluiceway_gateway.db.idempotency import Answer, Request
from sluiceway_gateway.endpoints import history
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.model import Event, Mode, Role
from sluiceway_gateway.errors import (
    GroupMode,
    GroupNotFound,
    InvalidRequest,
    MembersOpen,
    NotAssigned,
    PositionMoved,
    Violation,
)
from sluiceway_gateway.groups import store as groups_store
from sluiceway_gateway.groups.model import Group, GroupConfig, new_group
from sluiceway_gateway.offsets import store as offsets_store
from sluiceway_gateway.offsets.committing import Committing, PendingCommit
from sluiceway_gateway.offsets.model import (
    Commit,
    Committed,
    Position,
    require_forward,
    require_generation,
    require_topic,
)
from sluiceway_gateway.offsets.store import Outcome, Placed

RESETS_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class GroupReport:
    """How a group stands; positions with the index of their member, -1 where members share."""

    group: Group
    positions: tuple[tuple[int, Committed], ...]
    resets: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True)
class Reset:
    """Where the positions of a group are to be."""

    positions: tuple[Position, ...] | None
    """Those not named stay; None forgets all."""
    topic_id: str | None
    index: int | None
    """Of a broadcast group's member; None is all of them."""
    generation: int | None
    """If given, the group is to be at it."""
    reason: str
    force: bool


class Offsets:
    """The positions of one database's groups."""

    def __init__(self, database: Database, tokens: Tokens, *, clock: Clock = system_clock) -> None:
        self._database = database
        self._clock = clock
        self._committing = Committing(database, tokens, clock=clock)

    def close(self) -> None:
        """End when all commits are answered."""
        self._committing.close()

    def fetch(self, name: str, group: str, *, index: int | None) -> GroupReport:
        """Return how the group stands; raises ChannelNotFound, GroupNotFound, InvalidRequest."""
        with self._database.read() as tx:
            channel = require_channel(name, channels_store.find(tx, name), None)
            found = _group(tx, channel, group)
            return _report(tx, found, member=_member(found, index))

    def commit(self, commit: Commit, *, principal: Principal) -> Outcome:
        """Commit all that is asked, or nothing; a repeat, however late, changes nothing.

        Raises what stands against it: ChannelNotFound, UidMismatch, EndpointNotFound, Fenced,
        NoGroup, NotAssigned, StaleGeneration, TopicChanged, GoesBack, IllegalTransition, Forbidden.
        """
        return self.commit_soon(commit, by=principal).result()

    def commit_soon(self, commit: Commit, *, by: Principal) -> "Future[Outcome]":
        """Commit in the same way, together with those that wait.

        Raises Unauthenticated as well: the transaction authenticates the principal once more.
        """
        return self._committing.join(PendingCommit(commit=commit, by=by))

    def reset(
        self,
        name: str,
        group: str,
        reset: Reset,
        *,
        uid: str,
        principal: Principal,
        request: Request | None,
        render: Callable[[GroupReport], Answer],
    ) -> Answer:
        """Put the group's positions where they are asked to be, in a new generation.

        A member that runs commits no more after that; while one does, it has to be forced. A
        `request` that was answered before gets that answer. Raises ChannelNotFound, UidMismatch,
        GroupNotFound, MembersOpen, StaleGeneration, TopicChanged, NotAssigned, InvalidRequest.
        """
        with self._database.write() as tx:
            now = self._clock()
            if request is not None:
                kept = idempotency.claim(tx, request, now)
                if kept is not None:
                    return kept
            channel = require_channel(name, channels_store.hold(tx, name), uid)
            found = _group(tx, channel, group)
            if reset.generation is not None:
                require_generation(found, reset.generation)
            member = _member(found, reset.index)
            _check(reset, channel, found)
            held = _hold_members(tx, found, force=reset.force)
            if reset.positions is None:
                offsets_store.forget(tx, channel.uid, group, member=member)
            else:
                whose = (channel.uid, group, -1 if member is None else member)
                topic_id = str(channel.topic.id)
                placed = [
                    Placed(whose=whose, position=each, topic_id=topic_id)
                    for each in reset.positions
                ]
                offsets_store.put(tx, placed, now=now)
            if found.dynamic:
                # Their commits go by their own shares, whatever the generation.
                groups_store.release_shares(tx, held)
            following = replace(found, generation=found.generation + 1, changed_at=now)
            groups_store.save(tx, following)
            line = Event(
                channel_uid=channel.uid,
                at=now,
                group=group,
                cause=reset.reason,
                by=principal.id,
            )
            history.add(tx, [line])
            answer = render(_report(tx, following, member=member))
            if request is not None:
                idempotency.settle(tx, request, answer)
        return answer


def _group(tx: ReadTransaction, channel: Channel, name: str) -> Group:
    group = groups_store.find(tx, channel.uid, Role.READER, name)
    if group is None:
        raise GroupNotFound(
            f"No reader was ever attached to the channel {channel.name!r} in a group {name!r}."
        )
    return group


def _report(tx: ReadTransaction, group: Group, *, member: int | None) -> GroupReport:
    found = offsets_store.of(tx, group.channel_uid, group.name, member=member)
    resets = history.of_group(tx, group.channel_uid, group.name, limit=RESETS_SHOWN)
    return GroupReport(group=group, positions=tuple(found), resets=tuple(resets))


def _member(group: Group, index: int | None) -> int | None:
    """Return whose positions are meant; raises InvalidRequest for nobody's."""
    if index is None:
        return None if group.mode is Mode.BROADCAST else -1
    if group.mode is Mode.SHARED:
        raise _malformed("index", f"the members of the group {group.name!r} share; leave it out")
    if group.size is not None and index >= group.size:
        raise _malformed("index", f"the group {group.name!r} has {group.size} members, from 0")
    return index


def _check(reset: Reset, channel: Channel, group: Group) -> None:
    if reset.positions is None:
        return
    if group.mode is Mode.BROADCAST and reset.index is None:
        raise _malformed("index", "needed: each member of a broadcast group has its own positions")
    if reset.topic_id is None:
        raise _malformed("topic_id", "needed: positions belong to a topic")
    require_topic(channel.topic.id, reset.topic_id)
    partitions = max(channel.spec.partitions, channel.topic.partitions or 0)
    beyond = sorted({each.partition for each in reset.positions if each.partition >= partitions})
    if beyond:
        raise NotAssigned(
            f"The channel {channel.name!r} has {partitions} partitions, and no partition "
            f"{beyond[0]}."
        )


def _hold_members(tx: WriteTransaction, group: Group, *, force: bool) -> Collection[str]:
    """Have commits under way end first; raises MembersOpen while a member lives."""
    members: Collection[str] = [
        each.id for each in endpoints_store.members(tx, group.channel_uid, group.role, group.name)
    ]
    held = endpoints_store.hold(tx, members)
    living = sorted(each.place.index for each in held.values() if each.lives)
    if living and not force:
        raise MembersOpen(
            f"Members of the group {group.name!r} are reading: {', '.join(map(str, living[:20]))}. "
            "Reset when they have closed; or with force, after which they cannot commit."
        )
    return members


def _malformed(field: str, message: str) -> InvalidRequest:
    return InvalidRequest(
        f"Malformed: {field}: {message}.", (Violation(pointer=f"/{field}", message=message),)
    )


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
            channel = require_channel(name, channels_store.hold(tx, name), uid)
            require_topic(channel.topic.id, advance.topic_id)
            _require_there(channel, advance)
            found = _group_of_advance(tx, channel, group)
            _require_deserted(tx, found)
            stored = {
                each.position.partition: each
                for _, each in offsets_store.of(tx, channel.uid, group, member=-1)
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
            offsets_store.put(tx, placed, now=self._clock())
            kept = offsets_store.of(tx, channel.uid, group, member=-1)
        named = {each.partition for each in advance.positions}
        return GroupReport(
            group=found,
            positions=tuple(each for each in kept if each[1].position.partition in named),
            resets=(),
        )


def _group_of_advance(tx: WriteTransaction, channel: Channel, name: str) -> Group:
    found = groups_store.find(tx, channel.uid, Role.READER, name)
    if found is None:
        found = new_group(channel.uid, Role.READER, name, GroupConfig(dynamic=True))
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
