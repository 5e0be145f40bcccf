"""Use cases of attached endpoints: read, detach, remove."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel, Phase
from sluiceway_gateway.channels.service import require_channel
from sluiceway_gateway.clock import Clock, system_clock
from sluiceway_gateway.db.engine import Database, WriteTransaction
from sluiceway_gateway.endpoints import history, session_store, task_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.model import (
    ANONYMOUS,
    Endpoint,
    Event,
    Health,
    Place,
    Role,
    State,
    event,
    merged_ends,
    moved,
    reported_ends,
    returned,
)
from sluiceway_gateway.endpoints.placement import own_partitions, superseded
from sluiceway_gateway.endpoints.store import EndpointFilter, Reached
from sluiceway_gateway.errors import (
    ConcurrentChange,
    EndpointNotFound,
    InvalidRequest,
    KafkaUnavailable,
    MembersOpen,
    Violation,
)
from sluiceway_gateway.groups import store as groups_store
from sluiceway_gateway.groups.service import regroup
from sluiceway_gateway.kafka.admin import KafkaAdmin

EVENTS_SHOWN = 100


@dataclass(frozen=True, kw_only=True)
class Departure:
    """How an instance says that it goes."""

    epoch: int | None
    """None: unknown, from tasks of a client that does not send it."""
    state: State
    cause: str | None = None
    ends: Mapping[int, int] | None = None
    counters: Mapping[str, float] | None = None
    reached: Reached | None = None
    """Of a reader: how far it came, committed or not."""


@dataclass(frozen=True, kw_only=True)
class EndpointPage:
    """A part of a list, of one state of the channel's endpoints; `following` is None at the end."""

    channel: Channel
    revision: int
    endpoints: tuple[Endpoint, ...]
    following: Place | None


@dataclass(frozen=True, kw_only=True)
class EndpointReport:
    """All that is known of an endpoint."""

    channel: Channel
    endpoint: Endpoint
    partitions: range
    events: tuple[Event, ...]


class Endpoints:
    """The endpoints of one database."""

    def __init__(
        self,
        database: Database,
        *,
        topics: KafkaAdmin,
        notify: Callable[[], None],
        clock: Clock = system_clock,
    ) -> None:
        """`notify` is called after each commit that changed an endpoint."""
        self._database = database
        self._topics = topics
        self._notify = notify
        self._clock = clock

    def detach(
        self, name: str, endpoint_id: str, departure: Departure, *, uid: str, principal: Principal
    ) -> tuple[Channel, Endpoint]:
        """Have the endpoint be closed, or failed; repeated, it changes nothing.

        The first of a group closes last: raises MembersOpen while another lives. Raises
        ChannelNotFound, UidMismatch, EndpointNotFound, Fenced, IllegalTransition and Forbidden.
        """
        with self._database.write() as tx:
            now = self._clock()
            channel = require_channel(name, channels_store.hold(tx, name), uid)
            endpoint = _held(tx, channel, endpoint_id)
            reads = endpoint.place.role is Role.READER
            principal.require(Action.READ if reads else Action.WRITE, name)
            if reads and departure.ends is not None:
                message = "readers have no ends; leave it out"
                raise InvalidRequest(
                    f"Malformed: /ends: {message}.", (Violation(pointer="/ends", message=message),)
                )
            session_store.require_own(tx, endpoint.session, principal)
            gone = depart(tx, endpoint, departure, by=principal.id, now=now)
        if gone is not endpoint:
            self._notify()
        return channel, gone

    def remove(
        self, name: str, endpoint_id: str, *, uid: str, principal: Principal
    ) -> tuple[Channel, Endpoint]:
        """Take the endpoint's place away: it counts no more, and is fenced whatever it asks.

        What a writer wrote stays readable: a closed stand-in takes its place, with the ends that
        it reported, or else with the topic's ends of this moment. Raises ChannelNotFound,
        UidMismatch and EndpointNotFound, and KafkaUnavailable where those ends are needed.
        """
        marks = self._marks(name, endpoint_id, uid)
        with self._database.write() as tx:
            now = self._clock()
            channel = require_channel(name, channels_store.hold(tx, name), uid)
            endpoint = _held(tx, channel, endpoint_id)
            if endpoint.superseded and not endpoint.may_return:
                return channel, endpoint
            at = f"{now:%Y-%m-%d %H:%M:%S} UTC"
            gone = superseded(endpoint, by=f"{principal.id} removed it at {at}", now=now)
            endpoints_store.save(tx, [(endpoint, gone)])
            regroup(tx, [(endpoint, gone)], now=now)
            line = event(gone, by=principal.id, at=now, cause="removed")
            history.add(tx, [(channel.uid, line)])
            if endpoint.place.role is Role.WRITER:
                _stand_in(tx, endpoint, marks, by=principal.id, now=now)
            endpoints_store.revise(tx, [channel.uid])
        self._notify()
        return channel, gone

    def _marks(self, name: str, endpoint_id: str, uid: str) -> Mapping[int, int] | None:
        """Return the topic's ends if a writer's are not known; no transaction is open meanwhile."""
        with self._database.read() as tx:
            channel = require_channel(name, channels_store.find(tx, name), uid)
            endpoint = _of(channel, endpoint_id, endpoints_store.find(tx, endpoint_id))
        reads = endpoint.place.role is Role.READER
        if reads or endpoint.superseded or reported_ends(endpoint) is not None:
            return None
        if channel.phase is Phase.FAILED:
            # Its topic is gone, and the records with it.
            return {}
        unknown = f"Where the records of the endpoint {endpoint_id} end cannot be known now."
        try:
            found = self._topics.watermarks(
                channel.topic.name, range(channel.topic.partitions or 0)
            )
        except KafkaUnavailable as error:
            raise KafkaUnavailable(f"{unknown} {error}", error.lockout) from error
        silent = [partition for partition, mark in found.items() if mark is None]
        if silent:
            raise KafkaUnavailable(
                f"{unknown} Kafka does not tell where partition {silent[0]} ends."
            )
        return {partition: mark.end_offset for partition, mark in found.items() if mark}

    def state(self, name: str) -> tuple[Channel, int]:
        """Return the channel and the revision of its endpoints; raises ChannelNotFound."""
        with self._database.read() as tx:
            channel = require_channel(name, channels_store.find(tx, name), None)
            return channel, endpoints_store.revision(tx, channel.uid)

    def page(
        self, name: str, slots: EndpointFilter, *, after: Place | None, limit: int
    ) -> EndpointPage:
        """Return who has the channel's places, those after `after`; raises ChannelNotFound."""
        with self._database.read() as tx:
            channel = require_channel(name, channels_store.find(tx, name), None)
            revision = endpoints_store.revision(tx, channel.uid)
            found = endpoints_store.page(tx, channel.uid, slots, after=after, limit=limit + 1)
        return EndpointPage(
            channel=channel,
            revision=revision,
            endpoints=tuple(found[:limit]),
            following=found[limit - 1].place if len(found) > limit else None,
        )

    def get(self, name: str, endpoint_id: str) -> EndpointReport:
        """Return the endpoint, superseded or not, with its last events.

        Raises ChannelNotFound and EndpointNotFound.
        """
        with self._database.read() as tx:
            channel = require_channel(name, channels_store.find(tx, name), None)
            endpoint = _of(channel, endpoint_id, endpoints_store.find(tx, endpoint_id))
            events = history.of_endpoint(tx, endpoint_id, limit=EVENTS_SHOWN)
        return EndpointReport(
            channel=channel,
            endpoint=endpoint,
            partitions=own_partitions(endpoint, channel),
            events=tuple(events),
        )


def _ends_of_place(
    tx: WriteTransaction, endpoint: Endpoint, state: State, reported: Mapping[int, int] | None
) -> Mapping[int, int] | None:
    """Return where the records of the endpoint's place end; None: not known, or none were written.

    `reported` by one that failed: an empty mapping says that it wrote nothing, so the place ends
    where its predecessor left it, if that is known; None says that its records may go anywhere.
    """
    grouped = endpoint.place.role is Role.WRITER and endpoint.place.group != ANONYMOUS
    if state is State.ERROR:
        unfinished = not reported and grouped and endpoints_store.was_left_unfinished(tx, endpoint)
        if reported is None or unfinished:
            return None
        ends: Mapping[int, int] | None = reported
    else:
        ends = merged_ends(endpoint.ends, reported)
    return merged_ends(endpoints_store.ends_before(tx, endpoint), ends) if grouped else ends


def _stand_in(
    tx: WriteTransaction,
    writer: Endpoint,
    marks: Mapping[int, int] | None,
    *,
    by: str,
    now: datetime,
) -> None:
    """Put a finished instance in the place of a writer that was taken away, if it left records."""
    ends = reported_ends(writer)
    if ends is None:
        ends = marks
    if ends is None:
        raise ConcurrentChange(
            f"The endpoint {writer.id} changed at the same time; send the request again."
        )
    left = {partition: end for partition, end in ends.items() if end}
    group = groups_store.find(tx, writer.channel_uid, Role.WRITER, writer.place.group)
    if not left or group is None:
        return
    group = replace(group, epoch=group.epoch + 1)
    why = f"dismissed by {by}, in the place of {writer.id}"
    finished = replace(
        writer,
        id=uuid.uuid4().hex,
        epoch=group.epoch,
        state=State.CLOSED,
        health=Health.HEALTHY,
        cause=f"{why}: {writer.cause}" if writer.cause else why,
        attached_at=now,
        changed_at=now,
        payload=None,
        ends=left,
        lost_at=None,
    )
    groups_store.save(tx, group)
    endpoints_store.insert(tx, [finished])
    history.add(tx, [(writer.channel_uid, event(finished, by=by, at=now, cause=why))])


def depart(
    tx: WriteTransaction, endpoint: Endpoint, departure: Departure, *, by: str, now: datetime
) -> Endpoint:
    """Close an endpoint, or have it fail, and rebalance its group; channel and endpoint are held.

    Returns the endpoint itself if it is so already. Raises MembersOpen, Fenced and
    IllegalTransition.
    """
    endpoint.require(epoch=departure.epoch)
    gone = moved(endpoint, departure.state, cause=departure.cause, now=now)
    if gone is endpoint:
        return endpoint
    if gone.state is State.CLOSED:
        _require_last(tx, endpoint)
    ends = _ends_of_place(tx, endpoint, gone.state, departure.ends)
    # What its tasks have counted stands beside what it says itself.
    counters = {**endpoint.counters, **(departure.counters or {})}
    task_store.forget(tx, endpoint.id)
    gone = replace(returned(gone), ends=ends, counters=counters)
    endpoints_store.save(tx, [(endpoint, gone)])
    if departure.reached is not None:
        endpoints_store.count_up(tx, [(gone.id, gone.counters, departure.reached)])
    regroup(tx, [(endpoint, gone)], now=now)
    line = event(gone, by=by, at=now, cause=departure.cause)
    history.add(tx, [(endpoint.channel_uid, line)])
    endpoints_store.revise(tx, [endpoint.channel_uid])
    return gone


def _held(tx: WriteTransaction, channel: Channel, endpoint_id: str) -> Endpoint:
    return _of(channel, endpoint_id, endpoints_store.hold(tx, [endpoint_id]).get(endpoint_id))


def _of(channel: Channel, endpoint_id: str, endpoint: Endpoint | None) -> Endpoint:
    if endpoint is None or endpoint.channel_uid != channel.uid:
        raise EndpointNotFound(f"The channel {channel.name!r} has no endpoint {endpoint_id}.")
    return endpoint


def _require_last(tx: WriteTransaction, endpoint: Endpoint) -> None:
    """Raise MembersOpen for the first of a group while others of it live."""
    place = endpoint.place
    if place.group == ANONYMOUS or endpoint.is_dynamic or place.index != 0:
        return
    members = endpoints_store.members(tx, endpoint.channel_uid, place.role, place.group)
    others = [str(each.place.index) for each in members if each.lives and each.id != endpoint.id]
    if others:
        raise MembersOpen(
            f"The first of the group {place.group!r} closes last, and these members are open: "
            f"{', '.join(others[:20])}{', …' if len(others) > 20 else ''}. Send the request again "
            "when they have closed, or are lost."
        )
