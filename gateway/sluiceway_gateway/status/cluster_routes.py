"""Brokers and topics of the Kafka cluster, read without a cache."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel

from sluiceway_gateway.api.auth import Administrator, Anybody
from sluiceway_gateway.api.deps import KafkaDep
from sluiceway_gateway.api.json import body_of, json_response
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.channels.deps import ChannelsDep
from sluiceway_gateway.core.auth.model import Action
from sluiceway_gateway.core.errors import NotFound
from sluiceway_gateway.core.kafka.model import Broker, Cluster

router = APIRouter(prefix="/v1/cluster", tags=["cluster"], route_class=StrictRoute)

BrokerId = Annotated[int, Path(ge=0, le=2**31 - 1, description="The broker's node id")]
TopicName = Annotated[
    str, Path(pattern=r"^[a-zA-Z0-9._-]{1,249}$", description="The topic's name in Kafka")
]


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
    response_model=Cluster,
    response_description="The cluster",
    responses=problems(),
)
def get_cluster(_administrator: Administrator, kafka: KafkaDep) -> Response:
    """Return the cluster's id, its controller and its live brokers."""
    cluster = kafka.describe_cluster()
    brokers = kafka.with_racks(cluster.brokers)
    return json_response(replace(cluster, brokers=brokers))


@router.get(
    "/brokers/{broker_id}",
    summary="Describe a broker",
    response_model=Broker,
    response_description="The broker",
    responses=problems(404),
)
def get_broker(broker_id: BrokerId, _administrator: Administrator, kafka: KafkaDep) -> Response:
    """Return a live broker."""
    brokers = kafka.describe_cluster().brokers
    for broker in brokers:
        if broker.id == broker_id:
            (described,) = kafka.with_racks([broker])
            return json_response(described)
    alive = ", ".join(str(broker.id) for broker in brokers)
    raise NotFound(f"There is no broker {broker_id}; live brokers: {alive or 'none'}.")


@router.get(
    "/topics/{topic}",
    summary="Describe a topic",
    response_model=ClusterTopicBody,
    response_description="The topic",
    responses=problems(404),
)
def get_topic(
    topic: TopicName, principal: Anybody, kafka: KafkaDep, channels: ChannelsDep
) -> Response:
    """Return a topic's partitions with their watermarks.

    Needs the permission to read the topic's channel, or the scope `admin` if there is none.
    """
    if not principal.may(Action.ADMIN):
        name = channels.name_of_topic(topic)
        principal.require(*((Action.ADMIN,) if name is None else (Action.READ, name)))
    metadata = kafka.describe_topic(topic)
    if metadata is None:
        raise NotFound(f"There is no topic {topic!r} in Kafka.")
    with_leader = [
        partition.partition for partition in metadata.partitions if partition.leader is not None
    ]
    watermarks = kafka.watermarks(topic, with_leader)
    partitions = []
    for partition in metadata.partitions:
        marks = watermarks.get(partition.partition)
        offsets = {"begin_offset": None, "end_offset": None} if marks is None else vars(marks)
        partitions.append(vars(partition) | offsets)
    return json_response(body_of(ClusterTopicBody, metadata, partitions=partitions))
