"""Positions of groups: read, commit, reset, advance, wait for acknowledgement."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from anyio import to_thread

from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.service import find_channel, hold_channel
from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction, Scalar
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.changes import Changes, of_channel
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db import idempotency
from sluiceway_gateway.core.db.engine import (
    ChangeKey,
    ChangeKind,
    Database,
    ReadTransaction,
    WriteTransaction,
)
from sluiceway_gateway.core.db.idempotency import Request, StoredResponse
from sluiceway_gateway.core.errors import (
    EndpointNotFound,
    GroupMode,
    InvalidRequest,
    MembersOpen,
    NotAssigned,
    SluicewayGatewayError,
)
from sluiceway_gateway.core.passes import OnPass, unobserved
from sluiceway_gateway.core.request_batcher import Batcher
from sluiceway_gateway.endpoints import position_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.change_store import add_events, events_of_group
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.groups.model import Group, GroupConfig, new_group
from sluiceway_gateway.endpoints.groups.service import require_group
from sluiceway_gateway.endpoints.model import (
    Endpoint,
    Event,
    GroupKey,
    Mode,
    PositionOwner,
    Role,
    listed,
)
from sluiceway_gateway.endpoints.positions import (
    Committed,
    Position,
    require_generation,
    require_topic,
)
from sluiceway_gateway.offsets import store as offsets_store
from sluiceway_gateway.offsets.model import (
    AckResult,
    Bounds,
    Commit,
    CommitResult,
    PendingCommit,
    ack_result,
    decide,
    position_moved,
    require_forward,
)
from sluiceway_gateway.offsets.store import committed_offsets

RESETS_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class GroupReport:
    """A group, its positions, each with its member's index (-1 if shared), and its resets."""

    group: Group
    positions: tuple[tuple[int, Committed], ...]
    resets: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True)
class Reset:
    """New positions for a group."""

    positions: tuple[Position, ...] | None
    """Partitions without one keep theirs; None deletes all."""
    topic_id: str | None
    index: int | None
    """The member of a broadcast group; None for all of them."""
    generation: int | None
    """If given, the group must have this generation."""
    reason: str
    force: bool


@dataclass(frozen=True, kw_only=True)
class Advance:
    """New positions, and the last known ones."""

    positions: tuple[Position, ...]
    before: Mapping[int, Position]
    """By partition; a partition without one has no position yet."""
    topic_id: str


#: Maximum positions in one transaction; later commits wait for it.
_MOST_POSITIONS = 5_000
#: Threads for commits that are retried alone, and wait for the lock of their endpoint.
_RETRIES = 4


class Offsets:
    """The positions of one database's groups."""

    def __init__(
        self,
        database: Database,
        tokens: Tokens,
        *,
        ownership: Ownership,
        on_pass: OnPass = unobserved,
        clock: Clock = system_clock,
    ) -> None:
        self._database = database
        self._tokens = tokens
        self._ownership = ownership
        self._clock = clock
        self._batcher = Batcher(
            self._commit_together,
            self._commit_alone,
            name="commit",
            threads=_RETRIES,
            # One commit per endpoint and batch: the next is validated by the result of the first.
            key=lambda pending: pending[0].endpoint,
            weight=lambda pending: len(pending[0].positions),
            most=_MOST_POSITIONS,
            on_pass=on_pass,
        )

    def failing(self) -> dict[str, str]:
        """Return the reason, by name, if commits keep failing."""
        return self._batcher.failing()

    def close(self) -> None:
        """End when all commits are answered."""
        self._batcher.close()

    def fetch(self, name: str, group: str, *, index: int | None) -> GroupReport:
        """Return a group's positions; raises ChannelNotFound, GroupNotFound, InvalidRequest."""
        with self._database.read() as tx:
            channel = find_channel(tx, name)
            current = require_group(tx, channel, group)
            return _report(tx, current, member=_member(current, index, at="query:index"))

    def submit(self, commit: Commit, *, principal: Principal) -> "Future[CommitResult]":
        """Commit all positions or none, in a batch with other waiting commits.

        A commit is durable before its response. A repeated or delayed one changes nothing. A commit
        that fails, or waits for a lock, neither fails nor delays the others of its batch. The
        future raises ChannelNotFound, UidMismatch, EndpointNotFound, Fenced, NoGroup, NotAssigned,
        StaleGeneration, TopicChanged, GoesBack, IllegalTransition, and Unauthenticated if the
        token has been revoked meanwhile.
        """
        return self._batcher.submit((commit, principal))

    def _commit_together(
        self, pending: Sequence[PendingCommit]
    ) -> list[CommitResult | Exception | None]:
        with self._database.write() as tx:
            results = self._commit(tx, pending, wait=False)
        # Not found: the endpoint is missing, or locked by another transaction.
        return [None if isinstance(result, EndpointNotFound) else result for result in results]

    def _commit_alone(self, pending: PendingCommit) -> CommitResult:
        commit, _ = pending
        with self._database.write() as tx:
            (result,) = self._commit(tx, [pending], wait=True)
            if isinstance(result, EndpointNotFound):
                find_channel(tx, commit.channel, commit.channel_uid)
        if isinstance(result, SluicewayGatewayError):
            raise result
        return result

    def _commit(
        self, tx: WriteTransaction, pending: Sequence[PendingCommit], *, wait: bool
    ) -> list[CommitResult | SluicewayGatewayError]:
        refusals = self._tokens.refusals(tx, {principal for _, principal in pending})
        valid = [pair for pair in pending if pair[1] not in refusals]
        results = iter(
            apply_commits(tx, valid, ownership=self._ownership, now=self._clock(), wait=wait)
        )
        return [refusals.get(principal) or next(results) for _, principal in pending]

    def reset(
        self,
        name: str,
        group: str,
        reset: Reset,
        *,
        uid: str,
        principal: Principal,
        request: Request | None,
        render: Callable[[GroupReport], StoredResponse],
    ) -> StoredResponse:
        """Set the group's positions, in a new generation.

        Running members can no longer commit; while there are some, `force` is required. A repeated
        `request` gets the stored response. Needs the scope manage, or read and the label of the
        group's owner. Raises ChannelNotFound, UidMismatch, Forbidden,
        GroupNotFound, MembersOpen, StaleGeneration, TopicChanged, NotAssigned, InvalidRequest.
        """
        with self._database.write() as tx:
            return idempotency.once(
                tx,
                request,
                self._clock(),
                lambda: render(self._reset(tx, name, group, reset, uid=uid, principal=principal)),
            )

    def _reset(
        self,
        tx: WriteTransaction,
        name: str,
        group: str,
        reset: Reset,
        *,
        uid: str,
        principal: Principal,
    ) -> GroupReport:
        now = self._clock()
        channel = hold_channel(tx, name, uid)
        current = require_group(tx, channel, group)
        self._ownership.require(principal, current.owned(name), "reset")
        principal.require(Action.READ if principal.owns(current.owner) else Action.MANAGE, name)
        if reset.generation is not None:
            require_generation(current, reset.generation)
        member = _member(current, reset.index, at="/index")
        _check(reset, channel, current)
        held = hold_members(tx, current)
        live = sorted(endpoint.place.index for endpoint in held if endpoint.lives)
        if live and not reset.force:
            raise MembersOpen(
                f"Members of the group {group!r} are reading: {listed(live)}. Reset after they "
                "have closed, or with force, after which they cannot commit."
            )
        before = position_store.of(tx, channel.uid, group, member=member)
        if reset.positions is None:
            position_store.delete_positions(tx, channel.uid, group, member=member)
        else:
            whose = (channel.uid, group, -1 if member is None else member)
            put_positions(tx, whose, reset.positions, str(channel.topic.id), now)
        if current.dynamic:
            # Their commits depend on their shares, not on the generation.
            endpoints_store.release_shares(tx, [endpoint.id for endpoint in held])
        if current.dynamic or current.mode is Mode.BROADCAST:
            # Else the lag would stay that of these readers; see `Group.keeps_reports`.
            ended = [endpoint for endpoint in held if not endpoint.lives]
            whose_ids = [
                endpoint.id for endpoint in ended if member in (None, -1, endpoint.place.index)
            ]
            endpoints_store.forget_positions(tx, whose_ids)
        whole = member in (None, -1)
        groups_store.forget_finished(tx, channel.uid, group, member=None if whole else member)
        following = current.next_generation(now)
        groups_store.save(tx, following)
        if not whole:
            # They have not been reset, so the end that they reach counts.
            others = [
                endpoint.id
                for endpoint in held
                if endpoint.place.index != member and endpoint.generation == current.generation
            ]
            endpoints_store.set_generation(tx, others, following.generation)
        # The status has the group's generation.
        endpoints_store.revise(tx, [channel.uid])
        line = Event(
            channel_uid=channel.uid, at=now, group_name=group, cause=reset.reason, by=principal.id
        )
        add_events(tx, [line])
        report = _report(tx, following, member=member)
        audit_store.add(
            tx,
            channel,
            AuditedAction.RESET_OFFSETS,
            by=principal,
            at=now,
            target=group,
            reason=reset.reason,
            old=position_fields(before),
            new=position_fields(report.positions),
        )
        return report

    def advance(
        self, name: str, group: str, advance: Advance, *, uid: str, principal: Principal
    ) -> GroupReport:
        """Compare and set all positions, or none; a repeat changes nothing.

        A group that never had a member is created. Raises ChannelNotFound, UidMismatch, Forbidden,
        TopicChanged, NotAssigned, GroupMode, MembersOpen while a member lives, PositionMoved where
        another reader moved one, and GoesBack.
        """
        principal.require(Action.READ, name)
        with self._database.write() as tx:
            channel = hold_channel(tx, name, uid)
            current = apply_advance(
                tx,
                channel,
                group,
                advance,
                ownership=self._ownership,
                principal=principal,
                now=self._clock(),
            )
            kept = position_store.of(tx, channel.uid, group, member=-1)
        named = {position.partition for position in advance.positions}
        return GroupReport(
            group=current,
            positions=tuple(pair for pair in kept if pair[1].position.partition in named),
            resets=(),
        )


def apply_advance(
    tx: WriteTransaction,
    channel: Channel,
    group: str,
    advance: Advance,
    *,
    ownership: Ownership,
    principal: Principal,
    now: datetime,
) -> Group:
    """Store the positions of an advance in a channel that is locked.

    Raises what `Offsets.advance` raises.
    """
    require_topic(channel.topic.id, advance.topic_id)
    _require_partitions(channel, advance.positions)
    current = shared_group(tx, channel, group, owner=principal.subject)
    ownership.require(principal, current.owned(channel.name), "commit")
    groups_store.claim(tx, current, principal, channel=channel.name, now=now)
    live = [member for member in hold_members(tx, current) if member.lives]
    if live:
        raise MembersOpen(
            f"The group {group!r} has {len(live)} live members, and only they commit. "
            "Join the group, use another one, or wait until they have closed."
        )
    stored = {
        committed.position.partition: committed
        for _, committed in position_store.of(tx, channel.uid, group, member=-1)
    }
    moving = [
        position
        for position in advance.positions
        if _moves(position, stored.get(position.partition), advance, current)
    ]
    put_positions(tx, (channel.uid, group, -1), moving, advance.topic_id, now)
    return current


def apply_commits(
    tx: WriteTransaction,
    pending: Sequence[PendingCommit],
    *,
    ownership: Ownership,
    now: datetime,
    wait: bool = True,
) -> list[CommitResult | SluicewayGatewayError]:
    """Validate and store commits, each all or nothing; return a result or an error for each.

    At most one commit per endpoint, because all are validated against the state before. Unless
    `wait`, an endpoint that another transaction has locked is EndpointNotFound, too.
    """
    contexts = offsets_store.load(tx, [commit for commit, _ in pending], wait=wait)
    outcomes: list[CommitResult | SluicewayGatewayError] = []
    for commit, principal in pending:
        try:
            result = decide(commit, principal, contexts.get(commit.endpoint), now=now)
            ownership.require(principal, result.group.owned(commit.channel), "commit")
        except SluicewayGatewayError as error:
            outcomes.append(error)
        else:
            groups_store.claim(tx, result.group, principal, channel=commit.channel, now=now)
            outcomes.append(result)
    results = (outcome for outcome in outcomes if isinstance(outcome, CommitResult))
    offsets_store.save(tx, [result for result in results if result.is_new])
    return outcomes


def _report(tx: ReadTransaction, group: Group, *, member: int | None) -> GroupReport:
    positions = position_store.of(tx, group.channel_uid, group.name, member=member)
    resets = events_of_group(tx, group.channel_uid, group.name, limit=RESETS_SHOWN)
    return GroupReport(group=group, positions=tuple(positions), resets=tuple(resets))


def position_fields(positions: Iterable[tuple[int, Committed]]) -> dict[str, Scalar]:
    """Return positions for the audit trail: offsets by partition, and by member if it has own."""
    return {
        f"partition {at.partition}" + (f" of member {member}" if member >= 0 else ""): (
            f"{at.offset}, record {at.record}" if at.record else at.offset
        )
        for member, committed in positions
        for at in (committed.position,)
    }


def _member(group: Group, index: int | None, *, at: str) -> int | None:
    """Return the member that owns the positions, None for all; raises InvalidRequest.

    `at` is the place of the index in the request.
    """
    if index is None:
        return None if group.mode is Mode.BROADCAST else -1
    if group.mode is Mode.SHARED:
        raise InvalidRequest.at(at, f"the members of the group {group.name!r} share; leave it out")
    if group.size is not None and index >= group.size:
        raise InvalidRequest.at(at, f"the group {group.name!r} has {group.size} members, from 0")
    return index


def _check(reset: Reset, channel: Channel, group: Group) -> None:
    if reset.positions is None:
        return
    if group.mode is Mode.BROADCAST and reset.index is None:
        raise InvalidRequest.at(
            "/index", "required: members of a broadcast group have their own positions"
        )
    if reset.topic_id is None:
        raise InvalidRequest.at("/topic_id", "required: positions belong to a topic")
    require_topic(channel.topic.id, reset.topic_id)
    _require_partitions(channel, reset.positions)


def hold_members(tx: WriteTransaction, group: Group) -> list[Endpoint]:
    """Lock the members, after their commits in progress, and return them."""
    members = endpoints_store.members(tx, group.channel_uid, group.role, group.name)
    return list(endpoints_store.hold(tx, [member.id for member in members]).values())


def put_positions(
    tx: WriteTransaction,
    owner: PositionOwner,
    positions: Iterable[Position],
    topic_id: str,
    now: datetime,
) -> None:
    """Store positions that no endpoint has committed."""
    committed = partial(Committed, topic_id=topic_id, committed_at=now)
    position_store.put(tx, [(owner, committed(position=position)) for position in positions])


def shared_group(tx: WriteTransaction, channel: Channel, name: str, *, owner: str | None) -> Group:
    """Return a group of readers, for positions of no member; it is created if there is none.

    Raises GroupMode for a broadcast group.
    """
    group = groups_store.find(tx, channel.uid, Role.READER, name)
    if group is None:
        group = new_group(channel.uid, Role.READER, name, GroupConfig(dynamic=True), owner=owner)
        groups_store.save(tx, group)
    if group.mode is Mode.BROADCAST:
        raise GroupMode(
            f"The group {name!r} is broadcast: each member has its own positions, which only it "
            "commits. Use another group."
        )
    return group


def _require_partitions(channel: Channel, positions: Iterable[Position]) -> None:
    partitions = max(channel.spec.partitions, channel.topic.partitions or 0)
    beyond = [position.partition for position in positions if position.partition >= partitions]
    if beyond:
        raise NotAssigned(
            f"The channel {channel.name!r} has {partitions} partitions, and no partition "
            f"{min(beyond)}."
        )


def _moves(position: Position, stored: Committed | None, advance: Advance, group: Group) -> bool:
    """Whether the position changes; False if it has the new value already."""
    at = None if stored is None else stored.position
    if stored is not None and stored.topic_id == advance.topic_id and at == position:
        return False
    before = advance.before.get(position.partition)
    if (at and at.order) != (before and before.order):
        raise position_moved(group.name, position.partition, at)
    if stored is not None:
        require_forward(position, stored, group)
    return True


class Acknowledgements:
    """Waits until groups have committed past offsets."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes

    async def wait(
        self, name: str, group: str, bounds: Bounds, *, uid: str, timeout_s: float
    ) -> AckResult:
        """Wait until the group has passed all of the bounds, or for `timeout_s`.

        Also waits for the first member of a group. Raises ChannelNotFound, UidMismatch, and
        TooManyWaiters at the limit.
        """
        until_s = time.monotonic() + timeout_s
        key = (uid, group)
        of_group = ChangeKey(ChangeKind.GROUP, groups_store.change_uid(key))
        with self._changes.subscribe((*of_channel(uid), of_group)) as subscription:
            while True:
                result = await to_thread.run_sync(self._result, name, key, bounds)
                if result.passed or not await self._changes.wait(subscription, until_s=until_s):
                    return result

    def _result(self, name: str, key: GroupKey, bounds: Bounds) -> AckResult:
        with self._database.read() as tx:
            find_channel(tx, name, key[0])
            return ack_result(committed_offsets(tx, [key]).get(key), bounds)
