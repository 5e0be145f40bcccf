"""Dynamic groups: members take shares of the partitions. Static groups: resizing."""

from dataclasses import dataclass, replace

from pydantic import Field

from sluiceway_gateway.api.models import Number, RequestModel
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.service import find_channel, hold_channel
from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db.engine import Database, ReadTransaction
from sluiceway_gateway.core.errors import GroupNotFound, GroupSize, NoGroup
from sluiceway_gateway.endpoints import position_store, session_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.change_store import save_changes
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.groups.assignment import (
    Member,
    held_partitions,
    require_live,
    share_generation,
    split,
    target_share,
    with_share,
)
from sluiceway_gateway.endpoints.groups.model import Group, require_growable
from sluiceway_gateway.endpoints.model import Endpoint, Mode, Role, State, superseded
from sluiceway_gateway.endpoints.positions import Committed, require_generation, require_topic
from sluiceway_gateway.endpoints.service import hold_endpoint, require_endpoint


class SyncRequest(RequestModel):
    """A request of a member for its share."""

    epoch: Number
    take: Number | None = Field(
        default=None, description="The generation whose assignment to take; without it, only read"
    )
    has: Number | None = Field(
        default=None, description="The generation of the member's assignment; null without one"
    )


@dataclass(frozen=True, kw_only=True)
class MemberAssignment:
    """The partitions of a member of a dynamic group."""

    generation: int
    """The generation of the group."""
    taken: bool
    """Whether the member has its share of that generation."""
    has: int | None
    """The generation of the share that it has."""
    index: int
    """The index of the share that it has, or has to take."""
    size: int
    """The number of shares."""
    partitions: tuple[int, ...]
    """The partitions of the share that no other member holds."""
    pending: tuple[int, ...]
    """The partitions of the share that another member has not released yet."""
    held: tuple[int, ...]
    """The partitions that the member holds now."""
    positions: tuple[Committed, ...]
    """The committed positions of `partitions`."""
    total: int
    """The number of partitions of the channel."""


@dataclass(eq=False, repr=False)
class GroupService:
    """The groups of one database."""

    database: Database
    ownership: Ownership
    clock: Clock = system_clock

    def sync(
        self, name: str, endpoint_id: str, request: SyncRequest, *, uid: str, principal: Principal
    ) -> MemberAssignment:
        """Assign or return a member's share; a repeated or delayed request changes nothing.

        Partitions that another member holds are pending: that member may read and commit until it
        takes its own share of the generation. Raises ChannelNotFound, UidMismatch,
        EndpointNotFound, NoGroup, Fenced, IllegalTransition, StaleGeneration, TopicChanged and
        Forbidden.
        """
        principal.require(Action.READ, name)
        if request.take is None:
            with self.database.read() as tx:
                channel = find_channel(tx, name, uid)
                stored = endpoints_store.find(tx, endpoint_id)
                endpoint = require_endpoint(channel, endpoint_id, stored)
                _require_member(endpoint, request)
                return _assignment(tx, channel, endpoint, _group(tx, endpoint))
        with self.database.write() as tx:
            channel = hold_channel(tx, name, uid)
            # Waits for its commits in progress, so that the next holder sees them.
            endpoint = hold_endpoint(tx, channel, endpoint_id)
            _require_member(endpoint, request)
            session_store.require_own(tx, endpoint.session, principal)
            group = _group(tx, endpoint)
            self.ownership.require(principal, group.owned(name), "join")
            members = _live_members(tx, endpoint)
            after = with_share(endpoint, group, members, take=request.take, has=request.has)
            if after is not endpoint:
                endpoints_store.save(tx, [(endpoint, after)])
                endpoints_store.revise(tx, [channel.uid])
            return _assignment(tx, channel, after, group)

    def resize(
        self, name: str, group: str, *, size: int, generation: int, uid: str, principal: Principal
    ) -> Group:
        """Change the size of a group, in a new generation; its positions stay.

        Its members are fenced, except closed ones; new instances attach with the new size. A
        group that has the size already stays as it is, so a repeated request changes nothing.
        Raises ChannelNotFound, UidMismatch, GroupNotFound, GroupSize for a dynamic group,
        GroupLargerThanPinned, StaleGeneration unless the group is at `generation`, and Forbidden.
        """
        principal.require(Action.READ, name)
        with self.database.write() as tx:
            now = self.clock()
            channel = hold_channel(tx, name, uid)
            current = require_group(tx, channel, group)
            self.ownership.require(principal, current.owned(name), "resize")
            if current.dynamic:
                raise GroupSize(
                    f"The group {group!r} is dynamic: its size is the number of its members. "
                    "Attach more of them, or detach some."
                )
            if current.size == size:
                return current
            require_generation(current, generation)
            if current.mode is Mode.SHARED:
                require_growable(channel, group, size)
            resized = current.next_generation(now, size=size)
            members = endpoints_store.members(tx, channel.uid, Role.READER, group)
            # Waits for their commits in progress; later ones are refused.
            locked = endpoints_store.hold(
                tx, [member.id for member in members if member.state is not State.CLOSED]
            )
            cause = f"the group was resized from {current.size} to {size}"
            changes = [
                (member, superseded(member, by=cause, now=now)) for member in locked.values()
            ]
            groups_store.save(tx, resized)
            groups_store.move_finished(tx, current, resized)
            save_changes(tx, changes, by=principal.id, now=now, cause=cause)
            if not changes:
                endpoints_store.revise(tx, [channel.uid])
            audit_store.add(
                tx,
                channel,
                AuditedAction.RESIZE_GROUP,
                by=principal,
                at=now,
                target=group,
                old={"size": current.size},
                new={"size": size},
            )
        return resized

    def transfer(
        self,
        name: str,
        group: str,
        *,
        role: Role,
        owner: str,
        reason: str | None,
        uid: str,
        principal: Principal,
    ) -> Group:
        """Give a group to another label; its members keep their places.

        Raises ChannelNotFound, UidMismatch, GroupNotFound and Forbidden.
        """
        principal.require(Action.MANAGE, name)
        with self.database.write() as tx:
            channel = hold_channel(tx, name, uid)
            current = require_group(tx, channel, group, role=role)
            transferred = replace(current, owner=owner)
            if transferred != current:
                groups_store.transfer(tx, current, owner)
                endpoints_store.revise(tx, [channel.uid])
                audit_store.add(
                    tx,
                    channel,
                    AuditedAction.TRANSFER_OWNER,
                    by=principal,
                    at=self.clock(),
                    target=group,
                    reason=reason,
                    old={"owner": current.owner},
                    new={"owner": owner},
                )
        return transferred


def require_group(
    tx: ReadTransaction, channel: Channel, name: str, *, role: Role = Role.READER
) -> Group:
    """Return a group; raises GroupNotFound."""
    group = groups_store.find(tx, channel.uid, role, name)
    if group is None:
        raise GroupNotFound(
            f"The channel {channel.name!r} has no group {name!r}: no {role} has attached with it."
        )
    return group


def _group(tx: ReadTransaction, endpoint: Endpoint) -> Group:
    place = endpoint.place
    group = groups_store.find(tx, endpoint.channel_uid, place.role, place.group)
    assert group is not None, "endpoints have groups"  # noqa: S101
    return group


def _live_members(tx: ReadTransaction, endpoint: Endpoint) -> list[Member]:
    return endpoints_store.live_members(tx, [endpoint.group_key])[endpoint.group_key]


def _require_member(endpoint: Endpoint, request: SyncRequest) -> None:
    """Raise an error unless the endpoint is a live member of a dynamic group.

    That is NoGroup, Fenced, StaleGeneration or IllegalTransition.
    """
    if not endpoint.is_dynamic or endpoint.place.role is not Role.READER:
        raise NoGroup(
            f"The endpoint {endpoint.id} is {endpoint.where}, which is not dynamic: its partitions "
            "stay the same. Attach with dynamic, and without an index and a size."
        )
    endpoint.require(epoch=request.epoch)
    require_live(endpoint)


def _assignment(
    tx: ReadTransaction, channel: Channel, endpoint: Endpoint, group: Group
) -> MemberAssignment:
    members = _live_members(tx, endpoint)
    others = [member for member in members if member.endpoint != endpoint.id]
    total = channel.topic.partitions or 0
    is_taken = share_generation(endpoint) == group.generation
    share = (is_taken and endpoint.share) or target_share(members, endpoint.id)
    parts = split(share, group.generation, others, total)
    wanted = set(parts.own)
    stored = position_store.of(tx, channel.uid, group.name, member=-1) if wanted else []
    positions = tuple(
        committed for _, committed in stored if committed.position.partition in wanted
    )
    for committed in positions:
        require_topic(channel.topic.id, committed.topic_id)
    return MemberAssignment(
        generation=group.generation,
        taken=is_taken,
        has=share_generation(endpoint),
        index=share.index,
        size=share.size,
        partitions=parts.own,
        pending=parts.pending,
        held=held_partitions(endpoint, members, total),
        positions=positions,
        total=total,
    )
