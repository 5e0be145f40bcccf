"""Jobs of a pipeline, found from the endpoints of its channels. Pure.

Endpoints of one process belong to one job, as do the members of a group. A Spark application may
run several jobs, so there the query counts too.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

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
    groups: tuple[str, ...]
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
    found = list(endpoints)
    parents: dict[Hashable, Hashable] = {}

    def root(key: Hashable) -> Hashable:
        parents.setdefault(key, key)
        while parents[key] != key:
            # Shortened, so that many unions stay fast.
            parents[key] = parents[parents[key]]
            key = parents[key]
        return key

    for each in found:
        first, *others = each.identities
        for other in others:
            parents[root(other)] = root(first)
    jobs: dict[Hashable, list[GraphEndpoint]] = defaultdict(list)
    for each in found:
        jobs[root(each.identities[0])].append(each)
    return sorted((_job(each) for each in jobs.values()), key=lambda job: job.id)


def _job(endpoints: Sequence[GraphEndpoint]) -> GraphJob:
    sides: dict[tuple[str, Role], list[GraphEndpoint]] = defaultdict(list)
    for each in endpoints:
        sides[each.channel, each.role].append(each)
    sparks = [each.spark for each in endpoints if each.spark is not None]
    return GraphJob(
        id=min(each.id for each in endpoints),
        name=_name(endpoints),
        spark=sparks[0] if sparks else None,
        processes=len({each.session for each in endpoints}),
        edges=tuple(_edge(*side, sides[side]) for side in sorted(sides)),
    )


def _name(endpoints: Sequence[GraphEndpoint]) -> str | None:
    sparks = [each.spark for each in endpoints if each.spark is not None]
    for names in (
        [each.query for each in sparks],
        [each.application for each in sparks],
        [each.group for each in endpoints],
        [each.title for each in endpoints],
    ):
        counts = Counter(each for each in names if each)
        if counts:
            return min(counts, key=lambda name: (-counts[name], name))
    return None


def _edge(channel: str, role: Role, endpoints: Sequence[GraphEndpoint]) -> JobEdge:
    kinds = Counter(outcome(each.state, each.health) for each in endpoints)
    return JobEdge(
        channel=channel,
        role=role,
        groups=tuple(sorted({each.group for each in endpoints} - {ANONYMOUS})),
        **{each: kinds[each] for each in ("live", "lost", "failed", "finished")},
    )
