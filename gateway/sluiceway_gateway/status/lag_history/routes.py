"""Route of the lag history, with its JSON."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from sluiceway_gateway.api.auth import Viewer
from sluiceway_gateway.api.json import json_response, time_json
from sluiceway_gateway.api.models import GroupName, Time
from sluiceway_gateway.api.params import Name
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.endpoints.wire import EndpointChannel
from sluiceway_gateway.status.deps import StatusesDep
from sluiceway_gateway.status.lag_history.model import (
    MAX_GROUPS,
    RESOLUTIONS,
    GroupSeries,
    LagHistory,
)

router = APIRouter(prefix="/v1", tags=["status"], route_class=StrictRoute)


class HistoryBody(BaseModel):
    """Lag and rates over time."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "channel": {"name": "flights", "uid": "0" * 32},
                    "since": "2026-11-25T12:00:00.000Z",
                    "until": "2026-11-25T13:00:00.000Z",
                    "step_s": 60,
                    "times": ["2026-11-25T12:00:00.000Z", "2026-11-25T12:01:00.000Z"],
                    "write_rate": [120.5, 118],
                    "groups": [
                        {
                            "group": "delays",
                            "lag_messages": [0, 3500],
                            "lag_seconds": [0, 29.4],
                            "lag_seconds_at_least": [False, False],
                            "read_rate": [120.1, None],
                        }
                    ],
                }
            ]
        }
    )

    channel: EndpointChannel
    since: datetime
    until: datetime
    step_s: int = Field(description="Length of the intervals")
    times: list[datetime] = Field(
        description="Starts of the intervals, from `since` to `until`. Those without a sample are "
        "left out: an idle channel is sampled once a minute, and none while no replica leads"
    )
    write_rate: list[float | None] = Field(description="Messages per second, the mean")
    groups: list[GroupSeries] = Field(
        description=f"By name; at most {MAX_GROUPS}, those with the largest lag"
    )


@router.get(
    "/channels/{name}/history",
    summary="Read lag and rates over time",
    response_model=HistoryBody,
    response_description=f"At most {max(resolution.slots for resolution in RESOLUTIONS) + 1} "
    "intervals",
    responses=problems(404),
)
def get_channel_history(
    name: Name,
    _viewer: Viewer,
    statuses: StatusesDep,
    since: Annotated[Time | None, Query(description="By default an hour before `until`")] = None,
    until: Annotated[Time | None, Query(description="By default now")] = None,
    group: Annotated[GroupName | None, Query(description="Only this group")] = None,
) -> Response:
    """Return lag and rates of the past, at the finest resolution that goes back to `since`.

    The resolutions are 10 s for 20 minutes, 60 s for 2 hours and 300 s for 25 hours.
    """
    channel, history = statuses.history(name, since=since, until=until)
    return json_response(_history_json(channel, history, only=group))


def _history_json(channel: Channel, history: LagHistory, *, only: str | None) -> dict[str, Any]:
    names = history.group_names()
    if only is not None:
        names = [only] if any(only in point.groups for point in history.points) else []
    return {
        "channel": {"name": channel.name, "uid": channel.uid},
        "since": time_json(history.since),
        "until": time_json(history.until),
        "step_s": history.step_s,
        "times": [time_json(datetime.fromtimestamp(point.at_s, UTC)) for point in history.points],
        "write_rate": [point.write_rate for point in history.points],
        "groups": [history.series(name) for name in names],
    }
