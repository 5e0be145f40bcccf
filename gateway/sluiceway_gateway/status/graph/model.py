"""Jobs of a pipeline, found from the endpoints of its channels. Pure.

Endpoints of one process belong to one job, as do the members of a group. A Spark application may
run several jobs, so there the query counts too.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from sluiceway_gateway.endpoints.model import ANONYMOUS, Health, Role, SparkJob, State, outcome

MAX_CHANNELS = 40
"""Channels of a graph, at most; the nearest first."""
MAX_HOPS = 6
"""Jobs between two channels of a graph, at most."""
MAX_ENDPOINTS = 5_000
"""Endpoints that are read for a graph, at most."""


@dataclass(frozen=True, kw_only=True)
class GraphEndpoint:
    """An endpoint of a channel in the graph."""

    id: str
    channel: str
    """The name of the channel."""
    role: Role
    group: str
    session: str
    state: State
    health: Health
    title: str | None
    spark: SparkJob | None

    @property
    def identities(self) -> Sequence[Hashable]:
        """What it shares with other endpoints of its job: the process, and the group."""
        spark = self.spark
        process = ("process", self.session, spark and spark.application, spark and spark.query)
        if self.group == ANONYMOUS:
            return [process]
        return [process, ("group", self.channel, self.role, self.group)]


@dataclass(frozen=True, kw_only=True)
class JobEdge:
    """A job's endpoints at a channel, in one role."""

    channel: str
    role: Role
    groups: Annotated[
        tuple[str, ...], Field(description="Names of their groups; some may have none")
    ]
    live: int
    lost: int
    failed: int
    finished: int


@dataclass(frozen=True, kw_only=True)
class GraphJob:
    """A job that writes or reads channels."""

    id: str
    name: str | None
    """The query, application or group with the most endpoints, else a title, else None."""
    spark: SparkJob | None
    processes: int
    edges: tuple[JobEdge, ...]


def jobs_of(endpoints: Iterable[GraphEndpoint]) -> list[GraphJob]:
    """Return the jobs of these endpoints, by id."""
    attached = list(endpoints)
    parents: dict[Hashable, Hashable] = {}

    def root(key: Hashable) -> Hashable:
        parents.setdefault(key, key)
        while parents[key] != key:
            # Shortened, so that many unions stay fast.
            parents[key] = parents[parents[key]]
            key = parents[key]
        return key

    for endpoint in attached:
        first, *others = endpoint.identities
        for other in others:
            parents[root(other)] = root(first)
    jobs: dict[Hashable, list[GraphEndpoint]] = defaultdict(list)
    for endpoint in attached:
        jobs[root(endpoint.identities[0])].append(endpoint)
    return sorted((_job(job_endpoints) for job_endpoints in jobs.values()), key=lambda job: job.id)


def _job(endpoints: Sequence[GraphEndpoint]) -> GraphJob:
    sides: dict[tuple[str, Role], list[GraphEndpoint]] = defaultdict(list)
    for endpoint in endpoints:
        sides[endpoint.channel, endpoint.role].append(endpoint)
    sparks = [endpoint.spark for endpoint in endpoints if endpoint.spark is not None]
    return GraphJob(
        id=min(endpoint.id for endpoint in endpoints),
        name=_name(endpoints),
        spark=sparks[0] if sparks else None,
        processes=len({endpoint.session for endpoint in endpoints}),
        edges=tuple(_edge(*side, sides[side]) for side in sorted(sides)),
    )


def _name(endpoints: Sequence[GraphEndpoint]) -> str | None:
    sparks = [endpoint.spark for endpoint in endpoints if endpoint.spark is not None]
    for names in (
        [spark.query for spark in sparks],
        [spark.application for spark in sparks],
        [endpoint.group for endpoint in endpoints],
        [endpoint.title for endpoint in endpoints],
    ):
        counts = Counter(name for name in names if name)
        if counts:
            return min(counts, key=lambda name: (-counts[name], name))
    return None


def _edge(channel: str, role: Role, endpoints: Sequence[GraphEndpoint]) -> JobEdge:
    outcomes = Counter(outcome(endpoint.state, endpoint.health) for endpoint in endpoints)
    return JobEdge(
        channel=channel,
        role=role,
        groups=tuple(sorted({endpoint.group for endpoint in endpoints} - {ANONYMOUS})),
        **{name: outcomes[name] for name in ("live", "lost", "failed", "finished")},
    )
