"""Attaching: requests, and batches of them in one transaction: loaded, decided, stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.audited_fields import fields_of
from sluiceway_gateway.channels.service import require_channel, require_known, require_usable
from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.auth.model import Principal
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.db.engine import WriteTransaction
from sluiceway_gateway.core.errors import ConcurrentChange, SluicewayGatewayError
from sluiceway_gateway.endpoints import position_store, session_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.attach_request import (
    Attached,
    AttachPlan,
    AttachRequest,
    AttachState,
    Candidate,
    decide,
    displaced_members,
    draft,
    requested_places,
    require_same,
)
from sluiceway_gateway.endpoints.change_store import add_events, rebalance
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.groups.assignment import reading_place
from sluiceway_gateway.endpoints.groups.model import Group, departures
from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, PositionOwner, Role, RoleGroup
from sluiceway_gateway.schemas import store as schemas_store

Outcome = Attached | SluicewayGatewayError | None
"""None: another transaction holds a row that the request needs."""


@dataclass(frozen=True, kw_only=True)
class AttachBatch:
    """Requests that share a transaction, each with its own outcome.

    All checks of a request precede its first write, so an error of one does not affect the others.
    Rows are locked in the order sessions, channels, endpoints, each sorted by id. Without `wait`,
    locked channels and endpoints are skipped, and their requests have no outcome.
    """

    tx: WriteTransaction
    ownership: Ownership
    now: datetime
    wait: bool

    def run(
        self,
        requests: Sequence[AttachRequest],
        refusals: Mapping[Principal, SluicewayGatewayError],
    ) -> tuple[list[Outcome], AttachPlan]:
        """Return an outcome for each request, and the stored plan; `refusals` are by principal."""
        outcomes: dict[object, Outcome] = {}
        for request in requests:
            try:
                if request.principal in refusals:
                    raise refusals[request.principal]
                request.principal.require(request.spec.role.action, request.channel)
            except SluicewayGatewayError as error:
                outcomes[request.key] = error
        permitted = [request for request in requests if request.key not in outcomes]
        candidates, groups = self._candidates(permitted, outcomes)
        state = self._load(candidates, groups)
        plan = decide(candidates, state, now=self.now)
        self._save(plan, state)
        outcomes |= plan.errors | self._results(plan, state)
        return [outcomes.get(request.key) for request in requests], plan

    def _candidates(
        self, requests: Sequence[AttachRequest], outcomes: dict[object, Outcome]
    ) -> tuple[list[Candidate], Mapping[RoleGroup, Group]]:
        """Lock sessions and channels; return valid requests, and the groups of new endpoints."""
        sessions = {
            request.spec.session: (request.spec.client, request.principal.subject)
            for request in requests
        }
        session_store.begin(self.tx, sessions, now=self.now)
        owners = session_store.owners(self.tx, sessions)
        names = {request.channel for request in requests}
        channels = channels_store.hold_named(self.tx, names, wait=self.wait)
        uids = {channel.uid for channel in channels.values()}
        numbers = endpoints_store.next_numbers(self.tx, uids)
        stored = endpoints_store.find_all(self.tx, [request.spec.id for request in requests])
        keys = {
            (channels[request.channel].uid, request.spec.role, request.spec.group)
            for request in requests
            if request.channel in channels and request.spec.id not in stored
        }
        groups = groups_store.find_all(self.tx, keys)
        candidates: dict[str, Candidate] = {}
        for request in requests:
            spec, principal, name = request.spec, request.principal, request.channel
            if spec.id in candidates or (name not in channels and not self.wait):
                continue
            try:
                principal.require_own(owners[spec.session], f"The session {spec.session}")
                channel = require_channel(name, channels.get(name), request.channel_uid)
                require_known(channel, spec.features, writes=spec.role is Role.WRITER)
                requested = draft(request, channel, number=numbers[channel.uid], now=self.now)
                existing = stored.get(spec.id)
                if existing is not None:
                    require_same(existing, requested)
                    existing.require()
                require_usable(channel, writes=existing is None and spec.role is Role.WRITER)
                group = groups.get((channel.uid, spec.role, spec.group))
                if existing is None and group is not None:
                    self.ownership.require(principal, group.owned(name), "join")
                candidates[spec.id] = Candidate(
                    request=request,
                    channel=channel,
                    endpoint=existing or requested,
                    is_new=existing is None,
                )
            except SluicewayGatewayError as error:
                outcomes[request.key] = error
        return list(candidates.values()), groups

    def _load(
        self, candidates: Sequence[Candidate], groups: Mapping[RoleGroup, Group]
    ) -> AttachState:
        """Lock the endpoints that would be superseded, so that they can no longer commit."""
        new = [candidate for candidate in candidates if candidate.is_new]
        members: dict[RoleGroup, list[Endpoint]] = {}
        for candidate in new:
            key, config = candidate.group, candidate.request.spec.config
            if key in groups and not groups[key].matches(config) and key not in members:
                members[key] = endpoints_store.members(self.tx, *key, lost=True)
        predecessors = endpoints_store.latest_of_static_ids(
            self.tx, {candidate.static_key for candidate in new if candidate.request.spec.static_id}
        )
        occupants = endpoints_store.at_places(self.tx, requested_places(new, groups, predecessors))
        ids = {endpoint.id for endpoint in (*occupants.values(), *predecessors.values())}
        ids |= {member.id for group in members.values() for member in displaced_members(group)}
        locked = endpoints_store.hold(self.tx, ids, wait=self.wait)
        wanted: dict[PositionOwner, set[int]] = {}
        for candidate in candidates:
            if candidate.position_owner is not None:
                wanted.setdefault(candidate.position_owner, set()).update(candidate.partitions)
        return AttachState(
            groups=groups,
            members=members,
            predecessors=predecessors,
            occupants=occupants,
            locked=locked,
            # After a wait, an endpoint that is not locked no longer exists.
            busy=frozenset() if self.wait else frozenset(ids - locked.keys()),
            stored={
                owner: position_store.at(self.tx, owner, partitions)
                for owner, partitions in wanted.items()
            },
        )

    def _save(self, plan: AttachPlan, state: AttachState) -> None:
        """Store growing channels, new endpoints and their groups."""
        for grower, channel in plan.growth.values():
            was, spec = grower.channel, grower.request.spec
            if channel is was:
                continue  # It grows already.
            if not channels_store.save(self.tx, channel, was=was, from_phases={was.phase}):
                raise ConcurrentChange(
                    f"The channel {was.name!r} was changed at the same time; send the request "
                    "again."
                )
            audit_store.add(
                self.tx,
                channel,
                AuditedAction.UPDATE,
                by=grower.request.principal,
                at=self.now,
                target=spec.group,
                reason=f"the group has {spec.size} members",
                old=fields_of(was),
                new=fields_of(channel),
            )
        if not plan.groups:
            return
        joined = [candidate for candidate in plan.attached if candidate.is_new]
        for candidate in joined:
            group = state.groups.get(candidate.group)
            if group is not None:
                principal, name = candidate.request.principal, candidate.channel.name
                groups_store.claim(self.tx, group, principal, channel=name, now=self.now)
        new = [candidate.endpoint for candidate in joined]
        endpoints_store.save(self.tx, list(plan.superseded.values()))
        endpoints_store.insert(self.tx, new)
        groups_store.save(self.tx, *plan.groups.values())
        for key, group in plan.groups.items():
            stored = state.groups.get(key)
            if stored and group.role is Role.READER and group.generation != stored.generation:
                groups_store.move_finished(self.tx, stored, group)
        rebalance(self.tx, departures((None, endpoint) for endpoint in new), now=self.now)
        add_events(self.tx, plan.events)
        endpoints_store.revise(self.tx, {endpoint.channel_uid for endpoint in new})

    def _results(self, plan: AttachPlan, state: AttachState) -> dict[object, Outcome]:
        """Return the result for each attached endpoint, by the key of its request."""
        endpoints = [candidate.endpoint for candidate in plan.attached]
        versions = {
            uid: schemas_store.versions(self.tx, uid)
            for uid in sorted({endpoint.channel_uid for endpoint in endpoints})
        }
        readers = [endpoint for endpoint in endpoints if endpoint.place.role is Role.READER]
        finished = groups_store.finished_through(
            self.tx,
            [reading_place(reader) for reader in readers if reader.place.group != ANONYMOUS],
        )
        writers = endpoints_store.live_writers(self.tx, {reader.channel_uid for reader in readers})
        by_request: dict[object, Outcome] = {}
        for candidate in plan.attached:
            endpoint, place = candidate.endpoint, candidate.endpoint.place
            reads = place.role is Role.READER
            takes_over = not reads and place.group != ANONYMOUS
            by_request[candidate.request.key] = Attached(
                endpoint=endpoint,
                created=candidate.is_new,
                took_over=takes_over and endpoints_store.was_left_unfinished(self.tx, endpoint),
                partitions=candidate.partitions,
                positions=state.positions(candidate),
                channel=candidate.channel,
                versions=versions[endpoint.channel_uid],
                finished_through=finished.get(reading_place(endpoint)) if reads else None,
                live_writers=tuple(writers[endpoint.channel_uid]) if reads else (),
            )
        return by_request
