"""Heartbeats: the state of all endpoints of a session in one request."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.auth.service import Asker, Tokens, authenticate
from sluiceway_gateway.channels.model import FINISHING, Heartbeat
from sluiceway_gateway.channels.store import hold_channels
from sluiceway_gateway.clock import Clock, system_clock
from sluiceway_gateway.db.engine import Database, WriteTransaction
from sluiceway_gateway.endpoints import history, session_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.model import Endpoint, Health, Role, State, event, moved, returned
from sluiceway_gateway.endpoints.session_store import EndpointContext, Opening, endpoint_context
from sluiceway_gateway.endpoints.store import Reached
from sluiceway_gateway.endpoints.task_store import Kept
from sluiceway_gateway.endpoints.tasks import TaskReply, TaskReport, Work, kept_for, known_of
from sluiceway_gateway.errors import Fenced, IllegalTransition
from sluiceway_gateway.groups.service import regroup

_SEEN_BY_OTHERS = ("state", "health", "payload", "lost_at")
Side = tuple[str, Role]
"""A channel's uid, and the role of those on this side of it."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """How an endpoint says that it stands."""

    id: str
    epoch: int
    state: State
    counters: Mapping[str, float]
    payload: Mapping[str, Any] | None
    listens: bool
    """Whether it wants to know of its counterparts."""
    seen: int | None
    """The revision at which it has seen them."""
    reached: Reached | None = None
    """How far it has come, committed or not; None: as before."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What an endpoint is told."""

    id: str
    status: Literal["ok", "fenced", "gone", "refused"]
    reason: str | None = None
    health: Health | None = None
    asked: Literal["finish"] | None = None
    revision: int | None = None
    generation: int | None = None
    """Of its group, as it was before this beat."""
    counterparts: Side | None = None
    """Where they are in the answer's `sides`; None where nothing is new."""


@dataclass(frozen=True, kw_only=True)
class BeatAnswer:
    """What a session is told; `next_ms` is how long to wait before the next beat."""

    next_ms: int
    replies: tuple[Reply, ...]
    sides: Mapping[Side, Sequence[Endpoint]]
    beat: int = 0
    """The newest one of the session that counted."""
    tasks: tuple[TaskReply, ...] = ()
    """One for each endpoint that tasks reported for."""
    kept: tuple[Kept, ...] = ()
    """All endpoints that the session keeps alive, if it asked."""


@dataclass(frozen=True, kw_only=True)
class _Heard:
    """A report, held against what is known."""

    report: Report
    known: EndpointContext | None
    status: Literal["ok", "fenced", "gone", "refused"]
    reason: str | None = None
    after: Endpoint | None = None
    """As it is from now on; None where the report does not count."""
    visible: bool = False
    """Whether others see the difference."""


class Beats:
    """Heartbeats to one database."""

    def __init__(
        self,
        database: Database,
        tokens: Tokens,
        *,
        notify: Callable[[], None],
        clock: Clock = system_clock,
    ) -> None:
        """`notify` is called after each commit that changed more than counters."""
        self._database = database
        self._tokens = tokens
        self._notify = notify
        self._clock = clock

    def beat(
        self,
        session: str,
        number: int,
        reports: Sequence[Report],
        *,
        by: Asker,
        tasks: Sequence[TaskReport] = (),
        keeps: bool = False,
        client: str = "",
    ) -> BeatAnswer:
        """Take a session's reports, if the beat is its newest, and answer each in any case.

        Nothing is raised against single endpoints: the reply to each says what is the matter.
        With `keeps` it beats for all endpoints of its own, and hears of them. Raises
        Unauthenticated for credentials, which are looked at in the transaction, Forbidden for a
        session of another owner, and InvalidRequest for a number that is far ahead.
        """
        ids = [each.id for each in reports]
        changed = seen = False
        with self._database.write() as tx:
            principal = authenticate(self._tokens, tx, by)
            now = self._clock()
            tasked = known_of(tx, tasks)
            if tasked:
                # Of a process that attached nothing itself.
                opening = Opening(session=session, client=client, owner=principal.subject)
                session_store.begin(tx, [opening], now=now)
            counts, newest = session_store.beat(tx, session, number, principal=principal)
            work = Work(
                reports=tasks,
                known=tasked,
                owners=session_store.owners(
                    tx, {each.endpoint.session for each in tasked.values()}
                ),
                kept=kept_for(tx, session, by=principal) if keeps else (),
                by=principal,
                counts=counts,
            )

            def hear() -> list[_Heard]:
                known = endpoint_context(tx, ids)
                return [
                    _heard(each, known.get(each.id), session, principal, counts, now)
                    for each in reports
                ]

            heard = hear()
            touched = work.touched
            if touched or any(each.visible for each in heard):
                # Now in the order of locks, and with what is true until the end.
                known = [each.known.endpoint for each in heard if each.known] + touched
                hold_channels(tx, {each.channel_uid for each in known})
                endpoints_store.hold(tx, [each.id for each in known])
                heard = hear()
                changed = _write(tx, heard, by=principal.id, now=now)
            endpoints_store.count_up(
                tx,
                [
                    (each.report.id, each.report.counters, each.report.reached)
                    for each in heard
                    if each.after and each.known and not each.after.is_finished
                    if each.report.reached is not None
                    or (not each.visible and each.report.counters != each.known.endpoint.counters)
                ],
            )
            told, seen = work.take(tx, now)
            answer = replace(_answer(tx, heard, work.intervals_ms), beat=newest)
            if tasks or keeps:
                answer = replace(answer, tasks=told, kept=work.kept)
        if changed or seen:
            self._notify()
        return answer


def _heard(
    report: Report,
    known: EndpointContext | None,
    session: str,
    principal: Principal,
    counts: bool,
    now: datetime,
) -> _Heard:
    if known is None or known.endpoint.session != session:
        reason = "This session has no such endpoint: it was never attached, or its channel is gone."
        return _Heard(report=report, known=None, status="gone", reason=reason)
    endpoint = known.endpoint
    try:
        endpoint.require(epoch=report.epoch)
    except Fenced as error:
        return _Heard(report=report, known=known, status="fenced", reason=str(error))
    action = Action.READ if endpoint.place.role is Role.READER else Action.WRITE
    if not principal.may(action, known.channel):
        reason = f"This token's scopes do not allow to {action} on the channel {known.channel!r}."
        return _Heard(report=report, known=known, status="refused", reason=reason)
    if not counts:
        return _Heard(report=report, known=known, status="ok")
    refusal = None
    after = endpoint
    if report.state is State.CLOSED and endpoint.state is not State.CLOSED:
        refusal = f"The endpoint {endpoint.id} is {endpoint.state}; closing it is to detach it."
    else:
        try:
            after = moved(endpoint, report.state, now=now)
        except IllegalTransition as error:
            refusal = str(error)
    if endpoint.state is not State.CLOSED and not _is_as_before(endpoint, after, report):
        after = replace(returned(after), counters=report.counters, payload=report.payload)
    return _Heard(
        report=report,
        known=known,
        status="ok" if refusal is None else "refused",
        reason=refusal,
        after=after,
        visible=after is not endpoint
        and any(getattr(after, each) != getattr(endpoint, each) for each in _SEEN_BY_OTHERS),
    )


def _is_as_before(endpoint: Endpoint, after: Endpoint, report: Report) -> bool:
    """Whether a report tells nothing that others see, which is so of nearly all."""
    return (
        after is endpoint
        and endpoint.health is Health.HEALTHY
        and endpoint.lost_at is None
        and endpoint.payload == report.payload
    )


def _write(tx: WriteTransaction, heard: Sequence[_Heard], *, by: str, now: datetime) -> bool:
    """Write down all that others see; False if that is nothing."""
    changes = [
        (each.known.endpoint, each.after)
        for each in heard
        if each.visible and each.known and each.after
    ]
    endpoints_store.save(tx, changes)
    regroup(tx, changes, now=now)
    history.add(
        tx,
        [
            (
                after.channel_uid,
                event(
                    after,
                    by=by,
                    at=now,
                    cause=None if after.health is before.health else "its session beats again",
                ),
            )
            for before, after in changes
            if (before.state, before.health) != (after.state, after.health)
        ],
    )
    endpoints_store.revise(tx, {after.channel_uid for _, after in changes})
    return bool(changes)


def _answer(tx: WriteTransaction, heard: Sequence[_Heard], others_ms: Sequence[int]) -> BeatAnswer:
    revised = {each.after.channel_uid for each in heard if each.visible and each.after}
    replies: list[Reply] = []
    for each in heard:
        if each.known is None:
            replies.append(Reply(id=each.report.id, status="gone", reason=each.reason))
            continue
        known = each.known
        uid, role = known.endpoint.channel_uid, known.endpoint.place.role
        revision = known.revision + (uid in revised)
        told = each.report.listens and each.status in ("ok", "refused")
        replies.append(
            Reply(
                id=each.report.id,
                status=each.status,
                reason=each.reason,
                health=(each.after or known.endpoint).health,
                asked="finish" if known.phase in FINISHING else None,
                revision=revision,
                generation=known.generation,
                counterparts=(uid, role.counterpart)
                if told and revision != each.report.seen
                else None,
            )
        )
    intervals = [each.known.interval_ms for each in heard if each.known is not None]
    intervals += others_ms
    return BeatAnswer(
        next_ms=min(intervals, default=Heartbeat().interval_ms),
        replies=tuple(replies),
        sides=endpoints_store.on_sides(
            tx, {each.counterparts for each in replies if each.counterparts}
        ),
    )
