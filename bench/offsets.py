"""Commits over HTTP compared with Kafka's synchronous commits, and commits of 32 connections.

A gateway runs in a separate process, on SQLite and on PostgreSQL; each commit is durable before its
response. Baselines: a FastAPI route that parses the same body and does nothing, and a consumer of
confluent-kafka that commits with `asynchronous=False`. The clients run on the same machine, in
another process, with plain sockets, so that the servers dominate the measurement.
"""

import json
import multiprocessing
import select
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from bench.measure import Measured, Ratio, Side, in_own_process, measure, report
from bench.service import databases, running
from confluent_kafka import Consumer, KafkaException, TopicPartition
from fastapi import FastAPI

from sluiceway import Gateway
from sluiceway_gateway.cli.serve import bound_socket
from sluiceway_gateway.dev.embedded import KafkaServer, free_ports
from sluiceway_gateway.offsets.routes import CommitPut

SECONDS = 5.0
ROUNDS = 3
MANY = 32
CHANNEL, GROUP = "commits", "bench"
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
RATIOS = {
    # Ratios of times.
    "commit_latency_to_kafka": Ratio(side="kafka_1", to="sqlite_1", goal=1.5, at_most=True),
    "commit_latency_to_kafka_postgresql": Ratio(side="kafka_1", to="postgresql_1", goal=None),
    "reader_commit_latency_to_kafka": Ratio(side="kafka_1", to="reader_1", goal=None),
    "commits_per_s_32": Ratio(side="sqlite_32", to=None, goal=2_000),
    "commits_per_s_32_postgresql": Ratio(side="postgresql_32", to=None, goal=None),
    "commits_per_s_32_to_bare": Ratio(side="sqlite_32", to="bare_32", goal=None),
}


@dataclass(frozen=True, kw_only=True)
class Member:
    """A committing reader, with the head and the constant part of the body of its requests."""

    partition: int
    head: bytes
    body: dict[str, Any]

    def request(self, number: int) -> bytes:
        """Return the request of its commit with this number, one message after the previous one."""
        position = {"partition": self.partition, "offset": number, "record": 0}
        body = json.dumps(self.body | {"number": number, "positions": [position]}).encode()
        return self.head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server, its clients, and the number of the next commit."""

    port: int
    members: tuple[Member, ...]


def members(url: str, token: str) -> tuple[Member, ...]:
    """Attach a group of readers, one per partition."""
    with Gateway(url, token=token) as gateway:
        channel = gateway.channel(CHANNEL, SCHEMA, partitions=MANY)
    session = uuid.uuid4().hex
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as client:
        return tuple(member(client, channel.uid, session, index, token) for index in range(MANY))


def member(client: httpx.Client, uid: str, session: str, index: int, token: str) -> Member:
    place = {"group": GROUP, "index": index, "size": MANY}
    asked = {"uid": uid, "id": uuid.uuid4().hex, "session": session, "role": "reader"}
    response = client.post(f"/v1/channels/{CHANNEL}/endpoints", json=asked | place)
    response.raise_for_status()
    endpoint, connection = response.json()["endpoint"], response.json()["connection"]
    body = {name: endpoint[name] for name in ("id", "epoch", "generation")}
    return Member(
        partition=index,
        head=f"PUT /v1/channels/{CHANNEL}/groups/{GROUP}/offsets HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n".encode(),
        body={"uid": uid, "topic_id": connection["topic"]["id"], **body},
    )


def commit(target: Target, first: int) -> Measured:
    """Commit for some seconds, over one connection per member, each with one commit at a time."""
    done, numbers = 0, [first] * len(target.members)
    poll = select.epoll()
    sockets = {}
    for index in range(len(target.members)):
        connection = socket.create_connection(("127.0.0.1", target.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(connection, select.EPOLLIN)
        sockets[connection.fileno()] = (index, connection)
    started_s = time.perf_counter()
    for index, connection in sockets.values():
        connection.sendall(target.members[index].request(numbers[index]))
    waiting = len(sockets)
    buffers = dict.fromkeys(sockets, b"")
    while waiting:
        ended = time.perf_counter() - started_s > SECONDS
        for number, _event in poll.poll():
            index, connection = sockets[number]
            buffers[number] += connection.recv(65536)
            if not is_whole(buffers[number]):
                continue
            assert buffers[number].startswith(b"HTTP/1.1 200 "), buffers[number]
            buffers[number] = b""
            done += 1
            numbers[index] += 1
            if ended:
                waiting -= 1
            else:
                connection.sendall(target.members[index].request(numbers[index]))
    seconds = time.perf_counter() - started_s
    for _index, connection in sockets.values():
        connection.close()
    return Measured(records=done, seconds=seconds)


def is_whole(response: bytes) -> bool:
    """Whether a response is complete."""
    head, separator, body = response.partition(b"\r\n\r\n")
    if not separator:
        return False
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return len(body) >= int(length)


def kafka_commit(bootstrap_servers: str, topic: str, first: int) -> Measured:
    """Commit to Kafka sequentially and synchronously."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "log_level": 3,
        }
    )
    consumer.assign([TopicPartition(topic, 0)])
    # The first one waits for the coordinator, which a new broker has to create.
    deadline_s = time.monotonic() + 60
    while True:
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, first)], asynchronous=False)
            break
        except KafkaException:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
    done, started_s = 0, time.perf_counter()
    while time.perf_counter() - started_s < SECONDS:
        done += 1
        consumer.commit(offsets=[TopicPartition(topic, 0, first + done)], asynchronous=False)
    seconds = time.perf_counter() - started_s
    consumer.close()
    return Measured(records=done, seconds=seconds)


def reader_commit(url: str, token: str) -> Measured:
    """Commit with the client's reader."""
    with Gateway(url, token=token) as gateway:
        channel = gateway.channel(f"{CHANNEL}-read", SCHEMA)
        with channel.writer() as writer:
            writer.write([{"a": number} for number in range(20_000)])
        group = uuid.uuid4().hex
        with channel.reader(group=group, until="now") as reader:
            done, records, started_s = 0, iter(reader), time.perf_counter()
            while time.perf_counter() - started_s < SECONDS and next(records, None):
                reader.commit()
                done += 1
            return Measured(records=done, seconds=time.perf_counter() - started_s)


def serve_bare(port: int) -> None:
    """Serve a route that parses the same body, and does nothing."""
    app = FastAPI()

    @app.put("/v1/channels/{name}/groups/{group}/offsets")
    async def commit(name: str, group: str, body: CommitPut) -> dict[str, Any]:
        return {"group": group, "number": body.number, "channel": name}

    config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[bound_socket("127.0.0.1", port)])


@contextmanager
def bare() -> Iterator[int]:
    """Run that route in a separate process; yield its port."""
    (port,) = free_ports(1)
    process = multiprocessing.get_context("spawn").Process(target=serve_bare, args=(port,))
    process.start()
    try:
        deadline_s = time.monotonic() + 30
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.join(60)


class Numbers:
    """Numbers of commits, ascending over all turns."""

    def __init__(self) -> None:
        self._turns = 0

    def next(self) -> int:
        """Return the number of a turn's first commit."""
        self._turns += 1
        return self._turns * 1_000_000


def committing(port: int, asking: tuple[Member, ...], numbers: Numbers) -> Side:
    target = Target(port=port, members=asking)
    return lambda: in_own_process(commit, target, numbers.next())()


def main() -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = stack.enter_context(KafkaServer.start(directory / "kafka"))
        urls = stack.enter_context(databases(directory))
        services = {
            kind: stack.enter_context(running(url, kafka.bootstrap_servers))
            for kind, url in urls.items()
        }
        asking = {kind: members(each.url, each.token) for kind, each in services.items()}
        bare_port = stack.enter_context(bare())
        sqlite, numbers = services["sqlite"], Numbers()
        with Gateway(sqlite.url, token=sqlite.token) as gateway:
            topic = gateway.channel(CHANNEL).connection("read").topic_name
        sides: dict[str, Side] = {
            "kafka_1": lambda: in_own_process(
                kafka_commit, kafka.bootstrap_servers, topic, numbers.next()
            )(),
            "reader_1": in_own_process(reader_commit, sqlite.url, sqlite.token),
        }
        for kind, service in services.items():
            sides[f"{kind}_1"] = committing(service.port, asking[kind][:1], numbers)
            sides[f"{kind}_{MANY}"] = committing(service.port, asking[kind], numbers)
        sides["bare_1"] = committing(bare_port, asking["sqlite"][:1], numbers)
        sides[f"bare_{MANY}"] = committing(bare_port, asking["sqlite"], numbers)
        measured = measure(sides, rounds=ROUNDS)
    settings = {"connections": MANY, "seconds": SECONDS, "rounds": ROUNDS}
    title = "Commits, each durable before its response"
    report("offsets", measured, RATIOS, title=title, settings=settings, unit="commits")


if __name__ == "__main__":
    main()
