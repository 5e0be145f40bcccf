"""Heartbeats: the state of all endpoints of a session in one request.

Tasks run in other processes, whose heartbeats carry their reports. Their endpoint stays alive by
the heartbeats of the session that attached it.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from sluiceway_gateway.api.models import Count, Number, RequestModel, Uid
from sluiceway_gateway.channels.model import FINISHING, Heartbeat
from sluiceway_gateway.channels.store import hold_channels
from sluiceway_gateway.core.auth.model import Principal
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db.engine import Database, WriteTransaction
from sluiceway_gateway.core.errors import Fenced, Forbidden, IllegalTransition, MembersOpen
from sluiceway_gateway.endpoints import session_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.change_store import is_visible, save_changes
from sluiceway_gateway.endpoints.model import (
    OPEN,
    Attempt,
    Counters,
    Endpoint,
    EndpointChange,
    Health,
    Positions,
    Role,
    State,
    TaskState,
    are_done,
    moved,
    reached_of,
    recorded,
    recounted,
    representative,
    returned,
)
from sluiceway_gateway.endpoints.service import (
    DetachSpec,
    Settlements,
    detach_endpoint,
    with_settlements,
)
from sluiceway_gateway.endpoints.session_store import EndpointContext

_RECOVERED = "its session sends heartbeats again"
_UNKNOWN = (
    "it was never attached, its channel was deleted, or the database was restored to an earlier "
    "state."
)
Side = tuple[str, Role]
"""A channel's uid and a role."""


MAX_PAYLOAD_BYTES = 4096


def _check_payload(payload: dict[str, Any]) -> dict[str, Any]:
    size = len(json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode())
    if size > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"a payload has at most {MAX_PAYLOAD_BYTES} bytes as JSON, this one has {size}"
        )
    return payload


class EndpointReport(RequestModel):
    """The state of an endpoint."""

    id: Uid
    epoch: Number
    # Strict validation would refuse the values of an enum; the reference lists them in place.
    state: Annotated[
        State, Field(strict=False), WithJsonSchema({"type": "string", "enum": [*State]})
    ]
    counters: Counters = Field(default_factory=dict)
    payload: Annotated[dict[str, Any], AfterValidator(_check_payload)] | None = Field(
        default=None, description="At most 4096 bytes of JSON, for the counterparts"
    )
    positions: Positions | None = Field(
        default=None,
        description="The next offset by partition, committed or not, and how many records of that "
        "message are done; null: unchanged",
    )
    seen: Count | None = Field(
        default=None,
        description="The revision of the counterparts that the endpoint has; null for none. "
        "Without it, the reply lists no counterparts",
    )


class TaskReport(RequestModel):
    """The state of an attempt at a task of an endpoint."""

    endpoint: Uid
    epoch: Number | None = Field(default=None, description="Of the endpoint; another one is fenced")
    task: Annotated[str, Field(min_length=1, max_length=64)]
    attempt: Count = Field(description="Later attempts have higher numbers")
    state: Annotated[
        TaskState, Field(strict=False), WithJsonSchema({"type": "string", "enum": [*TaskState]})
    ]
    counters: Counters = Field(default_factory=dict)
    positions: Positions | None = None
    parts: Number | None = Field(
        default=None,
        description="Number of tasks of the endpoint; a reader is closed when so many are done",
    )
    cause: str | None = Field(
        default=None,
        max_length=1000,
        description="Of a failed attempt, without values of records; a part of the endpoint's "
        "cause if that fails",
    )

    def to_attempt(self) -> Attempt:
        """Return the attempt as it is stored."""
        return Attempt(
            endpoint=self.endpoint,
            task=self.task,
            number=self.attempt,
            state=self.state,
            counters=self.counters,
            reached=reached_of(self.positions),
        )


@dataclass(frozen=True, kw_only=True)
class EndpointReply:
    """The response to an endpoint's report."""

    id: str
    status: Literal["ok", "fenced", "gone", "refused"]
    reason: str | None = None
    health: Health | None = None
    asked: Literal["finish"] | None = None
    endpoints_revision: int | None = None
    """The revision of the channel's endpoints."""
    generation: int | None = None
    """The generation of its group before this heartbeat."""
    partitions: int | None = None
    """The number of partitions of the channel's topic."""
    counterparts: Side | None = None
    """Their key in the result's `sides`; None if nothing changed."""


@dataclass(frozen=True, kw_only=True)
class TaskReply:
    """The response to the tasks of an endpoint; unless `ok`, further reports are refused."""

    endpoint: str
    status: Literal["ok", "closed", "fenced", "gone", "refused"]
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class HeartbeatResult:
    """The response to a heartbeat."""

    next_ms: int
    """The time to wait before the next heartbeat."""
    beat: int
    """The number of the session's newest heartbeat that counted."""
    replies: tuple[EndpointReply, ...]
    sides: Mapping[Side, Sequence[Endpoint]]
    tasks: tuple[TaskReply, ...]
    """One for each endpoint with task reports."""
    kept: tuple[EndpointContext, ...]
    """The endpoints that the session keeps alive, if requested."""


@dataclass(eq=False, repr=False)
class HeartbeatService:
    """Processes the heartbeats of clients' sessions."""

    database: Database
    tokens: Tokens
    settlements: Settlements
    clock: Clock = system_clock

    def beat(
        self,
        session: str,
        number: int,
        reports: Sequence[EndpointReport],
        *,
        principal: Principal,
        tasks: Sequence[TaskReport] = (),
        keeps: bool = False,
        client: str = "",
    ) -> HeartbeatResult:
        """Save the reports if the heartbeat is the session's newest, and reply to each.

        Errors of single endpoints are in their replies. With `keeps`, the heartbeat counts for
        all endpoints of the session, and the result lists them. Raises Unauthenticated, Forbidden
        for a session of another owner, and InvalidRequest for a number that is far ahead.
        """
        by_endpoint: dict[str, list[TaskReport]] = defaultdict(list)
        for report in tasks:
            by_endpoint[report.endpoint].append(report)
        with self.database.write() as tx:
            self.tokens.require_valid(tx, principal)
            heartbeat = _Heartbeat(
                tx=tx,
                session=session,
                reports=reports,
                tasks=by_endpoint,
                principal=principal,
                now=self.clock(),
                settlements=self.settlements,
            )
            return heartbeat.run(number, keeps=keeps, client=client)


@dataclass(frozen=True, kw_only=True)
class _Evaluated:
    """A report, and its effect on the endpoint's row."""

    report: EndpointReport
    context: EndpointContext | None
    status: Literal["ok", "fenced", "gone", "refused"]
    reason: str | None = None
    after: Endpoint | None = None
    """The endpoint after the report; None if the report does not count."""

    @property
    def change(self) -> EndpointChange | None:
        """The change, if it is visible to others."""
        if self.context is None or self.after is None or self.after is self.context.endpoint:
            return None
        change = (self.context.endpoint, self.after)
        return change if is_visible(*change) else None


@dataclass(kw_only=True)
class _Heartbeat:
    """One heartbeat in one transaction."""

    tx: WriteTransaction
    session: str
    reports: Sequence[EndpointReport]
    tasks: Mapping[str, Sequence[TaskReport]]
    """By endpoint."""
    principal: Principal
    now: datetime
    settlements: Settlements
    _counts: bool = False
    """Whether it is the newest of its session."""
    _with_tasks: Mapping[str, EndpointContext] = field(default_factory=dict)
    """The endpoints that tasks report for."""
    _owners: Mapping[str, str | None] = field(default_factory=dict)
    _kept: tuple[EndpointContext, ...] = ()

    def run(self, number: int, *, keeps: bool, client: str) -> HeartbeatResult:
        """Lock the session and, for visible changes, channels and endpoints; save the reports."""
        tx, principal = self.tx, self.principal
        self._with_tasks = session_store.endpoint_context(tx, list(self.tasks))
        if self._with_tasks:
            # A process that only runs tasks has no endpoints.
            session_store.begin(tx, {self.session: (client, principal.subject)}, now=self.now)
        self._counts, newest = session_store.beat(
            tx, self.session, number, principal=principal, now=self.now
        )
        sessions = {context.endpoint.session for context in self._with_tasks.values()}
        self._owners = session_store.owners(tx, sessions)
        if keeps:
            self._kept = tuple(
                context
                for context in session_store.kept_endpoints(tx, self.session)
                if principal.may(context.endpoint.place.role.action, context.channel)
            )
        others = self._other_endpoints()
        evaluated = self._evaluate()
        if others or any(evaluation.change for evaluation in evaluated):
            # Evaluate again with locked rows.
            named = [evaluation.context.endpoint for evaluation in evaluated if evaluation.context]
            hold_channels(tx, {endpoint.channel_uid for endpoint in (*named, *others)})
            endpoints_store.hold(tx, [endpoint.id for endpoint in (*named, *others)])
            evaluated = self._evaluate()
            self._save([evaluation.change for evaluation in evaluated if evaluation.change])
        endpoints_store.save_counters(
            tx,
            [
                (
                    evaluation.after,
                    evaluation.report.counters,
                    reached_of(evaluation.report.positions),
                )
                for evaluation in evaluated
                if evaluation.after and evaluation.context and not evaluation.after.is_finished
                if evaluation.report.positions is not None
                or (
                    not evaluation.change
                    and evaluation.report.counters != evaluation.context.endpoint.counters
                )
            ],
        )
        tasks = self._save_tasks(others)
        replies = _replies(evaluated)
        contexts = [evaluation.context for evaluation in evaluated if evaluation.context]
        contexts += [*self._with_tasks.values(), *self._kept]
        sides = {reply.counterparts for reply in replies if reply.counterparts}
        return HeartbeatResult(
            next_ms=min(
                (context.interval_ms for context in contexts), default=Heartbeat().interval_ms
            ),
            beat=newest,
            replies=replies,
            sides={
                side: with_settlements(tx, counterparts, self.settlements)
                for side, counterparts in endpoints_store.on_sides(tx, sides).items()
            },
            tasks=tasks,
            kept=self._kept,
        )

    def _other_endpoints(self) -> list[Endpoint]:
        """Return endpoints without a report that this heartbeat may change."""
        if not self._counts:
            return []
        endpoints = [context.endpoint for context in self._kept]
        unhealthy = [endpoint for endpoint in endpoints if endpoint.health is not Health.HEALTHY]
        return [context.endpoint for context in self._with_tasks.values()] + unhealthy

    def _save(self, changes: Sequence[EndpointChange]) -> None:
        save_changes(self.tx, changes, by=self.principal.id, now=self.now, health_cause=_RECOVERED)

    def _evaluate(self) -> list[_Evaluated]:
        contexts = session_store.endpoint_context(self.tx, [report.id for report in self.reports])
        return [self._evaluate_report(report, contexts.get(report.id)) for report in self.reports]

    def _evaluate_report(
        self, report: EndpointReport, context: EndpointContext | None
    ) -> _Evaluated:
        if context is None or context.endpoint.session != self.session:
            reason = f"This session has no such endpoint: {_UNKNOWN}"
            return _Evaluated(report=report, context=None, status="gone", reason=reason)
        endpoint = context.endpoint
        try:
            endpoint.require(epoch=report.epoch)
            self.principal.require(endpoint.place.role.action, context.channel)
        except Fenced as error:
            return _Evaluated(report=report, context=context, status="fenced", reason=str(error))
        except Forbidden as error:
            return _Evaluated(report=report, context=context, status="refused", reason=str(error))
        if not self._counts:
            return _Evaluated(report=report, context=context, status="ok")
        after, refusal = endpoint, None
        if report.state is State.CLOSED and endpoint.state is not State.CLOSED:
            refusal = f"The endpoint {endpoint.id} is {endpoint.state}; detach it to close it."
        else:
            try:
                after = moved(endpoint, report.state, now=self.now)
            except IllegalTransition as error:
                refusal = str(error)
        if endpoint.state is not State.CLOSED and not _is_unchanged(endpoint, after, report):
            after = replace(returned(after), counters=report.counters, payload=report.payload)
        return _Evaluated(
            report=report,
            context=context,
            status="refused" if refusal else "ok",
            reason=refusal,
            after=after,
        )

    def _save_tasks(self, others: Sequence[Endpoint]) -> tuple[TaskReply, ...]:
        """Save the reports of tasks, and the regained health of the session's endpoints."""
        locked = endpoints_store.hold(self.tx, [endpoint.id for endpoint in others])
        kept = {context.endpoint.id for context in self._kept}
        replies: list[TaskReply] = []
        changes: list[EndpointChange] = []
        for id_, reports in self.tasks.items():
            before = locked.get(id_)
            reply = self._reply_to_tasks(id_, before, {report.epoch for report in reports})
            replies.append(reply)
            if reply.status == "ok" and before is not None:
                after = self._with_attempts(before, reports)
                if not (_is_done(after, reports) and self._close(before, after.counters)):
                    changes.append((before, returned(after) if id_ in kept else after))
        handled = {reply.endpoint for reply in replies if reply.status == "ok"}
        changes += [
            (endpoint, returned(endpoint))
            for endpoint in locked.values()
            # A refused report of a task changes nothing, but this session still keeps its endpoint.
            if endpoint.id in kept - handled and endpoint.health is not Health.HEALTHY
            # It may have been superseded since it was read.
            if not endpoint.superseded or endpoint.may_return
        ]
        self._save(changes)
        return tuple(replies)

    def _reply_to_tasks(
        self, id_: str, endpoint: Endpoint | None, epochs: set[int | None]
    ) -> TaskReply:
        context = self._with_tasks.get(id_)
        if context is None:
            reason = f"There is no such endpoint: {_UNKNOWN}"
            return TaskReply(endpoint=id_, status="gone", reason=reason)
        endpoint = endpoint or context.endpoint
        try:
            owner = self._owners.get(context.endpoint.session)
            self.principal.require_own(owner, f"The session of {endpoint.where}")
            self.principal.require(endpoint.place.role.action, context.channel)
            for epoch in epochs:
                endpoint.require(epoch=epoch)
        except Forbidden as error:
            return TaskReply(endpoint=id_, status="refused", reason=str(error))
        except Fenced as error:
            return TaskReply(endpoint=id_, status="fenced", reason=str(error))
        if endpoint.state not in OPEN:
            reason = f"The endpoint {id_} is {endpoint.state}."
            return TaskReply(endpoint=id_, status="closed", reason=reason)
        return TaskReply(endpoint=id_, status="ok")

    def _with_attempts(self, endpoint: Endpoint, reports: Sequence[TaskReport]) -> Endpoint:
        """Save attempts, and return the endpoint with the sums of its tasks."""
        sums: Mapping[str, float] = endpoint.counters
        tasks = {(endpoint.id, report.task) for report in reports}
        stored = session_store.attempts(self.tx, tasks)
        saved: list[Attempt] = []
        for report in reports:
            attempts = stored[endpoint.id, report.task]
            before = representative(attempts)
            same = next((attempt for attempt in attempts if attempt.number == report.attempt), None)
            after = recorded(same, report.to_attempt())
            attempts[:] = [attempt for attempt in attempts if attempt is not same] + [after]
            saved.append(after)
            sums = recounted(sums, before, representative(attempts))
        if endpoint.state is State.OPENED:
            endpoint = moved(endpoint, State.STARTED, now=self.now)
        for report in reports:
            if report.state is TaskState.FAILED and report.cause is not None:
                cause = f"task {report.task}: {report.cause}"
                endpoint = replace(endpoint, cause=cause)
        session_store.save_attempts(self.tx, saved, now=self.now)
        return replace(endpoint, counters=sums)

    def _close(self, endpoint: Endpoint, counters: Mapping[str, float]) -> bool:
        """Close an endpoint whose tasks are all done; False while its group keeps it open."""
        spec = DetachSpec(epoch=None, state=State.CLOSED, counters=counters)
        try:
            detach_endpoint(self.tx, endpoint, spec, by=self.principal.id, now=self.now)
        except MembersOpen:
            # Member 0 closes last: by a later report, or by a detach.
            return False
        return True


def _replies(evaluated: Sequence[_Evaluated]) -> tuple[EndpointReply, ...]:
    revised = {evaluation.change[1].channel_uid for evaluation in evaluated if evaluation.change}
    replies = []
    for evaluation in evaluated:
        context, report = evaluation.context, evaluation.report
        if context is None:
            replies.append(EndpointReply(id=report.id, status="gone", reason=evaluation.reason))
            continue
        uid, role = context.endpoint.channel_uid, context.endpoint.place.role
        revision = context.revision + (uid in revised)
        lists = (
            "seen" in report.model_fields_set
            and evaluation.status in ("ok", "refused")
            and revision != report.seen
        )
        replies.append(
            EndpointReply(
                id=report.id,
                status=evaluation.status,
                reason=evaluation.reason,
                health=(evaluation.after or context.endpoint).health,
                asked="finish" if context.phase in FINISHING else None,
                endpoints_revision=revision,
                generation=context.generation,
                partitions=context.partitions,
                counterparts=(uid, role.counterpart) if lists else None,
            )
        )
    return tuple(replies)


def _is_unchanged(endpoint: Endpoint, after: Endpoint, report: EndpointReport) -> bool:
    """Whether a report has no visible change, like almost all reports."""
    return (
        after is endpoint
        and endpoint.health is Health.HEALTHY
        and endpoint.lost_at is None
        and endpoint.payload == report.payload
    )


def _is_done(endpoint: Endpoint, reports: Sequence[TaskReport]) -> bool:
    """Whether it is a reader whose tasks are all done. Only tasks can report its end."""
    parts = max((report.parts or 0 for report in reports), default=0)
    return endpoint.place.role is Role.READER and parts > 0 and are_done(endpoint.counters, parts)
