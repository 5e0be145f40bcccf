"""Kafka's cluster, as the gateway tells of it to administrators."""

from dataclasses import dataclass

from sluiceway.answer import Answer

__all__ = ["Cluster", "ClusterBroker"]


@dataclass(frozen=True, kw_only=True)
class ClusterBroker:
    """A broker that is alive, as Kafka tells the gateway to reach it."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Who is in the cluster; `controller_id` is None while there is no controller."""

    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[ClusterBroker, ...]

    @classmethod
    def parse(cls, answer: object) -> "Cluster":
        """Read the JSON of the answer; raises IncompatibleGateway."""
        read = Answer(answer, "cluster")
        return cls(
            cluster_id=read.optional(read.text, "cluster_id"),
            controller_id=read.optional(read.number, "controller_id"),
            brokers=tuple(
                ClusterBroker(
                    id=each.number("id"), host=each.text("host"), port=each.number("port")
                )
                for each in read.items("brokers")
            ),
        )
