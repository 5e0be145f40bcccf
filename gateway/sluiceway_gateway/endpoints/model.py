"""Endpoint: states, transitions, ends, tasks. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from sluiceway_gateway.api.models import INT64_MAX, Count, PartitionText
from sluiceway_gateway.channels.model import MIN_HEARTBEAT_MS, Heartbeat
from sluiceway_gateway.core.auth.model import Action
from sluiceway_gateway.core.errors import Fenced, IllegalTransition, PatienceOutOfBounds
from sluiceway_gateway.core.names import MAX_PARTITIONS

# Bounded so that no sum of them is infinite, which JSON does not have.
Counter = Count | Annotated[float, Field(ge=0, le=INT64_MAX)]
Counters = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Counter],
    Field(max_length=32, description="Counters by name"),
]
Positions = Annotated[
    dict[PartitionText, Annotated[list[Count], Field(min_length=2, max_length=2)]],
    Field(
        max_length=MAX_PARTITIONS,
        description="By partition, the next offset to read and how many of its records are done",
    ),
]
Reached = Mapping[int, tuple[int, int]]
"""By partition, the next offset to read and how many records of that message are done."""

#: The group, in the database, of endpoints without a group. No request can name it.
ANONYMOUS = ""


class Role(StrEnum):
    """Direction of an endpoint."""

    READER = "reader"
    WRITER = "writer"

    @property
    def counterpart(self) -> "Role":
        """The role of its counterparts."""
        return Role.WRITER if self is Role.READER else Role.READER

    @property
    def action(self) -> Action:
        """The action that a principal's scopes must allow."""
        return Action.READ if self is Role.READER else Action.WRITE


class Mode(StrEnum):
    """Distribution of records among a group of readers."""

    SHARED = "shared"
    """Each record goes to one member."""
    BROADCAST = "broadcast"
    """Each record goes to all members."""


class State(StrEnum):
    """State of an endpoint, by its own report."""

    OPENED = "opened"
    """It has its place and has not read or written yet."""
    STARTED = "started"
    """It reads or writes records."""
    STOPPED = "stopped"
    """It stopped, and keeps its place until the other members have closed."""
    CLOSED = "closed"
    """It finished; final."""
    ERROR = "error"
    """It failed, and may open again."""


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.OPENED: frozenset({State.STARTED, State.STOPPED, State.CLOSED, State.ERROR}),
    State.STARTED: frozenset({State.STOPPED, State.CLOSED, State.ERROR}),
    State.STOPPED: frozenset({State.CLOSED, State.ERROR}),
    State.ERROR: frozenset({State.OPENED, State.STARTED}),
    State.CLOSED: frozenset(),
}
"""The transition table. A heartbeat reports only the latest state, so states may be skipped."""

OPEN = frozenset({State.OPENED, State.STARTED, State.STOPPED})
"""States in which an endpoint reads or writes."""


def may_become(state: State, following: State) -> bool:
    """Whether `following` may be the next state after `state`, or is the same."""
    return state is following or following in TRANSITIONS[state]


class Health(StrEnum):
    """Health of an endpoint, set by the gateway from the heartbeats of its session."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """No heartbeat for three intervals."""
    LOST = "lost"
    """No heartbeat for its heartbeat timeout; the next one makes it healthy again."""


def outcome(state: str, health: str) -> str:
    """Return `live`, `lost`, `failed` or `finished`: how statuses and graphs count endpoints."""
    if state == State.CLOSED:
        return "finished"
    if state == State.ERROR:
        return "failed"
    return "lost" if health == Health.LOST else "live"


def has_failed(state: str, health: str, group: str) -> bool:
    """Return whether an endpoint has ended without closing: it failed, or is lost without a group.

    A lost member of a group waits for the next instance in its place.
    """
    return state == State.ERROR or (
        group == ANONYMOUS and state != State.CLOSED and health == Health.LOST
    )


class TaskState(StrEnum):
    """State of an attempt at a task of an endpoint."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


RoleGroup = tuple[str, Role, str]
"""A channel's uid, a role and the name of a group."""
GroupKey = tuple[str, str]
"""A channel's uid and the name of a group of readers."""
PositionOwner = tuple[str, str, int]
"""A channel's uid, a group's name, and a member's index; -1 in shared groups."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in a channel, which one endpoint at a time has."""

    role: Role
    group: str
    """ANONYMOUS, or the group's name."""
    index: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """Every `size`-th partition from `index` on: the assignment in a dynamic group."""

    index: int
    size: int

    def __contains__(self, partition: int) -> bool:
        return partition % self.size == self.index

    def of(self, partitions: int) -> range:
        """Return its partitions, on a channel with `partitions` partitions."""
        return range(self.index, partitions, self.size)


@dataclass(frozen=True, kw_only=True)
class SparkJob:
    """A batch job or a query of a Spark application. None is unknown, or does not apply."""

    application: str | None = None
    query: str | None = None
    """The name of a streaming query, or its id."""
    ui: str | None = None
    """The address of the application's UI, as its driver reports it."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One instance; the client generates its `id`, which never gets another place."""

    id: str
    channel_uid: str
    session: str
    place: Place
    size: int | None
    """The size of its group when it was attached; None for anonymous ones and dynamic groups."""
    mode: Mode
    epoch: int
    """The number of the instance in its group; the highest in a place is the current one."""
    generation: int
    """The generation of its group when it was attached. In dynamic groups that of its share, or,
    once it has left, the one that began with its leaving."""
    state: State = State.OPENED
    health: Health = Health.HEALTHY
    superseded: bool = False
    """Whether it has no place: it was superseded, dismissed, or lost (see `may_return`)."""
    cause: str | None = None
    """The reported reason of its state."""
    attached_at: datetime
    changed_at: datetime
    counters: Mapping[str, float] = field(default_factory=dict)
    payload: Mapping[str, Any] | None = None
    """JSON for its counterparts."""
    ends: Mapping[int, int] | None = None
    """By partition, the offset after the last record of this and earlier instances of the place.
    None for a failed writer: it may have written more than it reported."""
    lost_at: Mapping[int, int] | None = None
    """The topic's end offsets when it was found lost."""
    commits: int = 0
    """The number of its last valid commit."""
    title: str | None = None
    """A description for users."""
    share: Share | None = None
    """In a dynamic group, its last share; None after a release."""
    fenced_by: str | None = None
    """The cause, as a clause; None for a lost member of a dynamic group."""
    heartbeat: Heartbeat | None = None
    """Its own interval and timeout; None for the channel's."""
    static_id: str | None = None
    """In a dynamic group, the name that the member keeps over restarts."""
    spark: SparkJob | None = None
    """The Spark job whose endpoint it is."""
    number: int | None = None
    """Higher than those of the endpoints that attached to its channel in earlier transactions. A
    writer that returns after a failure or a loss gets a new one. None: an older version of the
    gateway attached it."""

    settled: str | None = None
    """Of a failed or lost writer of an exactly-once channel: see `Settlement` in `ledger/model.py`;
    None for others. Not stored."""

    @property
    def lives(self) -> bool:
        """Whether it is alive: it has its place, is open, and is not lost."""
        return not self.superseded and self.state in OPEN and self.health is not Health.LOST

    @property
    def group_key(self) -> GroupKey:
        """The key of its group, without its role."""
        return self.channel_uid, self.place.group

    @property
    def position_owner(self) -> PositionOwner:
        """The owner of the positions that it commits."""
        return (*self.group_key, self.place.index if self.mode is Mode.BROADCAST else -1)

    @property
    def is_dynamic(self) -> bool:
        """Whether it is a member of a dynamic group."""
        return self.place.group != ANONYMOUS and self.size is None

    @property
    def may_return(self) -> bool:
        """Whether it is a lost member of a dynamic group, which its next heartbeat brings back.

        No other endpoint took its place.
        """
        lost = self.superseded and self.health is Health.LOST
        return lost and self.is_dynamic and self.fenced_by is None

    @property
    def is_finished(self) -> bool:
        """Whether it is closed."""
        return self.state is State.CLOSED

    def heartbeat_in(self, channel: Heartbeat) -> Heartbeat:
        """Return the effective interval and timeout: its own, limited by the channel's."""
        own = self.heartbeat
        return channel if own is None or own.timeout_ms > channel.timeout_ms else own

    @property
    def where(self) -> str:
        """Description of its place, for messages."""
        if self.place.group == ANONYMOUS:
            return f"a {self.place.role} without a group"
        return f"the {self.place.role} {self.place.index} of the group {self.place.group!r}"

    def require(self, *, epoch: int | None = None) -> None:
        """Raise Fenced if it lost its place, or has another epoch."""
        if self.superseded and not self.may_return:
            by = self.fenced_by or "another instance took its place, or it was dismissed"
            raise Fenced(
                f"The endpoint {self.id} was {self.where}; {by}. Stop this instance, and do not "
                "attach it again."
            )
        if epoch is not None and epoch != self.epoch:
            raise Fenced(
                f"The endpoint {self.id} has the epoch {self.epoch}, not {epoch}. Send the epoch "
                "that the attach returned."
            )


def moved(endpoint: Endpoint, state: State, *, cause: str | None = None, now: datetime) -> Endpoint:
    """Return the endpoint in `state`; itself if unchanged. Raises IllegalTransition."""
    if endpoint.state is state:
        return endpoint
    if not may_become(endpoint.state, state):
        allowed = " or ".join(sorted(TRANSITIONS[endpoint.state])) or "nothing else"
        raise IllegalTransition(
            f"The endpoint {endpoint.id} is {endpoint.state} and cannot become {state}, only "
            f"{allowed}."
        )
    return replace(endpoint, state=state, cause=cause, changed_at=now)


def returned(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint healthy and in its place, as after a heartbeat."""
    return replace(endpoint, health=Health.HEALTHY, lost_at=None, superseded=False)


def superseded(endpoint: Endpoint, *, by: str, now: datetime) -> Endpoint:
    """Return the endpoint without its place; `by` is the cause, as a clause."""
    return replace(endpoint, superseded=True, fenced_by=by, changed_at=now)


def merged_ends(
    before: Mapping[int, int] | None, reported: Mapping[int, int] | None
) -> Mapping[int, int] | None:
    """Return the ends of a place, which never decrease."""
    if before is None or reported is None:
        return before if reported is None else reported
    return {
        partition: max(before.get(partition, 0), reported.get(partition, 0))
        for partition in sorted(before.keys() | reported.keys())
    }


def reported_ends(endpoint: Endpoint) -> Mapping[int, int] | None:
    """Return the ends of a writer's records: empty if it wrote none, None if unknown.

    An open or lost writer may write more than it reported.
    """
    if endpoint.state is State.CLOSED:
        return endpoint.ends or {}
    return endpoint.ends if endpoint.state is State.ERROR else None


def offsets_of(ends: Mapping[str, int] | None) -> dict[int, int] | None:
    """Return offsets by partition from JSON, whose keys are text."""
    return None if ends is None else {int(partition): offset for partition, offset in ends.items()}


def reached_of(positions: Mapping[str, Sequence[int]] | None) -> Reached | None:
    """Return reached positions by partition from JSON, whose keys are text."""
    if positions is None:
        return None
    return {int(partition): (offset, records) for partition, (offset, records) in positions.items()}


def own_heartbeat(
    channel: Heartbeat, *, interval_ms: int | None, timeout_ms: int | None
) -> Heartbeat | None:
    """Return the heartbeat for the requested times; None for the channel's.

    By default the interval is a sixth of the timeout, at most the channel's. Raises
    PatienceOutOfBounds.
    """
    if interval_ms is None and timeout_ms is None:
        return None
    timeout = channel.timeout_ms if timeout_ms is None else timeout_ms
    if timeout > channel.timeout_ms:
        raise PatienceOutOfBounds(
            f"The requested heartbeat timeout of {timeout} ms is above the channel's, which is "
            f"{channel.timeout_ms} ms. Request at most that, or raise spec.heartbeat.timeout_ms of "
            "the channel first."
        )
    interval = interval_ms
    if interval is None:
        interval = min(channel.interval_ms, max(MIN_HEARTBEAT_MS, timeout // 6))
    if 3 * interval > timeout:
        raise PatienceOutOfBounds(
            f"The requested heartbeat interval of {interval} ms is more than a third of the "
            f"timeout of {timeout} ms. Request at most {timeout // 3} ms, or a longer timeout."
        )
    return Heartbeat(interval_ms=interval, timeout_ms=timeout)


def next_health(health: Health, *, silent_ms: float, interval_ms: int, timeout_ms: int) -> Health:
    """Return the health after `silent_ms` without a heartbeat of the session.

    It never improves here: only a heartbeat makes an endpoint healthy.
    """
    if health is Health.LOST or silent_ms >= timeout_ms:
        return Health.LOST
    return Health.SUSPECT if silent_ms >= 3 * interval_ms else health


def worse_after_ms(*, silent_ms: float, interval_ms: int, timeout_ms: int) -> int | None:
    """Return the silence after which the health gets worse; None for the worst health."""
    steps = (3 * interval_ms, timeout_ms)
    return min((step for step in steps if step > silent_ms), default=None)


@dataclass(frozen=True, kw_only=True)
class Event:
    """A line of a channel's history, for an endpoint or a group."""

    channel_uid: str
    at: datetime
    endpoint_id: str | None = None
    group_name: str = ANONYMOUS
    state: State | None = None
    health: Health | None = None
    cause: str | None
    by: str
    """The principal, or `gateway`."""


def event(endpoint: Endpoint, *, by: str, at: datetime, cause: str | None) -> Event:
    """Return a line with the endpoint's state and health."""
    return Event(
        channel_uid=endpoint.channel_uid,
        at=at,
        endpoint_id=endpoint.id,
        group_name=endpoint.place.group,
        state=endpoint.state,
        health=endpoint.health,
        cause=cause,
        by=by,
    )


EndpointChange = tuple[Endpoint, Endpoint]
"""An endpoint before and after."""


def writer_returns(before: Endpoint, after: Endpoint) -> bool:
    """Whether a writer is alive after it had failed, or was lost."""
    return after.place.role is Role.WRITER and after.lives and not before.lives


def renumbered(
    changes: Iterable[EndpointChange], numbers: Mapping[str, int]
) -> list[EndpointChange]:
    """Give new numbers to writers that return, because readers may have ended without them."""
    return [
        (before, replace(after, number=numbers[after.channel_uid]))
        if writer_returns(before, after)
        else (before, after)
        for before, after in changes
    ]


#: Number of an endpoint's sums after which it gets no new ones, besides the numbers of tasks.
MAX_SUMS = 64


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a task, by the report of its process."""

    endpoint: str
    task: str
    number: int
    """Later attempts at a task have higher numbers."""
    state: TaskState
    counters: Mapping[str, float]
    reached: Reached | None


def representative(attempts: Sequence[Attempt]) -> Attempt | None:
    """Return the attempt that counts for its task: a done one, else the latest."""
    done = [attempt for attempt in attempts if attempt.state is TaskState.DONE]
    return max(done or attempts, key=lambda attempt: attempt.number, default=None)


def recorded(before: Attempt | None, report: Attempt) -> Attempt:
    """Return an attempt after a report; done and failed attempts do not change."""
    return report if before is None or before.state is TaskState.RUNNING else before


def recounted(
    sums: Mapping[str, float], before: Attempt | None, after: Attempt | None
) -> dict[str, float]:
    """Return an endpoint's sums after the attempt `after` replaced `before` for its task.

    In addition to the counters of tasks, the sums have the number of tasks in each state:
    `tasks_running`, `tasks_done`, `tasks_failed`.
    """
    new = dict(sums)
    for sign, attempt in ((-1, before), (1, after)):
        if attempt is None:
            continue
        for name, value in _counted(attempt).items():
            # The numbers of tasks tell when a reader is done.
            if name in new or len(new) < MAX_SUMS or name == _count_of(attempt.state):
                new[name] = max(0, new.get(name, 0) + sign * value)
    return new


def are_done(sums: Mapping[str, float], parts: int) -> bool:
    """Whether `parts` tasks are done."""
    return sums.get(_count_of(TaskState.DONE), 0) >= parts


def _counted(attempt: Attempt) -> dict[str, float]:
    return {**attempt.counters, _count_of(attempt.state): 1}


def _count_of(state: TaskState) -> str:
    return f"tasks_{state}"


_MOST_NAMED = 20


def listed(items: Iterable[object]) -> str:
    """Join the first names for a message, and count the rest."""
    names = [str(item) for item in items]
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"
