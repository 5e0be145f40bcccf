"""Throughput of one gateway: requests for a channel, and for its connection.

`sluiceway serve` runs in a separate process, on SQLite and on PostgreSQL; eight persistent
connections, each with one request at a time and a token on every request. The clients run on the
same machine, in another process.
"""

import http.client
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.measure import Measured, Side, in_own_process, measure, report
from bench.service import Service, databases, running

from sluiceway import Gateway
from sluiceway.schema import Schema
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.core.db.revision import open_database
from sluiceway_gateway.dev.embedded import KafkaServer
from sluiceway_gateway.schemas import store as schemas_store
from sluiceway_gateway.schemas.model import MAX_SCHEMA_VERSIONS, SchemaVersion

CONNECTIONS = 8
SECONDS = 3.0
ROUNDS = 3
FIELDS = 10
#: A channel with one version of its schema, and one with the maximum.
ONE, FULL = "one", "full"
PATHS = {
    "channel": f"/v1/channels/{ONE}",
    "connection": f"/v1/channels/{ONE}/connection?access=read",
    "connection_full": f"/v1/channels/{FULL}/connection?access=read",
}


def definition(number: int) -> dict[str, Any]:
    """Return a schema of ten fields, different for each number."""
    names = [f"field_{n}" for n in range(FIELDS - 1)] + [f"added_{number}"]
    fields = [{"name": name, "type": ["null", "double"], "default": None} for name in names]
    return {"type": "record", "name": "Measurement", "fields": fields}


@contextmanager
def gateway(database_url: str, bootstrap_servers: str) -> Iterator[Service]:
    """Run a gateway with both channels while the block runs."""
    with running(database_url, bootstrap_servers) as service:
        # The client retries until the gateway answers.
        with Gateway(service.url, token=service.token) as client:
            for name in (ONE, FULL):
                client.channel(name, definition(1))
        fill(database_url)
        yield service


def fill(database_url: str) -> None:
    """Give the channel FULL the maximum number of schema versions."""
    now = datetime.now(UTC)
    with open_database(database_url) as database, database.write() as tx:
        channel = channels_store.hold(tx, FULL)
        assert channel is not None
        for number in range(2, MAX_SCHEMA_VERSIONS + 1):
            schema = Schema.parse(definition(number))
            text = schema.canonical
            id_ = schemas_store.register(
                tx, fingerprint=schema.fingerprint, definition=text, now=now
            )
            version = SchemaVersion(id=id_, version=number, definition=text, created_at=now)
            schemas_store.assign(tx, channel_uid=channel.uid, version=version)


def ask(service: Service, path: str) -> Measured:
    """Request a path repeatedly over all connections; return the responses per second."""
    counts = [0] * CONNECTIONS
    ends_s = time.perf_counter() + SECONDS

    def repeat(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
        headers = {"Authorization": f"Bearer {service.token}"}
        while time.perf_counter() < ends_s:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, body
            counts[number] += 1
        connection.close()

    started_s = time.perf_counter()
    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(CONNECTIONS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return Measured(records=sum(counts), seconds=time.perf_counter() - started_s)


def alone(service: Service, path: str, times: int = 20) -> dict[str, float]:
    """Return the latency of sequential requests, and the size of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    took_s, size = [], 0
    for _ in range(times):
        started_s = time.perf_counter()
        connection.request("GET", path, headers={"Authorization": f"Bearer {service.token}"})
        response = connection.getresponse()
        size = len(response.read())
        assert response.status == 200
        took_s.append(time.perf_counter() - started_s)
    connection.close()
    return {"bytes": size, "median_ms": round(sorted(took_s)[times // 2] * 1000, 1)}


def main() -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = stack.enter_context(KafkaServer.start(directory / "kafka"))
        urls = stack.enter_context(databases(directory))
        services = {
            kind: stack.enter_context(gateway(url, kafka.bootstrap_servers))
            for kind, url in urls.items()
        }
        sides: dict[str, Side] = {
            f"{name}_{kind}": in_own_process(ask, service, path)
            for kind, service in services.items()
            for name, path in PATHS.items()
        }
        measured = measure(sides, rounds=ROUNDS)
        one_by_one = {
            f"{name}_{kind}": alone(service, path)
            for kind, service in services.items()
            for name, path in PATHS.items()
        }
    settings = {
        "connections": CONNECTIONS,
        "seconds": SECONDS,
        "rounds": ROUNDS,
        "fields_of_a_schema": FIELDS,
        "versions_of_full": MAX_SCHEMA_VERSIONS,
        "one_at_a_time": one_by_one,
    }
    title = f"One gateway, {CONNECTIONS} connections, a token with each request"
    report("gateway", measured, {}, title=title, settings=settings, unit="requests")
    print("one at a time:", json.dumps(one_by_one, indent=2))


if __name__ == "__main__":
    main()
