"""Traces of Spark jobs and queries, with spans of several processes."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from collector import Collected, Collector, collecting
from databases import SQLite
from environments import spark_environment
from processes import process
from shared_kafka import SharedKafka
from sluiceway import Gateway
from waiting import until

pytestmark = pytest.mark.long

SCHEMA = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(scope="module")
def collector(
    sqlite: SQLite, kafka: SharedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Collector]:
    """A collector after the job and its gateway have ended."""
    directory = tmp_path_factory.mktemp("spark-traces")
    with collecting() as collected:
        variables = {
            "SLUICEWAY_DATABASE_URL": sqlite.migrated(),
            "SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collected.endpoint,
        }
        with process("serve", "--port", "0", **variables) as running:
            url = running.until(r"serving on (\S+)")
            with Gateway(url) as gateway:
                for name in ("rows-in", "rows-out"):
                    gateway.channel(name, SCHEMA, partitions=2, delivery="exactly_once")
            log = directory / "job.log"
            with (
                log.open("wb") as output,
                subprocess.Popen(
                    [
                        *(sys.executable, str(Path(__file__).with_name("traced_spark_job.py"))),
                        *("rows-in", "rows-out", str(directory / "checkpoint")),
                    ],
                    env=os.environ
                    | spark_environment(directory)
                    | {
                        "SLUICEWAY_URL": url,
                        "OTEL_EXPORTER_OTLP_ENDPOINT": collected.endpoint,
                        "OTEL_BSP_SCHEDULE_DELAY": "200",
                    },
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                ) as job,
            ):
                until(lambda: job.poll() is not None or is_complete(collected), 500)
                job.communicate(b"\n", timeout=180)
                assert job.returncode == 0, log.read_text()
            assert running.end(signal.SIGTERM) == 0
        yield collected


def is_complete(collector: Collector) -> bool:
    """Whether the spans of all tasks and commits have arrived, with those above them."""
    spans = list(collector.spans)
    names, ids = Counter(each.name for each in spans), {each.id for each in spans}
    return (
        records(spans) == {"send rows-in": 1000, "receive rows-in": 2000, "send rows-out": 1000}
        and names["commit rows-in"] > 0
        and names["commit rows-out"] == names["write rows-out"] > 0
        and all(each.parent in ids for each in spans if each.parent)
    )


def records(spans: Sequence[Collected]) -> Counter[str]:
    """Return the records that tasks have moved, by the name of their spans."""
    found: Counter[str] = Counter()
    for each in spans:
        found[each.name] += each.attributes.get("sluiceway.records", 0)
    return +found


def trace_of(collector: Collector, span: Collected) -> list[Collected]:
    return [each for each in collector.spans if each.trace == span.trace]


def test_a_job_is_one_trace_from_the_program_through_its_tasks_to_the_statements(
    collector: Collector,
) -> None:
    (root,) = (each for each in collector.spans if each.name == "nightly")
    trace = trace_of(collector, root)
    paths = Counter(map(collector.path, trace))
    assert paths["nightly", "write rows-in"] == 1
    assert paths["nightly", "write rows-in", "send rows-in"] == 2
    assert paths["nightly", "write rows-in", "commit rows-in"] == 1
    commit = ("nightly", "write rows-in", "commit rows-in", "POST")
    route = "POST /v1/channels/{name}/batches/{id}/commit"
    assert paths[*commit, route, "write transaction", "INSERT visible_runs"] >= 1
    assert paths["nightly", "read rows-in"] == 1
    received = paths["nightly", "read rows-in", "receive rows-in"]
    assert received >= 2
    sent = [each for each in trace if each.name in ("send rows-in", "receive rows-in")]
    assert {each.service for each in sent} == {"sluiceway-spark"}
    assert records(sent) == {"send rows-in": 1000, "receive rows-in": 1000}


def test_each_micro_batch_is_a_trace_of_its_read_and_one_of_its_write(
    collector: Collector,
) -> None:
    writes = [each for each in collector.spans if each.name == "write rows-out"]
    assert [each.parent for each in writes] == [""] * len(writes)
    assert len({each.trace for each in writes}) == len(writes) >= 1
    sent = 0
    for write in writes:
        trace = trace_of(collector, write)
        paths = Counter(map(collector.path, trace))
        assert paths["write rows-out", "commit rows-out"] == 1
        tasks = [each for each in trace if each.name == "send rows-out"]
        assert {collector.path(each) for each in tasks} == {("write rows-out", "send rows-out")}
        sent += sum(each.attributes["sluiceway.records"] for each in tasks)
    assert sent == 1000
    reads = [each for each in collector.spans if each.name == "read rows-in" and not each.parent]
    received = [
        each.attributes["sluiceway.records"]
        for read in reads
        for each in trace_of(collector, read)
        if each.name == "receive rows-in"
    ]
    assert sum(received) == 1000
