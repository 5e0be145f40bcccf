"""Rebalance of dynamic groups, and resizing of static ones."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.service import require_channel
from sluiceway_gateway.clock import Clock, system_clock
from sluiceway_gateway.db.engine import Database, ReadTransaction, WriteTransaction
from sluiceway_gateway.endpoints import history, session_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, Mode, Role, Share, State, event
from sluiceway_gateway.endpoints.placement import superseded
from sluiceway_gateway.errors import (
    EndpointNotFound,
    GroupLargerThanPinned,
    GroupNotFound,
    GroupSize,
    NoGroup,
)
from sluiceway_gateway.groups import store as groups_store
from sluiceway_gateway.groups.model import (
    Group,
    Member,
    held,
    regrouped,
    require_at_work,
    resized,
    share_generation,
    split,
    taken,
    target_share,
)
from sluiceway_gateway.offsets import store as offsets_store
from sluiceway_gateway.offsets.model import Committed, require_generation, require_topic


@dataclass(frozen=True, kw_only=True)
class SyncRequest:
    """What a member asks for."""

    epoch: int
    take: int | None
    """The generation whose share it takes; None: it only asks."""
    has: int | None
    """The generation of the share that it has, as far as it knows."""


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How a member stands in its group."""

    generation: int
    """Of the group."""
    taken: bool
    """Whether the member has its share of that."""
    has: int | None
    """The generation of the share that it has."""
    share: Share
    """Which it has, or is to take."""
    partitions: tuple[int, ...]
    """Those of it that are nobody else's."""
    pending: tuple[int, ...]
    """Those that another has, who has not let go of them yet."""
    held: tuple[int, ...]
    """What it has now."""
    positions: tuple[Committed, ...]
    """Of `partitions`, as far as anything was committed."""
    total: int
    """How many partitions the channel has."""


class Shares:
    """The shares of one database's dynamic groups."""

    def __init__(self, database: Database, *, notify: Callable[[], None]) -> None:
        """`notify` is called when a member took another share."""
        self._database = database
        self._notify = notify

    def sync(
        self, name: str, endpoint_id: str, wish: SyncRequest, *, uid: str, principal: Principal
    ) -> Sharing:
        """Have a member take its share, or ask; repeated, however late, it changes nothing.

        What another still holds is pending: that one may read on, and commit, until it takes its
        own share of the generation. Raises ChannelNotFound, UidMismatch, EndpointNotFound, NoGroup,
        Fenced, IllegalTransition, TopicChanged and Forbidden.
        """
        principal.require(Action.READ, name)
        if wish.take is None:
            with self._database.read() as tx:
                channel = require_channel(name, channels_store.find(tx, name), uid)
                endpoint = _member(
                    channel, endpoint_id, endpoints_store.find(tx, endpoint_id), wish
                )
                return _sharing(tx, channel, endpoint, _group(tx, endpoint))
        with self._database.write() as tx:
            channel = require_channel(name, channels_store.hold(tx, name), uid)
            # Its commits under way end first: what others are then given has them.
            found = endpoints_store.hold(tx, [endpoint_id]).get(endpoint_id)
            endpoint = _member(channel, endpoint_id, found, wish)
            session_store.require_own(tx, endpoint.session, principal)
            group = _group(tx, endpoint)
            members = _living(tx, endpoint)
            after = taken(endpoint, group, members, take=wish.take, has=wish.has)
            if after is not endpoint:
                endpoints_store.save(tx, [(endpoint, after)])
                endpoints_store.revise(tx, [channel.uid])
            answer = _sharing(tx, channel, after, group)
        if after is not endpoint:
            self._notify()
        return answer


def regroup(
    tx: WriteTransaction, changes: Iterable[tuple[Endpoint | None, Endpoint]], *, now: datetime
) -> None:
    """Raise the generations of the dynamic groups that have other living members after `changes`.

    The changes are written already; None stands before who has come. Who lives no more holds
    nothing.
    """
    gone: list[str] = []
    touched: dict[tuple[str, str], Endpoint] = {}
    for before, after in changes:
        lived = before is not None and before.lives
        if not after.is_dynamic or lived == after.lives:
            continue
        touched[after.channel_uid, after.place.group] = after
        if lived:
            gone.append(after.id)
    groups_store.release_shares(tx, gone)
    for key, members in groups_store.living(tx, sorted(touched)).items():
        group = _group(tx, touched[key])
        groups_store.save(tx, regrouped(group, living=len(members), now=now))


def _group(tx: ReadTransaction, endpoint: Endpoint) -> Group:
    found = groups_store.find(tx, endpoint.channel_uid, endpoint.place.role, endpoint.place.group)
    assert found is not None, "endpoints have groups"  # noqa: S101
    return found


def _living(tx: ReadTransaction, endpoint: Endpoint) -> list[Member]:
    key = endpoint.channel_uid, endpoint.place.group
    return groups_store.living(tx, [key])[key]


def _member(
    channel: Channel, endpoint_id: str, endpoint: Endpoint | None, wish: SyncRequest
) -> Endpoint:
    if endpoint is None or endpoint.channel_uid != channel.uid:
        raise EndpointNotFound(f"The channel {channel.name!r} has no endpoint {endpoint_id}.")
    if not endpoint.is_dynamic or endpoint.place.role is not Role.READER:
        raise NoGroup(
            f"The endpoint {endpoint.id} is {endpoint.where}, which is not dynamic: its partitions "
            "stay the same. Attach with dynamic, and without an index and a size."
        )
    endpoint.require(epoch=wish.epoch)
    require_at_work(endpoint)
    return endpoint


def _sharing(tx: ReadTransaction, channel: Channel, endpoint: Endpoint, group: Group) -> Sharing:
    members = _living(tx, endpoint)
    others = [each for each in members if each.endpoint != endpoint.id]
    total = channel.topic.partitions or 0
    is_taken = share_generation(endpoint) == group.generation
    share = (is_taken and endpoint.share) or target_share(members, endpoint.id)
    parts = split(share, group.generation, others, total)
    wanted = set(parts.own)
    stored = offsets_store.of(tx, channel.uid, group.name, member=-1) if wanted else []
    found = tuple(each for _, each in stored if each.position.partition in wanted)
    for each in found:
        require_topic(channel.topic.id, each.topic_id)
    return Sharing(
        generation=group.generation,
        taken=is_taken,
        has=share_generation(endpoint),
        share=share,
        partitions=parts.own,
        pending=parts.pending,
        held=held(endpoint, others, total),
        positions=found,
        total=total,
    )


class Resizing:
    """The sizes of one database's groups."""

    def __init__(
        self, database: Database, *, notify: Callable[[], None], clock: Clock = system_clock
    ) -> None:
        """`notify` is called after each change."""
        self._database = database
        self._notify = notify
        self._clock = clock

    def resize(
        self,
        name: str,
        group: str,
        *,
        size: int,
        generation: int,
        uid: str,
        principal: Principal,
    ) -> Group:
        """Give a group another size, in a new generation; its positions stay where they are.

        Its members are fenced, but for those that have closed: whoever is to read on attaches with
        the new size. A group that has the size stays as it is, and so a repeat changes nothing.
        Raises ChannelNotFound, UidMismatch, GroupNotFound, GroupSize for a dynamic group,
        GroupLargerThanPinned, StaleGeneration unless it is at `generation`, and Forbidden.
        """
        principal.require(Action.READ, name)
        with self._database.write() as tx:
            now = self._clock()
            channel = require_channel(name, channels_store.hold(tx, name), uid)
            found = groups_store.find(tx, channel.uid, Role.READER, group)
            if found is None or group == ANONYMOUS:
                raise GroupNotFound(
                    f"No reader was ever attached to the channel {name!r} in a group {group!r}."
                )
            _require_fixed(found)
            if found.size == size:
                return found
            require_generation(found, generation)
            _require_partitions(channel, found, size)
            following = resized(found, size, now=now)
            members = endpoints_store.members(tx, channel.uid, Role.READER, group)
            # Commits under way end first; those that come after are refused.
            held = endpoints_store.hold(tx, [e.id for e in members if e.state is not State.CLOSED])
            cause = f"the group was resized from {found.size} to {size}"
            outcasts = [(each, superseded(each, by=cause, now=now)) for each in held.values()]
            endpoints_store.save(tx, outcasts)
            groups_store.save(tx, following)
            lines = [event(each, by=principal.id, at=now, cause=cause) for _, each in outcasts]
            history.add(tx, [(channel.uid, each) for each in lines])
            endpoints_store.revise(tx, [channel.uid])
        self._notify()
        return following


def _require_fixed(group: Group) -> None:
    if group.dynamic:
        raise GroupSize(
            f"The group {group.name!r} is dynamic: its size is how many members it has. Attach "
            "more of them, or detach some."
        )


def _require_partitions(channel: Channel, group: Group, size: int) -> None:
    stays = channel.spec.pinned or channel.adopted
    if stays and group.mode is Mode.SHARED and size > channel.spec.partitions:
        raise GroupLargerThanPinned(
            f"The channel {channel.name!r} has {channel.spec.partitions} partitions and does not "
            f"grow, so the group {group.name!r} cannot have {size} members."
        )
