"""Jobs of a graph: endpoints of one process, of one group, or of one query."""

from typing import Any

from sluiceway_gateway.endpoints.model import Health, Role, SparkJob, State
from sluiceway_gateway.status.graph.model import MAX_ENDPOINTS, GraphEndpoint, GraphJob, jobs_of


def endpoint(
    number: int, channel: str, role: str, group: str = "", *, session: str = "s", **fields: Any
) -> GraphEndpoint:
    defaults = {"state": State.STARTED, "health": Health.HEALTHY, "title": None, "spark": None}
    return GraphEndpoint(
        id=f"{number:04}",
        channel=channel,
        role=Role(role),
        group=group,
        session=session,
        **(defaults | fields),
    )


def places(job: GraphJob) -> list[tuple[str, str]]:
    return [(edge.channel, str(edge.role)) for edge in job.edges]


def test_replicas_that_read_and_write_are_one_job() -> None:
    (job,) = jobs_of(
        [
            endpoint(1, "raw", "reader", "clean", session="a"),
            endpoint(2, "raw", "reader", "clean", session="b"),
            endpoint(3, "good", "writer", "cleaner", session="b"),
            endpoint(4, "bad", "writer", "cleaner", session="a", state=State.ERROR),
        ]
    )
    assert (job.id, job.name, job.processes) == ("0001", "clean", 2)
    assert places(job) == [("bad", "writer"), ("good", "writer"), ("raw", "reader")]
    bad, _, raw = job.edges
    assert (bad.failed, bad.live, raw.live, raw.groups) == (1, 0, 2, ("clean",))


def test_groups_of_the_same_name_in_other_channels_are_other_jobs() -> None:
    jobs = jobs_of(
        [
            endpoint(1, "a", "reader", "main", session="x"),
            endpoint(2, "b", "reader", "main", session="y"),
            endpoint(3, "b", "writer", "main", session="z"),
        ]
    )
    assert [places(job) for job in jobs] == [
        [("a", "reader")],
        [("b", "reader")],
        [("b", "writer")],
    ]


def test_queries_of_one_application_are_jobs_of_their_own() -> None:
    sums, means = (SparkJob(application="app", query=query) for query in ("sums", "means"))
    one, other, batch = jobs_of(
        [
            endpoint(1, "raw", "reader", "g1", spark=sums),
            endpoint(2, "raw", "reader", "g2", spark=means),
            endpoint(3, "out", "writer", spark=sums),
            endpoint(4, "out", "writer", spark=SparkJob(application="app")),
        ]
    )
    assert (one.name, places(one)) == ("sums", [("out", "writer"), ("raw", "reader")])
    assert (other.name, places(other)) == ("means", [("raw", "reader")])
    assert (batch.name, batch.spark) == ("app", SparkJob(application="app"))


def test_endpoints_are_counted_by_how_they_are() -> None:
    (job,) = jobs_of(
        [
            endpoint(1, "raw", "reader", "g"),
            endpoint(2, "raw", "reader", "g", health=Health.LOST),
            endpoint(3, "raw", "reader", "g", state=State.CLOSED, health=Health.LOST),
            endpoint(4, "raw", "reader", health=Health.SUSPECT),
        ]
    )
    (edge,) = job.edges
    assert (edge.live, edge.lost, edge.failed, edge.finished) == (2, 1, 0, 1)
    assert edge.groups == ("g",)


def test_a_job_without_groups_has_its_title_as_name() -> None:
    (job,) = jobs_of([endpoint(1, "raw", "writer", title="nightly load")])
    assert job.name == "nightly load"
    (nameless,) = jobs_of([endpoint(1, "raw", "writer")])
    assert nameless.name is None
    assert jobs_of([]) == []


def test_names_of_others_do_not_join_jobs() -> None:
    """Names of sessions, applications and queries are never confused with a group's key."""
    assert (
        len(
            jobs_of(
                [
                    endpoint(1, "raw", "reader", "g", session="a"),
                    endpoint(
                        2,
                        "x",
                        "writer",
                        session="raw",
                        spark=SparkJob(application="reader", query="g"),
                    ),
                ]
            )
        )
        == 2
    )


def test_the_most_endpoints_of_one_group_are_joined() -> None:
    many = [endpoint(n, "raw", "reader", "g", session=str(n)) for n in range(MAX_ENDPOINTS)]
    (job,) = jobs_of(many)
    assert job.processes == MAX_ENDPOINTS
