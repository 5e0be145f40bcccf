"""Cost of 200 open dashboards for a gateway, idle and with 1,000 active endpoints.

A gateway runs in a separate process on SQLite, with its loops and a real broker; 1,000 channels of
one partition. First nothing changes. Then each channel has a reader that sends a heartbeat every
two seconds with new counters and positions, and commits every five. Both are measured without
streams and with 200 compressed streams of the whole list, which another process reads.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.endpoints import Instance, Line, Process, cpu_s, sending_heartbeats
from bench.service import Service, running

from sluiceway import Gateway
from sluiceway_gateway.dev.embedded import KafkaServer

CHANNELS = 1_000
STREAMS = 200
SESSIONS = 50
SECONDS = 15.0
COMMIT_S = 5.0
"""How often a reader commits; all beat as in `bench.endpoints`."""
SAMPLE_S = 5.0
"""How often a gateway samples channels."""
GROUP = "readers"
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
GOALS = {"watch_cores": 0.1, "watch_busy_cores": 0.5}


class _Stream:
    """A stream whose events are counted."""

    def __init__(self) -> None:
        self.bytes = 0
        self.events = 0
        self._inflating = zlib.decompressobj(zlib.MAX_WBITS | 16)

    async def read(self, port: int, token: str, *, inflates: bool) -> None:
        """Read until cancelled. Only one of many inflates: browsers run elsewhere."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = ("GET /v1/status/events HTTP/1.1", "Host: bench", "Accept-Encoding: gzip")
        lines = (*head, f"Authorization: Bearer {token}", "", "")
        writer.write("\r\n".join(lines).encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        while await reader.readline() != b"\r\n":
            pass
        while size := int(await reader.readline(), 16):
            data = await reader.readexactly(size + 2)
            self.bytes += size
            if inflates:
                self.events += self._inflating.decompress(data[:-2]).count(b"\nevent: ")


def read_streams(port: int, token: str, end: Any, results: Any) -> None:
    """Read all streams until `end` is set; put what one of them received into `results`."""

    async def read() -> None:
        streams = [_Stream() for _ in range(STREAMS)]
        tasks = [
            asyncio.create_task(each.read(port, token, inflates=each is streams[0]))
            for each in streams
        ]
        while not (done := await asyncio.to_thread(end.wait, 0.5)):
            assert not any(each.done() for each in tasks), "a stream ended"
            if all(each.bytes > 1_000 for each in streams):
                results.put("ready")
        assert done
        results.put((streams[0].bytes, streams[0].events))
        for each in tasks:
            each.cancel()

    asyncio.run(read())


@contextmanager
def watching(service: Service) -> Iterator[list[int]]:
    """Have all streams read while the block runs; give bytes and events of one at the end."""
    context = multiprocessing.get_context("spawn")
    end, results = context.Event(), context.Queue()
    arguments = (service.port, service.token, end, results)
    process = context.Process(target=read_streams, args=arguments)
    process.start()
    found: list[int] = []
    try:
        assert results.get(timeout=60) == "ready"
        yield found
        end.set()
        while (last := results.get(timeout=60)) == "ready":
            pass
        found.extend(last)
    finally:
        end.set()
        process.join(60)


def created(service: Service) -> dict[str, str]:
    """Create the channels, wait for their topics, and return their uids by name."""
    names = [f"c{number:04}" for number in range(CHANNELS)]
    with Gateway(service.url, token=service.token) as client:
        for name in names:
            client.channel(name, SCHEMA, wait_s=300)
        return {name: client.channel(name).uid for name in names}


@dataclass
class Reader:
    """A reader of one channel, for its commits."""

    channel: str
    uid: str
    id: str
    epoch: int
    generation: int
    topic_id: str
    commits: int = 0

    def commit(self, line: Line) -> None:
        """Commit the next position."""
        self.commits += 1
        body = {
            **{name: getattr(self, name) for name in ("uid", "id", "epoch", "generation")},
            "topic_id": self.topic_id,
            "number": self.commits,
            "positions": [{"partition": 0, "offset": 37 * self.commits, "record": 0}],
        }
        line.request("PUT", f"/v1/channels/{self.channel}/groups/{GROUP}/offsets", body)


@dataclass
class Job:
    """A process with readers of several channels."""

    process: Process
    committing: Line
    readers: list[Reader] = field(default_factory=list)

    def attach(self, channel: str, uid: str) -> None:
        """Attach a reader of a channel."""
        body = {
            "uid": uid,
            "id": uuid.uuid4().hex,
            "session": self.process.session,
            "role": "reader",
            "group": GROUP,
            "index": 0,
            "size": 1,
        }
        path = f"/v1/channels/{channel}/endpoints"
        response = json.loads(self.committing.request("POST", path, body)[2])
        endpoint, epoch = response["endpoint"], response["endpoint"]["epoch"]
        self.process.endpoints.append(Instance(body["id"], epoch, 0))
        self.readers.append(
            Reader(
                *(channel, uid, body["id"], epoch),
                generation=endpoint["generation"],
                topic_id=response["connection"]["topic"]["id"],
            )
        )


def attached(service: Service, uids: dict[str, str]) -> list[Job]:
    """Attach a reader to each channel."""
    jobs = [Job(Process(Line(service)), Line(service)) for _ in range(SESSIONS)]

    def attach(number: int) -> None:
        for name in list(uids)[number::SESSIONS]:
            jobs[number].attach(name, uids[name])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(attach, range(SESSIONS)))
    return jobs


def work(service: Service, uids: dict[str, str], ready: Any, end: Any) -> None:
    """Send heartbeats and commits of all readers until `end` is set."""
    jobs = attached(service, uids)
    begun_s = time.perf_counter()

    def commit(number: int) -> None:
        own = jobs[number]
        total = len(own.readers)
        for count in itertools.count():
            due_s = begun_s + COMMIT_S * (count + number / SESSIONS) / total
            if end.wait(max(0.0, due_s - time.perf_counter())):
                return
            own.readers[count % total].commit(own.committing)

    with (
        sending_heartbeats([each.process for each in jobs]),
        ThreadPoolExecutor(SESSIONS) as threads,
    ):
        commits = [threads.submit(commit, number) for number in range(SESSIONS)]
        ready.set()
        for each in commits:
            each.result()


@contextmanager
def working(service: Service, uids: dict[str, str]) -> Iterator[None]:
    """Run the readers in another process, in the block."""
    context = multiprocessing.get_context("spawn")
    ready, end = context.Event(), context.Event()
    process = context.Process(target=work, args=(service, uids, ready, end))
    process.start()
    try:
        while not ready.wait(1):
            assert process.is_alive(), "the readers did not attach"
        yield
    finally:
        end.set()
        process.join(60)
        assert process.exitcode == 0


def cores(service: Service, seconds: float, name: str) -> float:
    """Print and return the gateway's CPU time per second."""
    # Wait for a steady state.
    time.sleep(2 * SAMPLE_S)
    begun_s, used_s = time.perf_counter(), cpu_s(service.pid)
    time.sleep(seconds)
    found = (cpu_s(service.pid) - used_s) / (time.perf_counter() - begun_s)
    print(f"{name}: {found:.3f} cores", flush=True)
    return found


def measured(service: Service, seconds: float) -> dict[str, float]:
    """Return the figures; those of `GOALS` first."""
    uids = created(service)
    found = {"idle_cores": cores(service, seconds, "idle")}
    with watching(service):
        found["watch_cores"] = cores(service, seconds, "idle, watched")
    with working(service, uids):
        found["busy_cores"] = cores(service, seconds, "busy")
        begun_s = time.perf_counter()
        with watching(service) as received:
            found["busy_watched_cores"] = cores(service, seconds, "busy, watched")
        took_s = time.perf_counter() - begun_s
    found["watch_busy_cores"] = found["busy_watched_cores"] - found["busy_cores"]
    found["stream_kb_per_s"] = received[0] / took_s / 1000
    found["stream_events_per_s"] = received[1] / took_s
    return found


def watched(seconds: float = SECONDS) -> dict[str, float]:
    """Run a broker and a gateway, and return the figures."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = stack.enter_context(KafkaServer.start(directory / "kafka"))
        url = f"sqlite:///{directory / 'gateway.db'}"
        return measured(stack.enter_context(running(url, kafka.bootstrap_servers)), seconds)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=SECONDS)
    print(json.dumps(watched(arguments.parse_args().seconds), indent=2))
