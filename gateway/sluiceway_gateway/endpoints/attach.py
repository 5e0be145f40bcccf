"""Attaching: requests, and batches of them in one transaction, each with a separate result."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.audited_fields import fields_of
from sluiceway_gateway.channels.change import changed
from sluiceway_gateway.channels.model import Channel, Heartbeat, Spec
from sluiceway_gateway.channels.service import require_channel, require_known, require_usable
from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.db.engine import WriteTransaction
from sluiceway_gateway.core.errors import (
    ChannelNotReady,
    ConcurrentChange,
    GroupSize,
    SluicewayGatewayError,
)
from sluiceway_gateway.core.names import MAX_GROUP_SIZE
from sluiceway_gateway.endpoints import position_store, session_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.attach_request import (
    Attached,
    AttachRequest,
    AttachSpec,
    require_same,
)
from sluiceway_gateway.endpoints.change_store import add_events, rebalance
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.groups.assignment import (
    assigned_partitions,
    endpoint_partitions,
    position_member,
    reading_place,
)
from sluiceway_gateway.endpoints.groups.model import (
    Group,
    departures,
    new_group,
    require_growable,
)
from sluiceway_gateway.endpoints.groups.store import RoleGroup
from sluiceway_gateway.endpoints.model import (
    ANONYMOUS,
    Endpoint,
    Event,
    Mode,
    Place,
    Role,
    State,
    event,
    own_heartbeat,
    superseded,
)
from sluiceway_gateway.endpoints.positions import Committed, require_topic
from sluiceway_gateway.schemas import store as schemas_store

StaticKey = tuple[str, str, str]
"""A channel's uid, a group of readers and a static id."""


Outcome = Attached | SluicewayGatewayError | None
"""None: another transaction holds a row that the request needs."""


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A request that passed the checks of its channel and its session."""

    number: int
    spec: AttachSpec
    principal: Principal
    channel: Channel
    existing: Endpoint | None
    """The endpoint that an earlier, equal request attached."""
    place: Place
    """Without an index until `_join`, if the request has none."""
    partitions: range
    heartbeat: Heartbeat | None = None

    @property
    def group(self) -> RoleGroup:
        """The key of its group."""
        return self.channel.uid, self.spec.role, self.spec.group

    @property
    def static_key(self) -> StaticKey:
        """The key of its static id; without one, a key that matches no endpoint."""
        return self.channel.uid, self.spec.group, self.spec.static_id or ""

    @property
    def position_owner(self) -> position_store.Whose | None:
        """The key of the positions it continues from; None without committed positions."""
        if self.place.role is not Role.READER or self.place.group == ANONYMOUS:
            return None
        return self.channel.uid, self.place.group, position_member(self.place, self.spec.mode)


@dataclass(kw_only=True)
class AttachBatch:
    """Requests that share a transaction.

    All checks of a request precede its first write, so an error of one does not affect the others.
    Rows are locked in the order sessions, channels, endpoints, each sorted by id. Without `wait`,
    locked channels and endpoints are skipped, and their requests have no outcome.
    """

    tx: WriteTransaction
    requests: Sequence[AttachRequest]
    now: datetime
    wait: bool
    ownership: Ownership
    outcomes: list[Outcome] = field(init=False)
    needs_growth: bool = False
    endpoints: list[Endpoint] = field(default_factory=list)
    _channels: dict[str, Channel] = field(default_factory=dict)
    _grown: dict[str, Channel] = field(default_factory=dict)
    """Channels with a larger number of partitions, by name."""
    _growers: dict[str, _Candidate] = field(default_factory=dict)
    """The last request for which a channel grows, by its name."""
    _numbers: Mapping[str, int] = field(default_factory=dict)
    """The number of new endpoints, by channel uid."""
    _groups: dict[RoleGroup, Group] = field(default_factory=dict)
    _changed_groups: dict[RoleGroup, Group] = field(default_factory=dict)
    _claimed: list[tuple[Group, _Candidate]] = field(default_factory=list)
    """Stored groups without an owner, each with the request that claims it."""
    _joined: Counter[RoleGroup] = field(default_factory=Counter)
    _added: Counter[RoleGroup] = field(default_factory=Counter)
    """The number of joined members that replaced no live member."""
    _members: dict[RoleGroup, list[Endpoint]] = field(default_factory=dict)
    """Members of groups that a request wants to change."""
    _occupants: dict[tuple[str, Place], Endpoint] = field(default_factory=dict)
    _predecessors: Mapping[StaticKey, Endpoint] = field(default_factory=dict)
    """The latest members with the static ids of new ones."""
    _locked: Mapping[str, Endpoint] = field(default_factory=dict)
    _reconfigured: list[tuple[Group, Group]] = field(default_factory=list)
    """Groups of readers before and after a change of size or mode."""
    _stored: dict[position_store.Whose, Mapping[int, Committed]] = field(default_factory=dict)
    _superseded: dict[str, tuple[Endpoint, Endpoint]] = field(default_factory=dict)
    _events: list[Event] = field(default_factory=list)

    def run(self, refusals: Mapping[Principal, SluicewayGatewayError]) -> None:
        """Set an outcome for each request; `refusals` are errors of principals."""
        self.outcomes = [None] * len(self.requests)
        candidates = self._check(refusals)
        self._lock(candidates)
        self._read_positions(candidates)
        accepted = []
        for candidate in candidates:
            try:
                for position in self._positions(candidate):
                    require_topic(candidate.channel.topic.id, position.topic_id)
                endpoint = candidate.existing or self._join(candidate)
            except SluicewayGatewayError as error:
                self.outcomes[candidate.number] = error
            else:
                if endpoint is not None:
                    accepted.append((candidate, endpoint))
        self._write()
        self._response(accepted)

    def _check(self, refusals: Mapping[Principal, SluicewayGatewayError]) -> list[_Candidate]:
        requests = []
        for number, request in enumerate(self.requests):
            try:
                if request.principal in refusals:
                    raise refusals[request.principal]
                request.principal.require(request.spec.role.action, request.channel)
            except SluicewayGatewayError as error:
                self.outcomes[number] = error
            else:
                requests.append((number, request))
        openings = [
            session_store.Opening(
                session=request.spec.session,
                client=request.spec.client,
                owner=request.principal.subject,
            )
            for _, request in requests
        ]
        session_store.begin(self.tx, openings, now=self.now)
        owners = session_store.owners(self.tx, {opening.session for opening in openings})
        names = {request.channel for _, request in requests}
        self._channels = channels_store.hold_named(self.tx, names, wait=self.wait)
        uids = {channel.uid for channel in self._channels.values()}
        self._numbers = endpoints_store.next_numbers(self.tx, uids)
        existing = endpoints_store.find_all(self.tx, [request.spec.id for _, request in requests])
        candidates = []
        ids: set[str] = set()
        for number, request in requests:
            session, channel = request.spec.session, self._channels.get(request.channel)
            if (channel is None and not self.wait) or request.spec.id in ids:
                continue
            ids.add(request.spec.id)
            try:
                request.principal.require_own(owners[session], f"The session {session}")
                channel = require_channel(request.channel, channel, request.channel_uid)
                require_known(channel, request.spec.features)
                endpoint = existing.get(request.spec.id)
                if endpoint is not None:
                    require_same(endpoint, channel, request.spec)
                    endpoint.require()
                require_usable(
                    channel, writes=endpoint is None and request.spec.role is Role.WRITER
                )
                candidates.append(_candidate(number, request, channel, endpoint))
            except SluicewayGatewayError as error:
                self.outcomes[number] = error
        return candidates

    def _lock(self, candidates: Sequence[_Candidate]) -> None:
        """Lock the endpoints that would be superseded, so that they can no longer commit."""
        new = [candidate for candidate in candidates if candidate.existing is None]
        self._groups = groups_store.find_all(self.tx, {candidate.group for candidate in new})
        for candidate in new:
            group = self._groups.get(candidate.group)
            if (
                group
                and not group.matches(candidate.spec.config)
                and candidate.group not in self._members
            ):
                self._members[candidate.group] = endpoints_store.members(
                    self.tx, *candidate.group, lost=True
                )
        places = []
        next_index = {key: group.next_index for key, group in self._groups.items()}
        self._predecessors = endpoints_store.latest_of_static_ids(
            self.tx,
            {candidate.static_key for candidate in new if candidate.spec.static_id is not None},
        )
        for candidate in new:
            place = candidate.place
            before = self._predecessors.get(candidate.static_key)
            if before is not None:
                place = before.place
            elif candidate.spec.is_dynamic:
                place = replace(place, index=next_index.setdefault(candidate.group, 0))
                next_index[candidate.group] += 1
            if place.group != ANONYMOUS:
                places.append((candidate.channel.uid, place))
        self._occupants = endpoints_store.at_places(self.tx, places)
        ids = {occupant.id for occupant in self._occupants.values()}
        ids |= {member.id for group in self._members for member in self._displaced(group)}
        ids |= {predecessor.id for predecessor in self._predecessors.values()}
        self._locked = endpoints_store.hold(self.tx, ids, wait=self.wait)

    def _read_positions(self, candidates: Sequence[_Candidate]) -> None:
        wanted: dict[position_store.Whose, set[int]] = {}
        for candidate in candidates:
            if candidate.position_owner is not None:
                wanted.setdefault(candidate.position_owner, set()).update(candidate.partitions)
        self._stored = {
            owner: position_store.at(self.tx, owner, partitions)
            for owner, partitions in wanted.items()
        }

    def _displaced(self, group: RoleGroup) -> list[Endpoint]:
        """Return the members that a group loses by a change of size or mode.

        Finished ones keep their places, because their ends still count. Lost members of a dynamic
        group cannot return to a group with another mode.
        """
        members = self._members.get(group, [])
        if any(member.lives for member in members):
            return []
        return [member for member in members if member.state is not State.CLOSED]

    def _join(self, candidate: _Candidate) -> Endpoint | None:
        """Add a member to its group; None if another transaction holds an endpoint in its way."""
        key, spec = candidate.group, candidate.spec
        before = self._groups.get(key) or new_group(
            *key, spec.config, owner=candidate.principal.subject
        )
        self.ownership.require(candidate.principal, before.owned(candidate.channel.name), "join")
        members = [
            member for member in self._members.get(key, ()) if member.id not in self._superseded
        ]
        live = self._joined[key] + sum(member.lives for member in members)
        group = before.reconfigured(spec.config, live=live, now=self.now)
        self._require_partitions(candidate)
        displaced = [] if group is before else self._displaced(key)
        previous = self._predecessors.get(candidate.static_key)
        reconfigured = group
        group, place = group.with_member(previous.place.index if previous else spec.index)
        occupant = self._occupants.get((candidate.channel.uid, place))
        if occupant is None and previous is not None and previous.may_return:
            # It was lost and has no place; it must not return.
            occupant = previous
        replaces = occupant is not None and occupant.lives
        if (
            group.dynamic
            and not replaces
            and (group.size or 0) + self._added[key] >= MAX_GROUP_SIZE
        ):
            raise GroupSize(
                f"The group {group.name!r} has the maximum of {MAX_GROUP_SIZE:,} members. Close "
                "some of them, or use another group."
            )
        gone = [*displaced, *([] if occupant is None else [occupant])]
        if not self.wait and any(member.id not in self._locked for member in gone):
            return None
        if reconfigured is not before and spec.role is Role.READER:
            self._reconfigured.append((before, reconfigured))
        number = self._numbers[candidate.channel.uid]
        endpoint = _new_endpoint(candidate, group, place, number=number, now=self.now)
        by = candidate.principal.id
        if occupant is not None:
            at = f"{self.now:%Y-%m-%d %H:%M:%S} UTC"
            reason = f"another instance took that place at {at}"
            self._supersede(occupant, endpoint, reason, by=by)
        for member in displaced:
            self._supersede(member, endpoint, "the group changed its size or its mode", by=by)
        if key in self._groups and group.owner is None and group.name != ANONYMOUS:
            self._claimed.append((group, candidate))
            group = replace(group, owner=candidate.principal.subject)
        self._groups[key] = self._changed_groups[key] = group
        self._joined[key] += 1
        self._added[key] += not replaces
        self.endpoints.append(endpoint)
        self._events.append(event(endpoint, by=by, at=self.now, cause=None))
        return endpoint

    def _supersede(self, before: Endpoint, successor: Endpoint, reason: str, *, by: str) -> None:
        # With `wait`, all endpoints that still exist are locked.
        if before.id in self._locked and before.id not in self._superseded:
            before = self._locked[before.id]
            self._superseded[before.id] = before, superseded(before, by=reason, now=self.now)
            cause = f"superseded by {successor.id}"
            self._events.append(event(before, by=by, at=self.now, cause=cause))

    def _require_partitions(self, candidate: _Candidate) -> None:
        """Grow the channel if the group has more members than it has partitions."""
        spec, channel = candidate.spec, self._grown.get(candidate.channel.name, candidate.channel)
        size, reads = spec.size or 0, spec.role is Role.READER
        if not reads or spec.mode is not Mode.SHARED or size <= (channel.topic.partitions or 0):
            return
        require_growable(channel, spec.group, size)
        if size > channel.spec.partitions:
            if size > (channel.spec.max_partitions or 0):
                candidate.principal.require(Action.MANAGE, channel.name)
            channel = self._grown[channel.name] = changed(channel, Spec(partitions=size))
            self._growers[channel.name] = candidate
        self.needs_growth = True
        raise ChannelNotReady(
            f"The topic of the channel {channel.name!r} has {channel.topic.partitions} partitions "
            f"and is growing to {channel.spec.partitions}, one for each member of the group "
            f"{spec.group!r}. Send the request again in a moment."
        )

    def _write(self) -> None:
        tx, new = self.tx, self.endpoints
        for name, channel in self._grown.items():
            was = self._channels[name]
            if not channels_store.save(tx, channel, was=was, from_phases={was.phase}):
                raise ConcurrentChange(
                    f"The channel {name!r} was changed at the same time; send the request again."
                )
            grower = self._growers[name]
            audit_store.add(
                tx,
                channel,
                AuditedAction.UPDATE,
                by=grower.principal,
                at=self.now,
                target=grower.spec.group,
                reason=f"the group has {grower.spec.size} members",
                old=fields_of(was),
                new=fields_of(channel),
            )
        if not new:
            return
        for group, claimant in self._claimed:
            groups_store.claim(
                tx, group, claimant.principal, channel=claimant.channel.name, now=self.now
            )
        endpoints_store.save(tx, list(self._superseded.values()))
        endpoints_store.insert(tx, new)
        groups_store.save(tx, *self._changed_groups.values())
        for before, after in self._reconfigured:
            groups_store.move_finished(tx, before, after)
        rebalance(tx, departures((None, endpoint) for endpoint in new), now=self.now)
        add_events(tx, self._events)
        endpoints_store.revise(tx, {endpoint.channel_uid for endpoint in new})

    def _response(self, accepted: Sequence[tuple[_Candidate, Endpoint]]) -> None:
        uids = {candidate.channel.uid for candidate, _ in accepted}
        versions = {uid: schemas_store.versions(self.tx, uid) for uid in sorted(uids)}
        readers = [endpoint for _, endpoint in accepted if endpoint.place.role is Role.READER]
        finished = groups_store.finished_through(
            self.tx,
            [reading_place(reader) for reader in readers if reader.place.group != ANONYMOUS],
        )
        writers = endpoints_store.live_writers(self.tx, {reader.channel_uid for reader in readers})
        for candidate, endpoint in accepted:
            uid = endpoint.channel_uid
            reads = endpoint.place.role is Role.READER
            takes_over = endpoint.place.role is Role.WRITER and endpoint.place.group != ANONYMOUS
            self.outcomes[candidate.number] = Attached(
                endpoint=endpoint,
                created=candidate.existing is None,
                took_over=takes_over and endpoints_store.was_left_unfinished(self.tx, endpoint),
                partitions=candidate.partitions,
                positions=self._positions(candidate),
                channel=candidate.channel,
                versions=versions[uid],
                finished_through=finished.get(reading_place(endpoint)) if reads else None,
                live_writers=tuple(writers[uid]) if reads else (),
            )

    def _positions(self, candidate: _Candidate) -> tuple[Committed, ...]:
        owner = candidate.position_owner
        stored = self._stored[owner] if owner else {}
        return tuple(stored[partition] for partition in candidate.partitions if partition in stored)


def _candidate(
    number: int, request: AttachRequest, channel: Channel, existing: Endpoint | None
) -> _Candidate:
    """Return the candidate of a request; raises PatienceOutOfBounds for a new endpoint."""
    spec, total = request.spec, channel.topic.partitions or 0
    heartbeat = None
    if existing is not None:
        place, partitions = existing.place, endpoint_partitions(existing, total)
    else:
        place = Place(role=spec.role, group=spec.group, index=spec.index or 0)
        partitions = assigned_partitions(place, spec.mode, spec.size, total)
        heartbeat = own_heartbeat(
            channel.spec.heartbeat, interval_ms=spec.interval_ms, timeout_ms=spec.timeout_ms
        )
    return _Candidate(
        number=number,
        spec=spec,
        principal=request.principal,
        channel=channel,
        existing=existing,
        place=place,
        partitions=partitions,
        heartbeat=heartbeat,
    )


def _new_endpoint(
    candidate: _Candidate, group: Group, place: Place, *, number: int, now: datetime
) -> Endpoint:
    spec = candidate.spec
    return Endpoint(
        id=spec.id,
        channel_uid=group.channel_uid,
        session=spec.session,
        place=place,
        size=spec.size,
        mode=spec.mode,
        title=spec.title,
        heartbeat=candidate.heartbeat,
        static_id=spec.static_id,
        spark=spec.spark,
        number=number,
        epoch=group.epoch,
        generation=group.generation,
        attached_at=now,
        changed_at=now,
    )
