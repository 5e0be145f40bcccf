"""Attach requests, and decisions about those that share a transaction. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import attrgetter

from sluiceway_gateway.channels.change import changed
from sluiceway_gateway.channels.model import Channel, Spec
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.errors import (
    ChannelNotReady,
    EndpointIdReused,
    GroupSize,
    SluicewayGatewayError,
)
from sluiceway_gateway.core.names import MAX_GROUP_SIZE
from sluiceway_gateway.endpoints.groups.assignment import endpoint_partitions
from sluiceway_gateway.endpoints.groups.model import (
    Group,
    GroupConfig,
    new_group,
    require_growable,
)
from sluiceway_gateway.endpoints.model import (
    ANONYMOUS,
    Endpoint,
    EndpointChange,
    Event,
    Mode,
    Place,
    PositionOwner,
    Role,
    RoleGroup,
    SparkJob,
    State,
    event,
    own_heartbeat,
    superseded,
)
from sluiceway_gateway.endpoints.positions import Committed, require_topic
from sluiceway_gateway.schemas.model import SchemaVersion

StaticKey = tuple[str, str, str]
"""A channel's uid, a group of readers and a static id."""


@dataclass(frozen=True, kw_only=True)
class AttachSpec:
    """The requested endpoint; without index and size, anonymous or a member of a dynamic group."""

    id: str
    session: str
    client: str
    role: Role
    group: str = ANONYMOUS
    index: int | None = None
    size: int | None = None
    mode: Mode = Mode.SHARED
    title: str | None = None
    features: frozenset[str] = frozenset()
    """Features of the client, such as exactly-once delivery."""
    interval_ms: int | None = None
    timeout_ms: int | None = None
    """Its own heartbeat interval and timeout; None for the channel's."""
    static_id: str | None = None
    spark: SparkJob | None = None

    @property
    def config(self) -> GroupConfig:
        """The requested mode and size of its group."""
        is_dynamic = self.group != ANONYMOUS and self.size is None
        return GroupConfig(mode=self.mode, size=self.size, dynamic=is_dynamic)


@dataclass(frozen=True, kw_only=True)
class AttachRequest:
    """A principal's request to attach an endpoint to a channel."""

    channel: str
    channel_uid: str
    spec: AttachSpec
    principal: Principal

    @property
    def key(self) -> tuple[object, ...]:
        """Identity of the place: a batch has at most one request for it."""
        spec = self.spec
        place: object = spec.id if spec.index is None else spec.index
        if spec.static_id is not None:
            place = ("static", spec.static_id)
        return self.channel, spec.role, spec.group, place


@dataclass(frozen=True, kw_only=True)
class Attached:
    """An attached endpoint, with its partitions, positions and channel."""

    endpoint: Endpoint
    created: bool
    """False for a repeated request."""
    took_over: bool
    """Whether it is a writer, and the previous instance in its place never finished."""
    partitions: range
    positions: tuple[Committed, ...]
    channel: Channel
    versions: tuple[SchemaVersion, ...]
    finished_through: int | None
    """Of a reader of a group: the number of the last writer that its place has read to its end."""
    live_writers: tuple[str, ...]
    """Of a reader: the ids of the channel's live writers."""


_REQUESTED = attrgetter(
    *("channel_uid", "session", "place.role", "place.group", "size", "mode", "static_id")
)


def require_same(existing: Endpoint, requested: Endpoint) -> None:
    """Raise EndpointIdReused if the endpoint was attached by a different request."""
    moved = existing.size is not None and existing.place != requested.place
    if moved or _REQUESTED(existing) != _REQUESTED(requested):
        raise EndpointIdReused(
            f"The id {existing.id} is that of {existing.where}, attached by another request. Use a "
            "new id for every instance, and repeat a request unchanged."
        )


def draft(request: AttachRequest, channel: Channel, *, number: int, now: datetime) -> Endpoint:
    """Return the requested endpoint, before it joins its group."""
    spec = request.spec
    return Endpoint(
        id=spec.id,
        channel_uid=channel.uid,
        session=spec.session,
        place=Place(role=spec.role, group=spec.group, index=spec.index or 0),
        size=spec.size,
        mode=spec.mode,
        epoch=0,
        generation=0,
        attached_at=now,
        changed_at=now,
        title=spec.title,
        static_id=spec.static_id,
        spark=spec.spark,
        number=number,
    )


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A request that passed the checks of its channel and its session."""

    request: AttachRequest
    channel: Channel
    endpoint: Endpoint
    """A draft until it has joined, or what an earlier, equal request attached."""
    is_new: bool

    @property
    def group(self) -> RoleGroup:
        """The key of its group."""
        return self.channel.uid, self.endpoint.place.role, self.endpoint.place.group

    @property
    def static_key(self) -> StaticKey:
        """The key of its static id; without one, a key that matches no endpoint."""
        return self.channel.uid, self.endpoint.place.group, self.endpoint.static_id or ""

    @property
    def partitions(self) -> range:
        """Its partitions; in a dynamic group none before it takes its share."""
        return endpoint_partitions(self.endpoint, self.channel.topic.partitions or 0)

    @property
    def position_owner(self) -> PositionOwner | None:
        """The key of the positions it continues from; None without committed positions."""
        place = self.endpoint.place
        grouped = place.role is Role.READER and place.group != ANONYMOUS
        return self.endpoint.position_owner if grouped else None


@dataclass(frozen=True, kw_only=True)
class AttachState:
    """The stored state for decisions: groups, and endpoints that candidates may replace."""

    groups: Mapping[RoleGroup, Group]
    members: Mapping[RoleGroup, Sequence[Endpoint]]
    """Members of groups that a request wants to change."""
    predecessors: Mapping[StaticKey, Endpoint]
    """The latest members with the static ids of new ones."""
    occupants: Mapping[tuple[str, Place], Endpoint]
    locked: Mapping[str, Endpoint]
    busy: frozenset[str]
    """Endpoints that another transaction has locked."""
    stored: Mapping[PositionOwner, Mapping[int, Committed]]

    def positions(self, candidate: Candidate) -> tuple[Committed, ...]:
        """Return the positions that the candidate continues from."""
        owner = candidate.position_owner
        stored = self.stored[owner] if owner else {}
        return tuple(stored[partition] for partition in candidate.partitions if partition in stored)


@dataclass(frozen=True, kw_only=True)
class AttachPlan:
    """The outcomes of candidates, except of those that wait, and what is stored for them."""

    attached: tuple[Candidate, ...] = ()
    """With the endpoints as they have joined."""
    errors: dict[object, SluicewayGatewayError] = field(default_factory=dict)
    """By the key of the request."""
    groups: dict[RoleGroup, Group] = field(default_factory=dict)
    """Groups with new members."""
    superseded: dict[str, EndpointChange] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    growth: dict[str, tuple[Candidate, Channel]] = field(default_factory=dict)
    """By name, channels that a group waits for, each with the last request that enlarged it."""


def decide(candidates: Iterable[Candidate], state: AttachState, *, now: datetime) -> AttachPlan:
    """Decide about requests in their order: each meets what those before it leave."""
    plan = AttachPlan()
    for candidate in candidates:
        try:
            for committed in state.positions(candidate):
                require_topic(candidate.channel.topic.id, committed.topic_id)
            if candidate.is_new:
                plan = _join(plan, candidate, state, now)
            else:
                plan = replace(plan, attached=(*plan.attached, candidate))
        except SluicewayGatewayError as error:
            plan = replace(plan, errors=plan.errors | {candidate.request.key: error})
    return plan


def _join(plan: AttachPlan, candidate: Candidate, state: AttachState, now: datetime) -> AttachPlan:
    """Add a member to its group, or let its channel grow first."""
    key, spec, principal = candidate.group, candidate.request.spec, candidate.request.principal
    heartbeat = own_heartbeat(
        candidate.channel.spec.heartbeat, interval_ms=spec.interval_ms, timeout_ms=spec.timeout_ms
    )
    stored = state.groups.get(key)
    new = new_group(*key, spec.config, owner=principal.subject)
    before = plan.groups.get(key) or stored or new
    owned = before.owned(candidate.channel.name)
    if (stored is None or stored.owner is None) and not principal.may_use(owned):
        # Another request of the batch took the group; alone, this one is refused or noted.
        return plan
    members = state.members.get(key, ())
    joined = before.epoch - (stored or new).epoch
    live = joined + sum(member.lives for member in members if member.id not in plan.superseded)
    group = before.reconfigured(spec.config, live=live, now=now)
    growth = _growth(plan, candidate)
    if growth is not None:
        _, channel = growth
        error = ChannelNotReady(
            f"The topic of the channel {channel.name!r} has {channel.topic.partitions} partitions "
            f"and is growing to {channel.spec.partitions}, one for each member of the group "
            f"{spec.group!r}. Send the request again in a moment."
        )
        growing, errors = {channel.name: growth}, {candidate.request.key: error}
        return replace(plan, growth=plan.growth | growing, errors=plan.errors | errors)
    displaced = displaced_members(members) if group is not before else ()
    previous = state.predecessors.get(candidate.static_key)
    group, place = group.with_member(previous.place.index if previous else spec.index)
    occupant = state.occupants.get((candidate.channel.uid, place))
    if occupant is None and previous is not None and previous.may_return:
        # It was lost and has no place; it must not return.
        occupant = previous
    if group.dynamic and not (occupant and occupant.lives):
        if (group.size or 0) >= MAX_GROUP_SIZE:
            raise GroupSize(
                f"The group {group.name!r} has the maximum of {MAX_GROUP_SIZE:,} members. Close "
                "some of them, or use another group."
            )
        group = replace(group, size=(group.size or 0) + 1)
    reasons = {}
    if occupant is not None:
        reasons[occupant.id] = f"another instance took that place at {now:%Y-%m-%d %H:%M:%S} UTC"
    for member in displaced:
        reasons.setdefault(member.id, "the group changed its size or its mode")
    if not state.busy.isdisjoint(reasons):
        return plan
    endpoint = replace(
        candidate.endpoint,
        place=place,
        epoch=group.epoch,
        generation=group.generation,
        heartbeat=heartbeat,
    )
    replaced = {
        id_: (state.locked[id_], superseded(state.locked[id_], by=reason, now=now))
        for id_, reason in reasons.items()
        if id_ in state.locked and id_ not in plan.superseded
    }
    cause = f"superseded by {endpoint.id}"
    lines = [event(was, by=principal.id, at=now, cause=cause) for was, _ in replaced.values()]
    lines.append(event(endpoint, by=principal.id, at=now, cause=None))
    return replace(
        plan,
        attached=(*plan.attached, replace(candidate, endpoint=endpoint)),
        groups=plan.groups | {key: group.claimed_by(principal.subject)},
        superseded=plan.superseded | replaced,
        events=(*plan.events, *lines),
    )


def _growth(plan: AttachPlan, candidate: Candidate) -> tuple[Candidate, Channel] | None:
    """Return what the channel of a larger group grows to, and for whose request."""
    spec = candidate.request.spec
    grower, channel = plan.growth.get(candidate.channel.name, (candidate, candidate.channel))
    size, reads = spec.size or 0, spec.role is Role.READER
    if not reads or spec.mode is not Mode.SHARED or size <= (channel.topic.partitions or 0):
        return None
    require_growable(channel, spec.group, size)
    if size <= channel.spec.partitions:
        return grower, channel
    if size > (channel.spec.max_partitions or 0):
        candidate.request.principal.require(Action.MANAGE, channel.name)
    return candidate, changed(channel, Spec(partitions=size))


def displaced_members(members: Sequence[Endpoint]) -> list[Endpoint]:
    """Return the members that a group loses by a change of size or mode.

    Finished ones keep their places, because their ends still count. Lost members of a dynamic
    group cannot return to a group with another mode.
    """
    if any(member.lives for member in members):
        return []
    return [member for member in members if member.state is not State.CLOSED]


def requested_places(
    new: Iterable[Candidate],
    groups: Mapping[RoleGroup, Group],
    predecessors: Mapping[StaticKey, Endpoint],
) -> list[tuple[str, Place]]:
    """Return the places that new members of groups would get, each with its channel's uid."""
    places, joined = [], dict(groups)
    for candidate in new:
        spec, previous = candidate.request.spec, predecessors.get(candidate.static_key)
        group = joined.get(candidate.group) or new_group(*candidate.group, spec.config)
        group, place = group.with_member(previous.place.index if previous else spec.index)
        joined[candidate.group] = group
        if spec.group != ANONYMOUS:
            places.append((candidate.channel.uid, place))
    return places
