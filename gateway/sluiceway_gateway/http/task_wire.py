"""Tasks in heartbeats, and the endpoints that a session keeps alive, as JSON."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from sluiceway_gateway.channels.wire import Asked, Uid, time_json
from sluiceway_gateway.domain.task import Attempt
from sluiceway_gateway.endpoints.model import ANONYMOUS, TaskState
from sluiceway_gateway.endpoints.task_store import Kept
from sluiceway_gateway.endpoints.tasks import TaskReply, TaskReport
from sluiceway_gateway.endpoints.wire import Count, Counters, HealthWord, RoleWord, StateWord
from sluiceway_gateway.http.params import INT64_MAX

MAX_TASKS = 1000


class TaskBeat(Asked):
    """How an attempt at a part of an endpoint's work stands."""

    endpoint: Uid
    epoch: int | None = Field(
        default=None, ge=1, le=INT64_MAX, description="Of the endpoint; another one is fenced"
    )
    task: Annotated[str, Field(min_length=1, max_length=64)]
    attempt: int = Field(ge=0, le=INT64_MAX, description="A later one has a higher number")
    state: Literal["running", "done", "failed"]
    counters: Counters = Field(default_factory=dict)
    positions: (
        Annotated[
            dict[
                Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,5})$")],
                Annotated[list[Count], Field(min_length=2, max_length=2)],
            ],
            Field(max_length=10_000),
        ]
        | None
    ) = Field(
        default=None,
        description="By partition, the next offset to read and how many of its records are done",
    )
    parts: int | None = Field(
        default=None,
        ge=1,
        le=INT64_MAX,
        description="Of how many tasks it is one; a reader of which so many are done is closed",
    )


def _each_once(tasks: list[TaskBeat]) -> list[TaskBeat]:
    if len({(each.endpoint, each.task, each.attempt) for each in tasks}) != len(tasks):
        raise ValueError("an attempt at a task is in a beat once")
    return tasks


Tasks = Annotated[
    list[TaskBeat],
    Field(max_length=MAX_TASKS, description="Parts of the work of endpoints, of any session"),
    AfterValidator(_each_once),
]


class TaskStatus(BaseModel):
    """What tasks are told of their endpoint; unless it is `ok`, it wants no more reports."""

    endpoint: str
    status: Literal["ok", "closed", "fenced", "gone", "refused"]
    reason: str | None


class KeptChannel(BaseModel):
    """Which channel it is."""

    name: str
    uid: str


class KeptEndpoint(BaseModel):
    """An endpoint at work that its session keeps alive."""

    id: str
    channel: KeptChannel
    role: RoleWord
    group: str | None
    epoch: int
    state: StateWord
    health: HealthWord
    patience_ms: int
    reported_at: datetime | None = Field(description="When a task of it was last heard of")


def report_of(task: TaskBeat) -> TaskReport:
    """Return the report as it was sent."""
    positions = task.positions
    return TaskReport(
        attempt=Attempt(
            endpoint=task.endpoint,
            task=task.task,
            number=task.attempt,
            state=TaskState(task.state),
            counters=task.counters,
            reached=None
            if positions is None
            else {int(p): (offset, records) for p, (offset, records) in positions.items()},
        ),
        parts=task.parts,
        epoch=task.epoch,
    )


def status_json(reply: TaskReply) -> dict[str, Any]:
    """Return what tasks are told, as it is sent."""
    return {"endpoint": reply.endpoint, "status": reply.status, "reason": reply.reason}


def kept_json(kept: Kept) -> dict[str, Any]:
    """Return an endpoint as its session is told of it."""
    endpoint = kept.endpoint
    group = endpoint.place.group
    return {
        "id": endpoint.id,
        "channel": {"name": kept.channel, "uid": endpoint.channel_uid},
        "role": str(endpoint.place.role),
        "group": None if group == ANONYMOUS else group,
        "epoch": endpoint.epoch,
        "state": str(endpoint.state),
        "health": str(endpoint.health),
        "patience_ms": kept.patience_ms,
        "reported_at": kept.reported_at and time_json(kept.reported_at),
    }
