"""The simulated world: Kafka's log, the network, the clock, processes, and injected faults."""

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sluiceway.errors import SluicewayError
from sluiceway_gateway.core.errors import SluicewayGatewayError

START = datetime(2026, 1, 1, tzinfo=UTC)

Steps = Generator[None, None, Any]
"""The steps of a process, which may be interrupted or killed at each `yield`."""


class Interrupted(KeyboardInterrupt):
    """A signal, which reaches a driver between two of its steps."""


class Killed(BaseException):
    """The end of a killed process, in its synchronous code."""


class Record(NamedTuple):
    """A record in Kafka; all attempts write a logical record with the same `identity`."""

    identity: tuple[Any, ...]
    batch: str
    """The id of its batch."""


class Log:
    """A topic: by partition, all records ever written, and the start of the log."""

    def __init__(self, partitions: int) -> None:
        self.records: list[list[Record | None]] = [[] for _ in range(partitions)]
        self.appended: list[list[float]] = [[] for _ in range(partitions)]
        """By partition, the broker's times of the records."""
        self.starts = [0] * partitions
        self.seconds: float = 0

    def append(self, partition: int, record: Record | None) -> int:
        """Append a record, and return its offset."""
        self.records[partition].append(record)
        self.appended[partition].append(self.seconds)
        return len(self.records[partition]) - 1

    def add_partition(self) -> None:
        """Add an empty partition."""
        self.records.append([])
        self.appended.append([])
        self.starts.append(0)

    def lose(self, partition: int, start: int) -> dict[int, Record | None]:
        """Lose the records from an offset on, and return them by offset."""
        lost = dict(enumerate(self.records[partition][start:], start))
        del self.records[partition][start:], self.appended[partition][start:]
        return lost

    def watermarks(self) -> dict[int, int]:
        """Return the offset after the last record, by partition."""
        return {at: len(records) for at, records in enumerate(self.records)}


@dataclass(kw_only=True)
class Process:
    """A running process; if it is declared dead, it may continue as a zombie."""

    name: str
    steps: Steps
    over: bool = False
    declared_dead: bool = False
    error: BaseException | None = None
    result: Any = None
    interrupts: int = 0
    threads: list["Process"] = field(default_factory=list)
    """Its other threads, which end with it."""


@dataclass(kw_only=True)
class Message:
    """A request on its way to the gateway."""

    name: str
    handle: Callable[[], Any]
    responses: list[Any]


class Violation(Exception):
    """A violated property: its kind, and a description."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


@dataclass
class World:
    """The state of one schedule."""

    random: random.Random
    log: Log
    calm: bool = False
    """Whether faults have ended, so that all remaining work must finish."""
    calm_since: datetime | None = None
    seconds: float = 0
    network: list[Message] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    sleeping: list[tuple[float, Process]] = field(default_factory=list)
    """Processes with the times at which they start."""
    trace: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    ids: int = 0
    away_until: float = 0
    """Time until which Kafka is unreachable for clients."""
    gateway_away_until: float = 0
    """Time until which all requests and responses are lost."""
    running: Process | None = None
    """The process that takes a step."""

    @property
    def now(self) -> datetime:
        """The clock of the gateway."""
        return START + timedelta(seconds=self.seconds)

    @property
    def kafka_away(self) -> bool:
        """Whether clients cannot reach Kafka."""
        return not self.calm and self.seconds < self.away_until

    @property
    def gateway_away(self) -> bool:
        """Whether clients cannot reach the gateway."""
        return not self.calm and self.seconds < self.gateway_away_until

    def lose_gateway(self) -> None:
        """Lose requests and responses for a time."""
        self.gateway_away_until = self.seconds + self.random.randint(10, 60)

    def new_id(self, prefix: str) -> str:
        """Return a unique id."""
        self.ids += 1
        return f"{prefix}{self.ids}"

    def fault(self, name: str, probability: float) -> bool:
        """Return whether this fault happens now; none happens while `calm`."""
        if self.calm or self.random.random() >= probability:
            return False
        self.faults[name] += 1
        self.note(name)
        return True

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(text)

    def spawn(self, name: str, steps: Steps) -> Process:
        """Start a process."""
        process = Process(name=name, steps=steps)
        self.processes.append(process)
        return process

    def start_thread(self, steps: Steps, *, after_s: float) -> None:
        """Start a thread of the running process after a time; it ends with the process."""
        assert self.running is not None
        thread = Process(name="thread", steps=steps, threads=self.running.threads)
        self.running.threads.append(thread)
        self.sleeping.append((self.seconds + after_s, thread))

    def crash(self, process: Process) -> None:
        """Kill a process at its current step."""
        process.error = JobFailed("killed")
        process.steps.close()
        self._end(process)

    def interrupt(self, process: Process) -> None:
        """Raise Interrupted in a process, at its current step."""
        process.interrupts += 1
        self._advance(process, lambda: process.steps.throw(Interrupted()))

    def send(self, name: str, handle: Callable[[], Any]) -> list[Any]:
        """Send a request, which may be lost; return the list that will receive its response."""
        responses: list[Any] = []
        if not (self.gateway_away or self.fault("request lost", 0.06)):
            self.network.append(Message(name=name, handle=handle, responses=responses))
        return responses

    def call(self, name: str, handle: Callable[[], Any], retries: int | None = None) -> Steps:
        """Repeat a request until it is answered; raise TimeoutError after `retries` repeats."""
        repeats = 0
        while True:
            responses = self.send(name, handle)
            for _ in range(self.random.randint(4, 25) if not self.calm else 40):
                yield
                if responses:
                    if isinstance(responses[0], Exception):
                        raise responses[0]
                    return responses[0]
                if self.gateway_away:
                    # Connections break.
                    break
            repeats += 1
            if retries is not None and repeats > retries and not self.calm:
                raise TimeoutError(name)

    def deliver(self, at: int) -> None:
        """Handle a request, perhaps twice; its response may be lost."""
        message = self.network[at]
        if not self.fault("request repeated", 0.1):
            self.network[at] = self.network[-1]
            self.network.pop()
        try:
            response = message.handle()
        except SluicewayGatewayError as error:
            self.note(f"{message.name}: {error.code}")
            response = error
        else:
            self.note(message.name)
        if not (self.gateway_away or self.fault("response lost", 0.1)):
            message.responses.append(response)

    def step(self) -> None:
        """Advance one process or one request by a step."""
        if self.random.random() < 0.05:
            self.seconds += self.random.randint(1, 5)
        if self.fault("clock ahead", 0.003):
            self.seconds += self.random.randint(30, 90)
        if self.log.seconds != self.seconds:
            self.log.seconds = self.seconds
            self.processes += [thread for due, thread in self.sleeping if due <= self.seconds]
            self.sleeping = [sleeper for sleeper in self.sleeping if sleeper[0] > self.seconds]
        waiting = len(self.network)
        if not waiting and not self.processes:
            return
        at = int(self.random.random() * (waiting + len(self.processes)))
        # Some requests are delayed for a long time.
        if at < waiting:
            if self.calm or self.random.random() < 0.7:
                self.deliver(at)
            return
        process = self.processes[at - waiting]
        if not process.over:
            self._advance(process)
        if process.over:
            self.processes.remove(process)

    def _end(self, process: Process) -> None:
        process.over = True
        for thread in process.threads if process not in process.threads else ():
            if not thread.over:
                thread.over = True
                thread.steps.close()

    def _advance(self, process: Process, step: Callable[[], None] | None = None) -> None:
        self.running = process
        try:
            if step is None:
                next(process.steps)
            else:
                step()
        except StopIteration as end:
            process.result = end.value
            self._end(process)
        except (
            SluicewayError,
            SluicewayGatewayError,
            TimeoutError,
            JobFailed,
            Interrupted,
        ) as error:
            process.error = error
            self._end(process)
            self.note(f"{process.name} failed: {type(error).__name__}")


class JobFailed(Exception):
    """A driver gave up its run; its supervisor starts the next one."""


class JobRefused(JobFailed):
    """The gateway refused the job for good, as designed."""


def pause(world: World, most: int) -> Steps:
    """Wait for up to `most` steps."""
    for _ in range(world.random.randint(0, most)):
        yield


def offsets(intervals: Iterable[tuple[int, int]]) -> Iterable[int]:
    """Yield the offsets in intervals."""
    for first, end in intervals:
        yield from range(first, end)
