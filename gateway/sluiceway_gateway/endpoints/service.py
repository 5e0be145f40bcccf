"""Use cases of endpoints: attach, read, detach, dismiss."""

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from sluiceway_gateway.channels.model import Channel, Phase
from sluiceway_gateway.channels.service import find_channel, hold_channel
from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.auth.model import Principal
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db.engine import Database, ReadTransaction, WriteTransaction
from sluiceway_gateway.core.errors import (
    ConcurrentChange,
    EndpointNotFound,
    InvalidRequest,
    MembersOpen,
    SluicewayGatewayError,
)
from sluiceway_gateway.core.kafka.admin import KafkaAdmin, require_watermarks
from sluiceway_gateway.core.passes import OnPass, unobserved
from sluiceway_gateway.core.request_batcher import Batcher
from sluiceway_gateway.endpoints import session_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.attach import AttachBatch, Outcome
from sluiceway_gateway.endpoints.attach_request import Attached, AttachRequest
from sluiceway_gateway.endpoints.change_store import add_events, events_of_endpoint, save_changes
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.groups.assignment import endpoint_partitions, reading_place
from sluiceway_gateway.endpoints.model import (
    ANONYMOUS,
    Endpoint,
    Event,
    Health,
    Place,
    Reached,
    Role,
    State,
    event,
    listed,
    merged_ends,
    moved,
    reported_ends,
    returned,
    superseded,
)

_EVENTS_SHOWN = 100


@dataclass(frozen=True, kw_only=True)
class DetachSpec:
    """The last report of an endpoint."""

    epoch: int | None
    """None if unknown: tasks of older clients do not send it."""
    state: State
    cause: str | None = None
    ends: Mapping[int, int] | None = None
    counters: Mapping[str, float] | None = None
    reached: Reached | None = None
    """Of a reader: the next offset by partition, committed or not."""
    finished_through: int | None = None
    """Of a reader that has read everything: the highest number of the writers that it judged."""


@dataclass(frozen=True, kw_only=True)
class EndpointPage:
    """A page of a channel's endpoints; `following` is None at the end."""

    channel: Channel
    revision: int
    """The revision of the channel's endpoints."""
    endpoints: tuple[Endpoint, ...]
    following: Place | None


@dataclass(frozen=True, kw_only=True)
class EndpointDetails:
    """An endpoint, its partitions and its last events."""

    channel: Channel
    endpoint: Endpoint
    partitions: range
    events: tuple[Event, ...]


Settlements = Callable[[ReadTransaction, Collection[str]], Mapping[str, str]]
"""Returns the settlements of writers of exactly-once channels, by endpoint id."""


@dataclass(eq=False, repr=False)
class Endpoints:
    """The endpoints of one database."""

    database: Database
    kafka: KafkaAdmin
    settlements: Settlements
    clock: Clock = system_clock

    def detach(
        self, name: str, endpoint_id: str, spec: DetachSpec, *, uid: str, principal: Principal
    ) -> tuple[Channel, Endpoint]:
        """Close or fail an endpoint; a repeated request changes nothing.

        Raises ChannelNotFound, UidMismatch, EndpointNotFound, Fenced, IllegalTransition,
        Forbidden, and MembersOpen for member 0 of a group while another member is alive.
        """
        with self.database.write() as tx:
            now = self.clock()
            channel = hold_channel(tx, name, uid)
            endpoint = hold_endpoint(tx, channel, endpoint_id)
            role = endpoint.place.role
            principal.require(role.action, name)
            if role is Role.READER and spec.ends is not None:
                message = "readers have no end offsets; leave it out"
                raise InvalidRequest.at("/ends", message)
            session_store.require_own(tx, endpoint.session, principal)
            detached = detach_endpoint(tx, endpoint, spec, by=principal.id, now=now)
        return channel, detached

    def dismiss(
        self, name: str, endpoint_id: str, *, uid: str, principal: Principal
    ) -> tuple[Channel, Endpoint]:
        """Remove an endpoint from its place, and fence it.

        The records of a writer stay readable: a closed stand-in takes its place, with the reported
        ends of the writer or, without any, the topic's current ends. Raises ChannelNotFound,
        UidMismatch, EndpointNotFound, and, if those ends are needed, KafkaUnavailable, and
        ConcurrentChange if the endpoint changed meanwhile.
        """
        since, topic_ends = self._topic_ends(name, endpoint_id, uid)
        with self.database.write() as tx:
            now = self.clock()
            channel = hold_channel(tx, name, uid)
            endpoint = hold_endpoint(tx, channel, endpoint_id)
            if endpoint.superseded and not endpoint.may_return:
                return channel, endpoint
            if since != (endpoint.epoch, endpoint.number):
                # It may have returned, and written records after these ends.
                topic_ends = None
            at = f"{now:%Y-%m-%d %H:%M:%S} UTC"
            dismissed = superseded(endpoint, by=f"{principal.id} dismissed it at {at}", now=now)
            changes = [(endpoint, dismissed)]
            save_changes(tx, changes, by=principal.id, now=now, cause="dismissed")
            if endpoint.place.role is Role.WRITER:
                _insert_stand_in(tx, endpoint, topic_ends, by=principal.id, now=now)
            place = f"{endpoint.place.role} {endpoint.place.group}[{endpoint.place.index}]"
            audit_store.add(
                tx,
                channel,
                AuditedAction.DISMISS_ENDPOINT,
                by=principal,
                at=now,
                target=endpoint.id,
                old={place: f"{endpoint.state}, {endpoint.health}"},
                new={place: "dismissed"},
            )
        return channel, dismissed

    def _topic_ends(
        self, name: str, endpoint_id: str, uid: str
    ) -> tuple[tuple[int, int | None], Mapping[int, int] | None]:
        """Return the topic's ends if the writer's are unknown, after its epoch and number.

        Call outside of transactions.
        """
        with self.database.read() as tx:
            channel = find_channel(tx, name, uid)
            endpoint = require_endpoint(channel, endpoint_id, endpoints_store.find(tx, endpoint_id))
        since = endpoint.epoch, endpoint.number
        reads = endpoint.place.role is Role.READER
        if reads or endpoint.superseded or reported_ends(endpoint) is not None:
            return since, None
        if channel.phase is Phase.FAILED:
            # The topic was deleted, with all records.
            return since, {}
        watermarks = require_watermarks(
            self.kafka,
            channel.topic.name,
            channel.topic.partitions or 0,
            unknown=f"The end offsets of the endpoint {endpoint_id} are unknown.",
        )
        return since, {partition: marks.end_offset for partition, marks in watermarks.items()}

    def state(self, name: str) -> tuple[Channel, int]:
        """Return the channel and the revision of its endpoints; raises ChannelNotFound."""
        with self.database.read() as tx:
            channel = find_channel(tx, name)
            return channel, endpoints_store.revision(tx, channel.uid)

    def page(
        self,
        name: str,
        *,
        role: Role | None = None,
        group: str | None = None,
        after: Place | None,
        limit: int,
    ) -> EndpointPage:
        """Return endpoints in the order of their places, after `after`; raises ChannelNotFound."""
        with self.database.read() as tx:
            channel = find_channel(tx, name)
            revision = endpoints_store.revision(tx, channel.uid)
            endpoints = endpoints_store.page(
                tx, channel.uid, role=role, group=group, after=after, limit=limit + 1
            )
            endpoints = with_settlements(tx, endpoints, self.settlements)
        return EndpointPage(
            channel=channel,
            revision=revision,
            endpoints=tuple(endpoints[:limit]),
            following=endpoints[limit - 1].place if len(endpoints) > limit else None,
        )

    def get(self, name: str, endpoint_id: str) -> EndpointDetails:
        """Return an endpoint, superseded or not.

        Raises ChannelNotFound and EndpointNotFound.
        """
        with self.database.read() as tx:
            channel = find_channel(tx, name)
            endpoint = require_endpoint(channel, endpoint_id, endpoints_store.find(tx, endpoint_id))
            events = events_of_endpoint(tx, endpoint_id, limit=_EVENTS_SHOWN)
        return EndpointDetails(
            channel=channel,
            endpoint=endpoint,
            partitions=endpoint_partitions(endpoint, channel.topic.partitions or 0),
            events=tuple(events),
        )


def with_settlements(
    tx: ReadTransaction, endpoints: Sequence[Endpoint], settlements: Settlements
) -> list[Endpoint]:
    """Return the endpoints, the failed and lost writers of exactly-once channels with theirs.

    Those of Spark's queries have none, because their batches have the run's id.
    """
    ids = {
        endpoint.id
        for endpoint in endpoints
        if endpoint.place.role is Role.WRITER
        and not endpoint.lives
        and not endpoint.is_finished
        and not (endpoint.spark and endpoint.spark.query)
    }
    if not ids:
        return list(endpoints)
    settled = settlements(tx, ids)
    return [
        replace(endpoint, settled=settled[endpoint.id]) if endpoint.id in settled else endpoint
        for endpoint in endpoints
    ]


def detach_endpoint(
    tx: WriteTransaction, endpoint: Endpoint, spec: DetachSpec, *, by: str, now: datetime
) -> Endpoint:
    """Close or fail an endpoint; the transaction holds its channel and the endpoint.

    Returns the endpoint itself if unchanged. Raises MembersOpen, Fenced and
    IllegalTransition.
    """
    endpoint.require(epoch=spec.epoch)
    cause = spec.cause
    if cause is not None and endpoint.cause is not None:
        # Of its last failed task, which the process that ends it does not know.
        cause = f"{cause}; {endpoint.cause}"
    detached = moved(endpoint, spec.state, cause=cause, now=now)
    if detached is endpoint:
        return endpoint
    if detached.state is State.CLOSED:
        _require_last(tx, endpoint)
    ends = _ends_of_place(tx, endpoint, detached.state, spec.ends)
    # Keeps the sums of its tasks.
    counters = {**endpoint.counters, **(spec.counters or {})}
    session_store.delete_attempts(tx, endpoint.id)
    number = endpoint.number
    if detached.state is State.ERROR and ends and not spec.ends:
        # It stands for its predecessor, whose ends it has: readers may have read that one.
        number = endpoints_store.number_before(tx, endpoint)
    detached = replace(returned(detached), ends=ends, counters=counters, number=number)
    save_changes(tx, [(endpoint, detached)], by=by, now=now, cause=cause)
    if detached.state is State.CLOSED and spec.finished_through is not None:
        _record_end(tx, detached, spec.finished_through)
    if spec.reached is not None:
        endpoints_store.save_counters(tx, [(detached, counters, spec.reached)])
    return detached


def _record_end(tx: WriteTransaction, reader: Endpoint, through: int) -> None:
    """Store that a closed reader's place has read the writers up to a number to their end.

    Of a dynamic group only its last member stores it, because the others left their partitions to
    it. A reset of the place in the meantime counts more: it took the share of a dynamic member, and
    left a fixed one behind its group's generation.
    """
    place = reader.place
    if place.group == ANONYMOUS:
        return
    # After a restore of the database, the client may know later writers.
    through = min(through, endpoints_store.revision(tx, reader.channel_uid))
    if reader.is_dynamic:
        is_last = not endpoints_store.live_members(tx, [reader.group_key])[reader.group_key]
        has_share = reader.share is not None
        ended = has_share and is_last and not endpoints_store.left_unfinished(tx, reader)
    else:
        group = groups_store.find(tx, reader.channel_uid, Role.READER, place.group)
        ended = group is not None and group.generation == reader.generation
    if ended:
        groups_store.finish(tx, reading_place(reader), through)


def _ends_of_place(
    tx: WriteTransaction, endpoint: Endpoint, state: State, reported: Mapping[int, int] | None
) -> Mapping[int, int] | None:
    """Return the ends of the records of the endpoint's place; None if unknown, or for a reader.

    For a failed endpoint, an empty `reported` means that it wrote nothing, so the ends are its
    predecessor's, if known; None means that they are unknown.
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


def _insert_stand_in(
    tx: WriteTransaction,
    writer: Endpoint,
    topic_ends: Mapping[int, int] | None,
    *,
    by: str,
    now: datetime,
) -> None:
    """Insert a closed instance in the place of a dismissed writer that wrote records."""
    ends = reported_ends(writer)
    if ends is None:
        ends = topic_ends
    if ends is None:
        raise ConcurrentChange(
            f"The endpoint {writer.id} changed at the same time; send the request again."
        )
    written = {partition: end for partition, end in ends.items() if end}
    group = groups_store.find(tx, writer.channel_uid, Role.WRITER, writer.place.group)
    if not written or group is None:
        return
    group = replace(group, epoch=group.epoch + 1)
    cause = f"dismissed by {by}, in the place of {writer.id}"
    stand_in = replace(
        writer,
        id=uuid.uuid4().hex,
        epoch=group.epoch,
        state=State.CLOSED,
        health=Health.HEALTHY,
        cause=f"{cause}: {writer.cause}" if writer.cause else cause,
        attached_at=now,
        changed_at=now,
        payload=None,
        ends=written,
        lost_at=None,
    )
    groups_store.save(tx, group)
    endpoints_store.insert(tx, [stand_in])
    add_events(tx, [event(stand_in, by=by, at=now, cause=cause)])


def hold_endpoint(tx: WriteTransaction, channel: Channel, endpoint_id: str) -> Endpoint:
    """Lock an endpoint of the channel and return it; raises EndpointNotFound."""
    held = endpoints_store.hold(tx, [endpoint_id]).get(endpoint_id)
    return require_endpoint(channel, endpoint_id, held)


def require_endpoint(channel: Channel, endpoint_id: str, endpoint: Endpoint | None) -> Endpoint:
    """Return an endpoint of the channel; raises EndpointNotFound."""
    if endpoint is None or endpoint.channel_uid != channel.uid:
        raise EndpointNotFound(f"The channel {channel.name!r} has no endpoint {endpoint_id}.")
    return endpoint


def _require_last(tx: WriteTransaction, endpoint: Endpoint) -> None:
    """Raise MembersOpen for member 0 of a group while another member is alive."""
    place = endpoint.place
    if place.group == ANONYMOUS or endpoint.is_dynamic or place.index != 0:
        return
    members = endpoints_store.members(tx, endpoint.channel_uid, place.role, place.group)
    others = [member.place.index for member in members if member.lives and member.id != endpoint.id]
    if others:
        raise MembersOpen(
            f"Member 0 of the group {place.group!r} closes last, and these members are open: "
            f"{listed(others)}. Send the request again after they have closed or are lost."
        )


#: Maximum requests in one transaction; later requests wait for it.
_BATCH_SIZE = 200
#: Threads for requests that wait for a row lock.
_WAITING_THREADS = 8


class AttachService:
    """Attaches endpoints to the channels of one database.

    Requests that arrive together share a transaction. A request for a locked row is retried alone,
    so that it does not delay the others.
    """

    def __init__(
        self,
        database: Database,
        tokens: Tokens,
        *,
        ownership: Ownership,
        wake: Callable[[], None],
        on_pass: OnPass = unobserved,
        clock: Clock = system_clock,
    ) -> None:
        """`wake` is called when a channel has to grow."""
        self._database = database
        self._tokens = tokens
        self._ownership = ownership
        self._wake = wake
        self._clock = clock
        self._batcher = Batcher(
            partial(self._attach, wait=False),
            self._attach_one,
            name="attach",
            threads=_WAITING_THREADS,
            key=lambda request: request.key,
            most=_BATCH_SIZE,
            on_pass=on_pass,
        )

    def failing(self) -> dict[str, str]:
        """Return the reason, by name, if requests keep failing."""
        return self._batcher.failing()

    def close(self) -> None:
        """Stop after all requests are answered."""
        self._batcher.close()

    def submit(self, request: AttachRequest) -> "Future[Attached]":
        """Attach an endpoint, with an epoch above all others of its group.

        A repeated or delayed request changes nothing. The future raises Unauthenticated,
        Forbidden, ChannelNotFound, UidMismatch, ChannelNotReady (also while the channel grows
        with the group), ChannelClosed, Fenced, EndpointIdReused, GroupSize, GroupMode,
        GroupLargerThanPinned and TopicChanged.
        """
        return self._batcher.submit(request)

    def _attach_one(self, request: AttachRequest) -> Attached:
        (outcome,) = self._attach([request], wait=True)
        assert outcome is not None, "the request waited for its locks"  # noqa: S101
        if isinstance(outcome, SluicewayGatewayError):
            raise outcome
        return outcome

    def _attach(self, requests: Sequence[AttachRequest], *, wait: bool) -> "list[Outcome]":
        with self._database.write() as tx:
            refusals = self._tokens.refusals(tx, {request.principal for request in requests})
            batch = AttachBatch(tx=tx, ownership=self._ownership, now=self._clock(), wait=wait)
            outcomes, plan = batch.run(requests, refusals)
        if plan.growth:
            self._wake()
        return outcomes
