"""Routes of the Kafka cluster."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from sluiceway_gateway.cluster.service import TopicReport
from sluiceway_gateway.http.auth import Administrator, Anybody
from sluiceway_gateway.http.deps import Gateway
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import GatewayRoute

router = APIRouter(prefix="/v1/cluster", tags=["cluster"], route_class=GatewayRoute)

BrokerId = Annotated[int, Path(ge=0, le=2**31 - 1, description="The broker's node id")]
TopicName = Annotated[
    str, Path(pattern=r"^[a-zA-Z0-9._-]{1,249}$", description="The topic's name in Kafka")
]


class BrokerBody(BaseModel):
    """A broker with its advertised address."""

    id: int
    host: str
    port: int
    rack: str | None


class ClusterBody(BaseModel):
    """The cluster. `controller_id` is null while there is no controller."""

    cluster_id: str | None
    controller_id: int | None
    brokers: list[BrokerBody]


class PartitionBody(BaseModel):
    """A partition. Unknown values are null."""

    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]
    begin_offset: int | None
    end_offset: int | None


class ClusterTopicBody(BaseModel):
    """A topic. `id` differs between topics that had the same name."""

    name: str
    id: str
    partitions: list[PartitionBody]


@router.get(
    "",
    summary="Describe the cluster",
    response_model=ClusterBody,
    responses=problems(also={200: {"description": "The cluster", "model": ClusterBody}}),
)
def get_cluster(_administrator: Administrator, gateway: Gateway) -> Response:
    """Return the cluster's id, its controller and its living brokers."""
    return JSONResponse(asdict(gateway.cluster.cluster()))


@router.get(
    "/brokers/{broker_id}",
    summary="Describe a broker",
    response_model=BrokerBody,
    responses=problems(404, also={200: {"description": "The broker", "model": BrokerBody}}),
)
def get_broker(broker_id: BrokerId, _administrator: Administrator, gateway: Gateway) -> Response:
    """Return a living broker."""
    return JSONResponse(asdict(gateway.cluster.broker(broker_id)))


@router.get(
    "/topics/{topic}",
    summary="Describe a topic",
    response_model=ClusterTopicBody,
    responses=problems(404, also={200: {"description": "The topic", "model": ClusterTopicBody}}),
)
def get_topic(topic: TopicName, principal: Anybody, gateway: Gateway) -> Response:
    """Return a topic's partitions with their watermarks.

    Needs the permission to read the topic's channel, or the scope `admin` if there is none.
    """
    gateway.cluster.authorize(principal, topic)
    return JSONResponse(_topic_json(gateway.cluster.topic(topic)))


def _topic_json(report: TopicReport) -> dict[str, object]:
    def partition(number: int) -> dict[str, int | None]:
        marks = report.watermarks.get(number)
        return {
            "begin_offset": None if marks is None else marks.begin_offset,
            "end_offset": None if marks is None else marks.end_offset,
        }

    topic = asdict(report.topic)
    for each in topic["partitions"]:
        each |= partition(each["partition"])
    return topic
