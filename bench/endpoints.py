"""CPU time of a gateway with heartbeats of 2,000 endpoints, and latency of heartbeats and statuses.

`sluiceway serve` runs in a separate process, on SQLite, with its loops and a real broker. 2,000
endpoints send heartbeats every two seconds, in 100 sessions with a connection each. Half of them
are the readers of one group of a channel with 1,000 partitions, the others writers and readers of
ten channels. Each heartbeat has new counters and, for readers, new positions. The clients run in
another process; CPU time is the gateway's.
"""

import argparse
import http.client
import json
import os
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import RESULTS, machine
from bench.service import Service, running
from rich.console import Console
from rich.table import Table

from sluiceway import Gateway
from sluiceway_gateway.dev.embedded import KafkaServer

SESSIONS = 100
IN_A_SESSION = 20
INTERVAL_S = 2.0
SECONDS = 60.0
STATUSES = 300
WIDE, OTHERS = "wide", tuple(f"other-{number}" for number in range(10))
PARTITIONS = 1_000
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
GOALS = {
    "heartbeat_cores": 0.25,
    "heartbeat_p99_ms": 50.0,
    "status_p99_ms": 100.0,
    "status_unchanged_p99_ms": 10.0,
}


class Line:
    """A persistent connection, with one request at a time."""

    def __init__(self, service: Service) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
        self._token = service.token

    def request(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[float, http.client.HTTPResponse, bytes]:
        """Send a request; return the time until the end of the response, in milliseconds."""
        data = None if body is None else json.dumps(body)
        given = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        started_s = time.perf_counter()
        try:
            self._http.request(method, path, body=data, headers=given | headers)
            response = self._http.getresponse()
        except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
            # It was idle for longer than a server keeps it open.
            self._http.close()
            self._http.request(method, path, body=data, headers=given | headers)
            response = self._http.getresponse()
        text = response.read()
        took_ms = (time.perf_counter() - started_s) * 1000
        assert response.status < 400, text
        return took_ms, response, text


@dataclass
class Instance:
    """An endpoint, and the values of its next heartbeat."""

    id: str
    epoch: int
    partition: int | None
    records: int = 0

    def report(self) -> dict[str, Any]:
        """Return a report with higher counters and positions."""
        self.records += 37
        kind, count = ("Read", "receivedRecordCount")
        report: dict[str, Any] = {
            "id": self.id,
            "epoch": self.epoch,
            "state": "started",
            "counters": {
                "records": self.records,
                count: self.records,
                f"averageTimePer{kind}CycleMs": self.records % 1000 / 7,
                f"averageRecordPer{kind}Cycle": self.records % 100,
                f"averageTimePer{kind}RecordMs": self.records % 1000 / 7000,
            },
            "payload": None,
        }
        if self.partition is not None:
            report["positions"] = {str(self.partition): [self.records, 0]}
        return report


@dataclass
class Process:
    """A client's process: its session and its endpoints."""

    line: Line
    session: str = field(default_factory=lambda: uuid.uuid4().hex)
    endpoints: list[Instance] = field(default_factory=list)
    beats: int = 0

    def attach(self, channel: str, uid: str, role: str, **place: Any) -> None:
        """Attach another endpoint."""
        id_ = uuid.uuid4().hex
        body = {"uid": uid, "id": id_, "session": self.session, "role": role, **place}
        _, _, text = self.line.request("POST", f"/v1/channels/{channel}/endpoints", body)
        endpoint = json.loads(text)["endpoint"]
        reads = role == "reader"
        partition = endpoint["partitions"][0] if reads else None
        self.endpoints.append(Instance(id_, endpoint["epoch"], partition))

    def send_heartbeat(self) -> float:
        """Send a heartbeat for all endpoints; return the time of the response."""
        self.beats += 1
        body = {
            "session": self.session,
            "beat": self.beats,
            "endpoints": [each.report() for each in self.endpoints],
        }
        took_ms, _, text = self.line.request("POST", "/v1/heartbeats", body)
        assert {each["status"] for each in json.loads(text)["endpoints"]} == {"ok"}
        return took_ms


def attached(service: Service) -> list[Process]:
    """Create the channels and attach all endpoints."""
    uids: dict[str, str] = {}
    with Gateway(service.url, token=service.token) as client:
        for name in (WIDE, *OTHERS):
            partitions = PARTITIONS if name == WIDE else 4
            uids[name] = client.channel(name, SCHEMA, partitions=partitions, wait_s=300).uid
    processes = [Process(Line(service)) for _ in range(SESSIONS)]

    def attach(number: int) -> None:
        process = processes[number]
        for each in range(IN_A_SESSION):
            index = number * IN_A_SESSION + each
            if each % 2:
                place = {"group": "readers", "index": index // 2, "size": PARTITIONS}
                process.attach(WIDE, uids[WIDE], "reader", **place)
            else:
                name = OTHERS[index // 2 % len(OTHERS)]
                process.attach(name, uids[name], "reader" if index % 4 else "writer")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(attach, range(SESSIONS)))
    return processes


@contextmanager
def sending_heartbeats(processes: Sequence[Process]) -> Iterator[list[float]]:
    """Send heartbeats of all sessions, spread over the interval; yield their times."""
    took_ms: list[float] = []
    failed: list[BaseException] = []
    stopping = threading.Event()
    begun_s = time.perf_counter()

    def run(number: int) -> None:
        due_s = begun_s + INTERVAL_S * number / len(processes)
        while not stopping.wait(max(0.0, due_s - time.perf_counter())):
            try:
                took_ms.append(processes[number].send_heartbeat())
            except BaseException as error:
                failed.append(error)
                raise
            due_s += INTERVAL_S

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(processes))]
    for each in threads:
        each.start()
    try:
        yield took_ms
    finally:
        stopping.set()
        for each in threads:
            each.join()
        assert not failed, failed[0]


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def measured(service: Service, processes: Sequence[Process], seconds: float) -> dict[str, float]:
    """Return the figures: first for heartbeats alone, then with requests for the status."""
    with sending_heartbeats(processes) as took_ms:
        # Wait for all to start, and for samples.
        time.sleep(3 * INTERVAL_S)
        first, begun_s, used_s = len(took_ms), time.perf_counter(), cpu_s(service.pid)
        time.sleep(seconds)
        beats, cores = (
            took_ms[first:],
            (cpu_s(service.pid) - used_s) / (time.perf_counter() - begun_s),
        )
        new, same, size = status_times(service)
    return {
        "heartbeat_cores": cores,
        "heartbeat_p99_ms": p99(beats),
        "status_p99_ms": p99(new),
        "status_unchanged_p99_ms": p99(same),
        "heartbeat_median_ms": statistics.median(beats),
        "heartbeats_per_s": len(beats) / seconds,
        "status_median_ms": statistics.median(new),
        "status_unchanged_median_ms": statistics.median(same),
        "status_bytes": size,
    }


def status_times(service: Service) -> tuple[list[float], list[float], int]:
    """Request the status after each change, and then the unchanged one."""
    line, sender = Line(service), Process(Line(service))
    with Gateway(service.url, token=service.token) as client:
        sender.attach(WIDE, client.channel(WIDE).uid, "writer")
    path = f"/v1/channels/{WIDE}/status"
    new, same, size, tag = [], [], 0, ""
    for number in range(STATUSES):
        sender.beats += 1
        report = sender.endpoints[0].report() | {"payload": {"number": number}}
        body = {"session": sender.session, "beat": sender.beats, "endpoints": [report]}
        sender.line.request("POST", "/v1/heartbeats", body)
        took_ms, response, text = line.request("GET", path)
        new.append(took_ms)
        assert response.headers["ETag"] != tag
        tag, size = response.headers["ETag"], len(text)
        took_ms, response, _ = line.request("GET", path, **{"If-None-Match": tag})
        if response.status == 304:
            same.append(took_ms)
    assert len(same) > STATUSES / 2
    return new, same, size


def report(figures: dict[str, float], settings: dict[str, Any], *, written: bool) -> None:
    """Print the figures and, after a complete run, write `results/endpoints.json`."""
    table = Table("figure", title="2,000 endpoints in 100 sessions, one gateway on SQLite")
    for heading in ("measured", "limit"):
        table.add_column(heading, justify="right")
    for name, value in figures.items():
        goal = GOALS.get(name)
        style = "white" if goal is None else "green" if value <= goal else "red"
        table.add_row(name, f"[{style}]{value:,.3f}[/]", "" if goal is None else f"{goal:g}")
    Console().print(table)
    if not written:
        return
    result = {
        "name": "endpoints",
        "ratios": {name: round(figures[name], 3) for name in GOALS},
        "goals": GOALS,
        "at_most": list(GOALS),
        "figures": {name: round(value, 3) for name, value in figures.items() if name not in GOALS},
        "settings": settings,
        "machine": machine(),
    }
    (RESULTS / "endpoints.json").write_text(json.dumps(result, indent=2) + "\n")


def main() -> None:
    """Measure and report; a shorter run writes no results."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=SECONDS)
    seconds = arguments.parse_args().seconds
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = stack.enter_context(KafkaServer.start(directory / "kafka"))
        url = f"sqlite:///{directory / 'gateway.db'}"
        service = stack.enter_context(running(url, kafka.bootstrap_servers))
        figures = measured(service, attached(service), seconds)
    settings = {
        "sessions": SESSIONS,
        "endpoints": SESSIONS * IN_A_SESSION,
        "interval_s": INTERVAL_S,
        "seconds": seconds,
        "status_of": f"{PARTITIONS} readers of {PARTITIONS} partitions, during heartbeats of all",
        "statuses": STATUSES,
    }
    report(figures, settings, written=seconds == SECONDS)


if __name__ == "__main__":
    main()
