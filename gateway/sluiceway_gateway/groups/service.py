"""Dynamic groups: members take their shares, and hear of who comes and goes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.db.engine import Database, ReadTransaction, WriteTransaction
from sluiceway_gateway.domain.errors import EndpointNotFound, NoGroup
from sluiceway_gateway.domain.sharing import (
    Member,
    due,
    held,
    regrouped,
    require_at_work,
    share_generation,
    split,
    taken,
)
from sluiceway_gateway.endpoints import session_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.model import Endpoint, Role, Share
from sluiceway_gateway.groups import store as groups_store
from sluiceway_gateway.groups.model import Group
from sluiceway_gateway.offsets.model import Committed, require_topic
from sluiceway_gateway.services.incarnation import incarnation
from sluiceway_gateway.store import positions, sharing


@dataclass(frozen=True, kw_only=True)
class Wish:
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
        self, name: str, endpoint_id: str, wish: Wish, *, uid: str, principal: Principal
    ) -> Sharing:
        """Have a member take its share, or ask; repeated, however late, it changes nothing.

        What another still holds is pending: that one may read on, and commit, until it takes its
        own share of the generation. Raises ChannelNotFound, UidMismatch, EndpointNotFound, NoGroup,
        Fenced, IllegalTransition, TopicChanged and Forbidden.
        """
        principal.require(Action.READ, name)
        if wish.take is None:
            with self._database.read() as tx:
                channel = incarnation(name, channels_store.find(tx, name), uid)
                endpoint = _member(
                    channel, endpoint_id, endpoints_store.find(tx, endpoint_id), wish
                )
                return _sharing(tx, channel, endpoint, _group(tx, endpoint))
        with self._database.write() as tx:
            channel = incarnation(name, channels_store.hold(tx, name), uid)
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
    sharing.let_go(tx, gone)
    for key, members in sharing.living(tx, sorted(touched)).items():
        group = _group(tx, touched[key])
        groups_store.save(tx, regrouped(group, living=len(members), now=now))


def _group(tx: ReadTransaction, endpoint: Endpoint) -> Group:
    found = groups_store.find(tx, endpoint.channel_uid, endpoint.place.role, endpoint.place.group)
    assert found is not None, "endpoints have groups"  # noqa: S101
    return found


def _living(tx: ReadTransaction, endpoint: Endpoint) -> list[Member]:
    key = endpoint.channel_uid, endpoint.place.group
    return sharing.living(tx, [key])[key]


def _member(channel: Channel, endpoint_id: str, endpoint: Endpoint | None, wish: Wish) -> Endpoint:
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
    share = (is_taken and endpoint.share) or due(members, endpoint.id)
    parts = split(share, group.generation, others, total)
    wanted = set(parts.own)
    stored = positions.of(tx, channel.uid, group.name, member=-1) if wanted else []
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
