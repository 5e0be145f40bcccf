"""Task reports of endpoints whose work other processes do.

Tasks run in processes of their own, whose beats carry their reports; the endpoint they work for
lives by the beats of the session that attached it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Literal

from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.db.engine import WriteTransaction
from sluiceway_gateway.endpoints import history, task_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.model import (
    OPEN,
    Attempt,
    Endpoint,
    Health,
    Role,
    State,
    event,
    is_all_done,
    moved,
    noted,
    recounted,
    returned,
    standing,
)
from sluiceway_gateway.endpoints.service import Departure, depart
from sluiceway_gateway.endpoints.session_store import EndpointContext, endpoint_context
from sluiceway_gateway.endpoints.task_store import Kept
from sluiceway_gateway.errors import Fenced, Forbidden, MembersOpen
from sluiceway_gateway.groups.service import regroup


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """How an attempt stands, and of how many parts it is one, where that is known."""

    attempt: Attempt
    parts: int | None
    epoch: int | None = None
    """Of its endpoint; None if the client does not send it."""


@dataclass(frozen=True, kw_only=True)
class TaskReply:
    """What tasks are told of their endpoint; unless it is `ok`, it wants no more reports."""

    endpoint: str
    status: Literal["ok", "closed", "fenced", "gone", "refused"]
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """A beat's endpoints beyond those that it names."""

    reports: Sequence[TaskReport]
    known: Mapping[str, EndpointContext]
    """Of those that have tasks."""
    owners: Mapping[str, str | None]
    """Of the sessions that attached them."""
    kept: tuple[Kept, ...]
    """All that the session keeps alive, where it asked for them."""
    by: Principal
    counts: bool

    @property
    def touched(self) -> list[Endpoint]:
        """The endpoints that may change by it."""
        if not self.counts:
            return []
        ill = [each.endpoint for each in self.kept if each.endpoint.health is not Health.HEALTHY]
        return [each.endpoint for each in self.known.values()] + ill

    @property
    def intervals_ms(self) -> list[int]:
        """How often they want to be heard of."""
        intervals = [each.interval_ms for each in self.known.values()]
        return intervals + [each.interval_ms for each in self.kept]

    def take(self, tx: WriteTransaction, now: datetime) -> tuple[tuple[TaskReply, ...], bool]:
        """Write it down, the endpoints held; return the replies, and whether others see more."""
        held = endpoints_store.hold(tx, [each.id for each in self.touched])
        replies: list[TaskReply] = []
        changes: list[tuple[Endpoint, Endpoint]] = []
        closed = False
        by_endpoint = sorted(self.reports, key=lambda each: each.attempt.endpoint)
        for id_, group in groupby(by_endpoint, key=lambda each: each.attempt.endpoint):
            reports = list(group)
            reply = self._reply(id_, held.get(id_), {each.epoch for each in reports})
            replies.append(reply)
            if reply.status == "ok" and id_ in held:
                before, after = held[id_], _advanced(tx, held[id_], reports, now)
                done = Departure(epoch=None, state=State.CLOSED, counters=after.counters)
                if _is_done(after, reports) and _left(tx, before, done, by=self.by.id, now=now):
                    closed = True
                else:
                    changes.append((before, after))
        changes += [
            (each, returned(each))
            for each in held.values()
            if each.health is not Health.HEALTHY and each.id not in self.known
        ]
        return tuple(replies), _write(tx, changes, by=self.by.id, now=now) or closed

    def _reply(self, id_: str, endpoint: Endpoint | None, epochs: set[int | None]) -> TaskReply:
        known = self.known.get(id_)
        if known is None:
            reason = "There is no such endpoint: it was never attached, or its channel is gone."
            return TaskReply(endpoint=id_, status="gone", reason=reason)
        found = endpoint or known.endpoint
        try:
            session = known.endpoint.session
            self.by.require_own(self.owners.get(session), f"The session of {found.where}")
        except Forbidden as error:
            return TaskReply(endpoint=id_, status="refused", reason=str(error))
        action = _action(found)
        if not self.by.may(action, known.channel):
            reason = f"This token's scopes do not allow to {action} on {known.channel!r}."
            return TaskReply(endpoint=id_, status="refused", reason=reason)
        try:
            for epoch in epochs:
                found.require(epoch=epoch)
        except Fenced as error:
            return TaskReply(endpoint=id_, status="fenced", reason=str(error))
        if found.state not in OPEN:
            reason = f"The endpoint {id_} is {found.state}."
            return TaskReply(endpoint=id_, status="closed", reason=reason)
        return TaskReply(endpoint=id_, status="ok")


def known_of(tx: WriteTransaction, reports: Sequence[TaskReport]) -> Mapping[str, EndpointContext]:
    """Return those of the endpoints that tasks report for that there are."""
    ids = {each.attempt.endpoint for each in reports}
    return endpoint_context(tx, ids) if ids else {}


def kept_for(tx: WriteTransaction, session: str, *, by: Principal) -> tuple[Kept, ...]:
    """Return what a session keeps alive, as far as it is the principal's business."""
    found = task_store.kept_by(tx, session)
    return tuple(each for each in found if by.may(_action(each.endpoint), each.channel))


def _action(endpoint: Endpoint) -> Action:
    return Action.READ if endpoint.place.role is Role.READER else Action.WRITE


def _advanced(
    tx: WriteTransaction, endpoint: Endpoint, reports: Sequence[TaskReport], now: datetime
) -> Endpoint:
    """Write down the attempts, and return the endpoint with their sums."""
    sums: Mapping[str, float] = endpoint.counters
    known = task_store.attempts(tx, {(endpoint.id, each.attempt.task) for each in reports})
    told: list[Attempt] = []
    for report in reports:
        attempts = known[endpoint.id, report.attempt.task]
        before = standing(attempts)
        same = next((each for each in attempts if each.number == report.attempt.number), None)
        after = noted(same, report.attempt)
        attempts[:] = [each for each in attempts if each is not same] + [after]
        told.append(after)
        sums = recounted(sums, before, standing(attempts))
    if endpoint.state is State.OPENED:
        endpoint = moved(endpoint, State.STARTED, now=now)
    task_store.save(tx, told, now=now)
    return replace(endpoint, counters=sums)


def _is_done(endpoint: Endpoint, reports: Sequence[TaskReport]) -> bool:
    """Whether it is a reader whose parts are all done: nobody else could tell its end."""
    parts = max((each.parts for each in reports if each.parts is not None), default=None)
    reads = endpoint.place.role is Role.READER
    return reads and parts is not None and is_all_done(endpoint.counters, parts)


def _left(
    tx: WriteTransaction, endpoint: Endpoint, departure: Departure, *, by: str, now: datetime
) -> bool:
    """Have the endpoint leave as by its own detach; False while its group keeps it open."""
    try:
        depart(tx, endpoint, departure, by=by, now=now)
    except MembersOpen:
        # The first of a group closes last: by a later report, or by its own detach.
        return False
    return True


def _write(
    tx: WriteTransaction,
    changes: Sequence[tuple[Endpoint, Endpoint]],
    *,
    by: str,
    now: datetime,
) -> bool:
    endpoints_store.save(tx, changes)
    regroup(tx, changes, now=now)
    visible = [
        (before, after)
        for before, after in changes
        if (before.state, before.health) != (after.state, after.health)
    ]
    lines = [
        (
            after.channel_uid,
            event(
                after,
                by=by,
                at=now,
                cause=None if after.health is before.health else "its session beats again",
            ),
        )
        for before, after in visible
    ]
    history.add(tx, lines)
    endpoints_store.revise(tx, {after.channel_uid for _, after in visible})
    return bool(visible)
