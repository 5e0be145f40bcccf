"""Endpoint: states, transitions, ends, tasks. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sluiceway_gateway.errors import Fenced, IllegalTransition

#: The name, in the database, of the group of those that name none. Nobody can ask for it.
ANONYMOUS = ""
MAX_GROUP_SIZE = 10_000


class Role(StrEnum):
    """What an endpoint does with the channel."""

    READER = "reader"
    WRITER = "writer"

    @property
    def counterpart(self) -> "Role":
        """Who is on the other side."""
        return Role.WRITER if self is Role.READER else Role.READER


class Mode(StrEnum):
    """How records go to the members of a group of readers."""

    SHARED = "shared"
    """Each to one of them."""
    BROADCAST = "broadcast"
    """Each to all of them."""


class State(StrEnum):
    """Where an endpoint is in its life, by its own word."""

    OPENED = "opened"
    """It has its place, and has moved no record."""
    STARTED = "started"
    """It moves records."""
    STOPPED = "stopped"
    """It moves no more, and holds its place until the others are done."""
    CLOSED = "closed"
    """It is finished, for good."""
    ERROR = "error"
    """It failed; it may open again."""


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.OPENED: frozenset({State.STARTED, State.STOPPED, State.CLOSED, State.ERROR}),
    State.STARTED: frozenset({State.STOPPED, State.CLOSED, State.ERROR}),
    State.STOPPED: frozenset({State.CLOSED, State.ERROR}),
    State.ERROR: frozenset({State.OPENED, State.STARTED}),
    State.CLOSED: frozenset(),
}
"""The one transition table. A beat tells the latest state alone, so it may skip steps forward."""

OPEN = frozenset({State.OPENED, State.STARTED, State.STOPPED})
"""The states of endpoints that hold their place."""


def may_become(state: State, following: State) -> bool:
    """Whether an endpoint in `state` may be in `following` next; staying is always allowed."""
    return state is following or following in TRANSITIONS[state]


class Health(StrEnum):
    """How the gateway judges an endpoint by the beats of its session."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """Silent for three beats."""
    LOST = "lost"
    """Silent for as long as the channel is patient; a beat brings it back."""


class TaskState(StrEnum):
    """How one attempt at a part of an endpoint's work stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where in a channel an endpoint is; one endpoint at a time has it."""

    role: Role
    group: str
    """ANONYMOUS, or the group's name."""
    index: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which partitions a member of a dynamic group took: every `size`-th, from `index` on."""

    index: int
    size: int

    def __contains__(self, partition: int) -> bool:
        return partition % self.size == self.index

    def of(self, partitions: int) -> range:
        """Return its partitions, of so many."""
        return range(self.index, partitions, self.size)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One instance: `id` is made by the client, and never has another place."""

    id: str
    channel_uid: str
    session: str
    place: Place
    size: int | None
    """The size of its group when it was attached; None for anonymous ones and dynamic groups."""
    mode: Mode
    epoch: int
    """Counts the instances of its group: the higher one of a place is the living one."""
    generation: int
    """The generation of its group when it was attached, or, in dynamic groups, of its share."""
    state: State
    health: Health
    superseded: bool
    """It has no place: another has it, it was removed, or it was lost (see `may_return`)."""
    cause: str | None
    """Why it is in this state, where somebody said."""
    attached_at: datetime
    changed_at: datetime
    counters: Mapping[str, float]
    payload: Mapping[str, Any] | None
    """What it has the counterparts know."""
    ends: Mapping[int, int] | None
    """The offset after the last record by partition, of this instance and those before it. Of one
    that failed: everything written in its place lies before; None: it may have written more."""
    lost_at: Mapping[int, int] | None
    """The topic's ends when it was found lost."""
    commits: int
    """The number of the last commit that counted."""
    title: str | None = None
    """What it is, for people."""
    share: Share | None = None
    """Of members of dynamic groups: what it took last; None when it has nothing."""
    fenced_by: str | None = None
    """What took its place, in words; None for a lost member of a dynamic group: nothing did."""

    @property
    def lives(self) -> bool:
        """Whether others have to reckon with it."""
        return not self.superseded and self.state in OPEN and self.health is not Health.LOST

    @property
    def is_dynamic(self) -> bool:
        """Whether its group has no fixed places, so that the gateway says what is its own."""
        return self.place.group != ANONYMOUS and self.size is None

    @property
    def may_return(self) -> bool:
        """Whether it lost its place by silence alone: its next heartbeat brings it back.

        Members of dynamic groups have no place of their own that another could take.
        """
        lost = self.superseded and self.health is Health.LOST
        return lost and self.is_dynamic and self.fenced_by is None

    @property
    def is_finished(self) -> bool:
        """Whether it is closed, for good."""
        return self.state is State.CLOSED

    @property
    def where(self) -> str:
        """Its place, in words."""
        if self.place.group == ANONYMOUS:
            return f"a {self.place.role} without a group"
        return f"the {self.place.role} {self.place.index} of the group {self.place.group!r}"

    def require(self, *, epoch: int | None = None) -> None:
        """Raise Fenced if its place was taken, or if it has another epoch."""
        if self.superseded and not self.may_return:
            by = self.fenced_by or "another instance has that place now, or somebody took it away"
            raise Fenced(
                f"The endpoint {self.id} was {self.where}; {by}: stop this one, and do not attach "
                "it again."
            )
        if epoch is not None and epoch != self.epoch:
            raise Fenced(
                f"The endpoint {self.id} has the epoch {self.epoch}, not {epoch}: send the epoch "
                "that attaching gave."
            )


def moved(endpoint: Endpoint, state: State, *, cause: str | None = None, now: datetime) -> Endpoint:
    """Return the endpoint in `state`: itself, if it is there already; raises IllegalTransition."""
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
    """Return the endpoint as a heartbeat leaves it: healthy, and in its place."""
    return replace(endpoint, health=Health.HEALTHY, lost_at=None, superseded=False)


def merged_ends(
    before: Mapping[int, int] | None, reported: Mapping[int, int] | None
) -> Mapping[int, int] | None:
    """Return the ends of a place: an instance that reports less takes nothing back."""
    if before is None or reported is None:
        return before if reported is None else reported
    return {
        partition: max(before.get(partition, 0), reported.get(partition, 0))
        for partition in sorted(before.keys() | reported.keys())
    }


def reported_ends(endpoint: Endpoint) -> Mapping[int, int] | None:
    """Return where a writer's records end by its own report; None: that is not known.

    Empty: there are none. One that is at work, or was lost, may write more than it reported.
    """
    if endpoint.state is State.CLOSED:
        return endpoint.ends or {}
    return endpoint.ends if endpoint.state is State.ERROR else None


def next_health(health: Health, *, silent_ms: float, interval_ms: int, timeout_ms: int) -> Health:
    """Return the health of an endpoint whose session has been silent so long.

    Silence alone heals nothing: a suspect stays so until it beats.
    """
    if health is Health.LOST or silent_ms >= timeout_ms:
        return Health.LOST
    return Health.SUSPECT if silent_ms >= 3 * interval_ms else health


def worse_after_ms(*, silent_ms: float, interval_ms: int, timeout_ms: int) -> int | None:
    """Return after how much more silence than this the health gets worse; None if it does not."""
    steps = (3 * interval_ms, timeout_ms)
    return min((each for each in steps if each > silent_ms), default=None)


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line of a channel's history; without an endpoint it is about the group."""

    at: datetime
    endpoint: str | None
    group: str
    state: State | None
    health: Health | None
    cause: str | None
    by: str
    """The principal, or `gateway`."""


def event(endpoint: Endpoint, *, by: str, at: datetime, cause: str | None) -> Event:
    """Return the line that says how the endpoint stands now."""
    return Event(
        at=at,
        endpoint=endpoint.id,
        group=endpoint.place.group,
        state=endpoint.state,
        health=endpoint.health,
        cause=cause,
        by=by,
    )


#: So many sums an endpoint has at most, whatever its tasks count.
MAX_SUMS = 64


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try at a part, as the process that makes it says."""

    endpoint: str
    task: str
    number: int
    """Of two attempts at a part, the later one has the higher."""
    state: TaskState
    counters: Mapping[str, float]
    reached: Mapping[int, tuple[int, int]] | None
    """By partition the next offset to read, and how many records of that message are done."""


def standing(attempts: Sequence[Attempt]) -> Attempt | None:
    """Return the attempt that speaks for its part: one that is done, else the latest."""
    done = [each for each in attempts if each.state is TaskState.DONE]
    return max(done or attempts, key=lambda each: each.number, default=None)


def noted(before: Attempt | None, told: Attempt) -> Attempt:
    """Return what is known of an attempt after it `told`; one that came to its end stays there."""
    return told if before is None or before.state is TaskState.RUNNING else before


def recounted(
    sums: Mapping[str, float], before: Attempt | None, after: Attempt | None
) -> dict[str, float]:
    """Return the sums of an endpoint when `after` speaks for a part, in the place of `before`.

    Besides what tasks count, they have the number of parts in each state: `tasks_running`,
    `tasks_done`, `tasks_failed`.
    """
    new = dict(sums)
    for sign, each in ((-1, before), (1, after)):
        for name, value in ({} if each is None else _counted(each)).items():
            if name in new or len(new) < MAX_SUMS:
                new[name] = max(0, new.get(name, 0) + sign * value)
    return new


def is_all_done(sums: Mapping[str, float], parts: int) -> bool:
    """Whether so many parts are done."""
    return sums.get(_count_of(TaskState.DONE), 0) >= parts


def _counted(attempt: Attempt) -> dict[str, float]:
    return {**attempt.counters, _count_of(attempt.state): 1}


def _count_of(state: TaskState) -> str:
    return f"tasks_{state}"
