"""Attach: an instance takes a place in a group from its previous holder."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any

from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.batching import Batcher
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.change import Change, changed
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.service import require_channel, require_usable
from sluiceway_gateway.clock import Clock, system_clock
from sluiceway_gateway.db.engine import Database, ReadTransaction, WriteTransaction
from sluiceway_gateway.endpoints import history, session_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.attach_batch import AttachRequest, attach_batch
from sluiceway_gateway.endpoints.model import (
    ANONYMOUS,
    MAX_GROUP_SIZE,
    Endpoint,
    Mode,
    Role,
    State,
    event,
)
from sluiceway_gateway.endpoints.placement import (
    Attached,
    AttachSpec,
    new_endpoint,
    own_partitions,
    superseded,
    taken_by,
    takes_over,
)
from sluiceway_gateway.errors import (
    ChannelNotReady,
    ConcurrentChange,
    DatabaseUnavailable,
    EndpointIdReused,
    GroupLargerThanPinned,
    GroupSize,
    SluicewayGatewayError,
)
from sluiceway_gateway.groups import store as groups_store
from sluiceway_gateway.groups.model import Group, fits, fitted, founded, joined
from sluiceway_gateway.groups.service import regroup
from sluiceway_gateway.offsets import store as offsets_store
from sluiceway_gateway.offsets.model import Committed, require_topic
from sluiceway_gateway.schemas import store as schemas_store

#: In one transaction, which others wait for.
_MOST = 200
#: Instances that attach alone at a time, each waiting for whoever holds its channel.
_PATIENT = 8


class Attachment:
    """Attaching to the channels of one database.

    Those that wait go together, where they can (`arriving`); with whom it is not that simple goes
    alone.
    """

    def __init__(
        self,
        database: Database,
        tokens: Tokens,
        *,
        wake: Callable[[], None],
        notify: Callable[[], None],
        clock: Clock = system_clock,
    ) -> None:
        """`wake` is called when a channel is to grow, `notify` after every other change."""
        self._database = database
        self._tokens = tokens
        self._wake = wake
        self._notify = notify
        self._clock = clock
        self._convoy = Batcher(
            self._together, name="attach", key=lambda coming: coming.place, most=_MOST
        )
        self._patient = ThreadPoolExecutor(_PATIENT, thread_name_prefix="patient-attach")

    def close(self) -> None:
        """End when all is answered."""
        self._convoy.close()
        self._patient.shutdown()

    def attach(self, name: str, asked: AttachSpec, *, uid: str, principal: Principal) -> Attached:
        """Give the instance its place and an epoch above all others of its group.

        Repeated, however late, it changes nothing. Raises ChannelNotFound, UidMismatch,
        ChannelNotReady (also while the channel grows with the group), ChannelClosed, Fenced,
        EndpointIdReused, GroupSize, GroupMode, GroupLargerThanPinned, TopicChanged and Forbidden.
        """
        coming = AttachRequest(channel=name, uid=uid, asked=asked, by=principal)
        return self.attach_soon(coming).result()

    def attach_soon(self, coming: AttachRequest) -> "Future[Attached]":
        """Attach in the same way, together with those that wait.

        Raises Unauthenticated as well: the transaction authenticates the principal once more.
        """
        if coming.asked.dynamic:
            return self._patient.submit(self._by_itself, coming)
        return self._convoy.join(coming)

    def _together(
        self, coming: Sequence[AttachRequest]
    ) -> "list[Attached | Future[Attached] | Exception]":
        try:
            with self._database.write() as tx:
                invalid = self._tokens.refusals(tx, {each.by for each in coming})
                refusals = [invalid.get(each.by) or _refusal(each) for each in coming]
                allowed = [
                    (each, each.by)
                    for each, refusal in zip(coming, refusals, strict=True)
                    if refusal is None
                ]
                arrived = iter(attach_batch(tx, allowed, now=self._clock()) if allowed else ())
        except DatabaseUnavailable:
            raise
        except Exception:
            # Whose fault it is shows when each goes by itself.
            return [self._patient.submit(self._by_itself, each) for each in coming]
        answers: list[Attached | Future[Attached] | Exception] = []
        for each, refusal in zip(coming, refusals, strict=True):
            found = refusal or next(arrived)
            answers.append(found or self._patient.submit(self._by_itself, each))
        if any(isinstance(each, Attached) for each in answers):
            self._notify()
        return answers

    def _by_itself(self, coming: AttachRequest) -> Attached:
        with self._database.read() as tx:
            self._tokens.require_valid(tx, coming.by)
        refusal = _refusal(coming)
        if refusal is not None:
            raise refusal
        return self._alone(coming.channel, coming.asked, uid=coming.uid, principal=coming.by)

    def _alone(self, name: str, asked: AttachSpec, *, uid: str, principal: Principal) -> Attached:
        with self._database.write() as tx:
            now = self._clock()
            session_store.begin(tx, [asked.opening(principal)], now=now)
            session_store.require_own(tx, asked.session, principal)
            channel = require_channel(name, channels_store.hold(tx, name), uid)
            known = endpoints_store.find(tx, asked.id)
            if known is not None:
                _require_same(known, channel, asked)
                known.require()
                require_usable(channel, writes=False)
                return _attached(tx, known, channel, created=False)
            require_usable(channel, writes=asked.role is Role.WRITER)
            group, outcasts = _group(tx, channel, asked, now)
            grown = _grown(channel, asked, principal)
            if grown is None:
                endpoint = _take_place(
                    tx, asked, group, outcasts=outcasts, now=now, by=principal.id
                )
                attached = _attached(tx, endpoint, channel, created=True)
            elif grown is not channel and not channels_store.save(
                tx, grown, was=channel, from_phases={channel.phase}
            ):
                raise ConcurrentChange(
                    f"The channel {name!r} was changed at the same time; send the request again."
                )
        if grown is not None:
            self._wake()
            raise ChannelNotReady(
                f"The topic of the channel {name!r} has {channel.topic.partitions} partitions; it "
                f"is growing to {grown.spec.partitions}, one for each member of the group "
                f"{asked.group!r}: send the request again in a moment."
            )
        self._notify()
        return attached


def _refusal(coming: AttachRequest) -> SluicewayGatewayError | None:
    """Return the error of a principal that may not read, or write, the channel."""
    action = Action.READ if coming.asked.role is Role.READER else Action.WRITE
    try:
        coming.by.require(action, coming.channel)
    except SluicewayGatewayError as error:
        return error
    return None


def _require_same(known: Endpoint, channel: Channel, asked: AttachSpec) -> None:
    """Raise EndpointIdReused where a known id comes with other content."""
    index = known.place.index if asked.size is None else asked.index
    given = (channel.uid, asked.session, asked.role, asked.group, index, asked.size, asked.mode)
    place = known.place
    had = (
        *(known.channel_uid, known.session, place.role, place.group, place.index),
        *(known.size, known.mode),
    )
    if given != had:
        raise EndpointIdReused(
            f"The id {asked.id} is that of {known.where}, attached by another request: take a new "
            "id for every instance, and repeat a request as it was."
        )


def _group(
    tx: WriteTransaction, channel: Channel, asked: AttachSpec, now: datetime
) -> tuple[Group, list[Endpoint]]:
    """Return the group as it is asked for, and who does not fit into it any more."""
    wanted: dict[str, Any] = {"mode": asked.mode, "size": asked.size, "dynamic": asked.dynamic}
    found = groups_store.find(tx, channel.uid, asked.role, asked.group)
    if found is None:
        return founded(channel.uid, asked.role, asked.group, **wanted), []
    if fits(found, **wanted):
        _require_room(found)
        return found, []
    members = endpoints_store.members(tx, channel.uid, asked.role, asked.group, lost=True)
    living = sum(each.lives for each in members)
    group = fitted(found, living=living, now=now, **wanted)
    # Those that finished stay where they were: their ends still count. Lost members of a dynamic
    # group do not return to one of another kind.
    return group, [each for each in members if each.state is not State.CLOSED]


def _require_room(group: Group) -> None:
    if group.dynamic and (group.size or 0) >= MAX_GROUP_SIZE:
        raise GroupSize(
            f"The group {group.name!r} has {MAX_GROUP_SIZE:,} members, and takes no more."
        )


def _grown(channel: Channel, asked: AttachSpec, principal: Principal) -> Channel | None:
    """Return the channel with a partition for each member; None if it has them."""
    size = asked.size
    shares = asked.role is Role.READER and asked.mode is Mode.SHARED
    if size is None or not shares or size <= (channel.topic.partitions or 0):
        return None
    if size <= channel.spec.partitions:
        return channel
    if channel.spec.pinned or channel.adopted:
        why = "its topic was adopted" if channel.adopted else "it is pinned"
        raise GroupLargerThanPinned(
            f"The group {asked.group!r} has {size} members, the channel {channel.name!r} "
            f"{channel.spec.partitions} partitions, and does not grow: {why}. Take a smaller group."
        )
    principal.require(Action.MANAGE, channel.name)
    return changed(channel, Change(partitions=size))


def _take_place(
    tx: WriteTransaction,
    asked: AttachSpec,
    group: Group,
    *,
    outcasts: list[Endpoint],
    now: datetime,
    by: str,
) -> Endpoint:
    group, place = joined(group, asked.index)
    endpoint = new_endpoint(asked, group, place, now=now)
    gone = {each.id: each for each in outcasts}
    before = None if group.name == ANONYMOUS else endpoints_store.at(tx, group.channel_uid, place)
    if before is not None:
        gone[before.id] = before
    events = [
        event(each, by=by, at=now, cause=f"superseded by {endpoint.id}") for each in gone.values()
    ]
    by_whom = dict.fromkeys(gone, "the group changed its size or its mode")
    if before is not None:
        by_whom[before.id] = taken_by(endpoint)
    endpoints_store.save(
        tx,
        [(each, superseded(each, by=by_whom[id_], now=now)) for id_, each in gone.items()],
    )
    endpoints_store.insert(tx, [endpoint])
    groups_store.save(tx, group)
    regroup(tx, [(None, endpoint)], now=now)
    events.append(event(endpoint, by=by, at=now, cause=None))
    history.add(tx, [(group.channel_uid, each) for each in events])
    endpoints_store.revise(tx, [group.channel_uid])
    return endpoint


def _attached(
    tx: ReadTransaction, endpoint: Endpoint, channel: Channel, *, created: bool
) -> Attached:
    partitions = own_partitions(endpoint, channel)
    place = endpoint.place
    found: tuple[Committed, ...] = ()
    if place.role is Role.READER and place.group != ANONYMOUS:
        stored = offsets_store.at(tx, offsets_store.whose(endpoint), partitions)
        found = tuple(stored[each] for each in partitions if each in stored)
        for each in found:
            require_topic(channel.topic.id, each.topic_id)
    return Attached(
        endpoint=endpoint,
        created=created,
        took_over=takes_over(place) and endpoints_store.was_left_unfinished(tx, endpoint),
        partitions=partitions,
        positions=found,
        channel=channel,
        versions=schemas_store.versions(tx, channel.uid),
    )
