"""Route of the graph, with its JSON."""

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from sluiceway_gateway.api.auth import Viewer
from sluiceway_gateway.api.json import json_response
from sluiceway_gateway.api.params import Name
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.endpoints.wire import SparkPost
from sluiceway_gateway.status.deps import StatusesDep
from sluiceway_gateway.status.graph.model import MAX_CHANNELS, JobEdge
from sluiceway_gateway.status.wire import StatusLine, summary_json

router = APIRouter(prefix="/v1", tags=["status"], route_class=StrictRoute)


class GraphJobBody(BaseModel):
    """A job: endpoints of one process, of one group, or of one query of a Spark application."""

    id: str = Field(description="The same as long as its first endpoint is known")
    name: str | None = Field(description="Its query, application, most frequent group, or title")
    spark: SparkPost | None
    processes: int
    edges: list[JobEdge]


class GraphBody(BaseModel):
    """A channel, the jobs that write and read it, and the channels that these lead to."""

    channel: str
    channels: list[StatusLine] = Field(
        description=f"By name; at most {MAX_CHANNELS}, the nearest, as far as the token sees them"
    )
    jobs: list[GraphJobBody]
    truncated: bool = Field(description="Whether there are more channels or endpoints")


@router.get(
    "/channels/{name}/graph",
    summary="Read the jobs around a channel",
    response_model=GraphBody,
    responses=problems(404),
)
def get_channel_graph(name: Name, viewer: Viewer, statuses: StatusesDep) -> Response:
    """Return the jobs that write and read the channel, and the channels that they lead to.

    Endpoints that have ended count if they are the last ones in their place in a group.
    """
    graph = statuses.graph(name, by=viewer)
    body = {
        "channel": name,
        "channels": [summary_json(summary) for summary in graph.channels],
        "jobs": graph.jobs,
        "truncated": graph.truncated,
    }
    return json_response(body)
