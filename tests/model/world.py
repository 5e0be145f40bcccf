"""The simulated world: Kafka's log, the network, the clock, processes, and what went wrong."""

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sluiceway_gateway.errors import SluicewayGatewayError

START = datetime(2026, 1, 1, tzinfo=UTC)

Steps = Generator[None, None, Any]
"""A process: it may be interrupted, for ever, wherever it yields."""


class Record(NamedTuple):
    """A record in Kafka; `identity` is what a logical record has in all attempts."""

    identity: tuple[Any, ...]
    key: str


class Log:
    """A topic: by partition the records that were ever written, and where the log starts."""

    def __init__(self, partitions: int) -> None:
        self.records: list[list[Record | None]] = [[] for _ in range(partitions)]
        self.starts = [0] * partitions

    def append(self, partition: int, record: Record | None) -> int:
        """Return the offset of the new record."""
        self.records[partition].append(record)
        return len(self.records[partition]) - 1

    def watermarks(self) -> dict[int, int]:
        """Return by partition the offset after the last record."""
        return {at: len(each) for at, each in enumerate(self.records)}


@dataclass(kw_only=True)
class Process:
    """A running process; one that is declared dead may go on as a zombie."""

    name: str
    steps: Steps
    over: bool = False
    declared_dead: bool = False
    error: Exception | None = None
    result: Any = None


@dataclass(kw_only=True)
class Message:
    """A request on its way to the gateway."""

    name: str
    handle: Callable[[], Any]
    responses: list[Any]


class Violation(Exception):
    """A property that does not hold: its kind, and what was seen."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


@dataclass
class World:
    """Everything that one schedule consists of."""

    random: random.Random
    log: Log
    calm: bool = False
    """No more faults: all that is left must come to an end."""
    seconds: float = 0
    network: list[Message] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    ids: int = 0

    @property
    def now(self) -> datetime:
        """The clock of the gateway."""
        return START + timedelta(seconds=self.seconds)

    def new_id(self, prefix: str) -> str:
        """Return an id that nothing else has."""
        self.ids += 1
        return f"{prefix}{self.ids}"

    def fault(self, name: str, probability: float) -> bool:
        """Whether this fault happens now; none does in the calm."""
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

    def crash(self, process: Process) -> None:
        """End a process where it is."""
        process.over = True
        process.error = JobFailed("killed")
        process.steps.close()

    def send(self, name: str, handle: Callable[[], Any]) -> list[Any]:
        """Send a request, which may get lost; return the list that its response will be in."""
        responses: list[Any] = []
        if not self.fault("request lost", 0.06):
            self.network.append(Message(name=name, handle=handle, responses=responses))
        return responses

    def call(self, name: str, handle: Callable[[], Any], patience: int | None = None) -> Steps:
        """Repeat a request until it is answered; after `patience` repeats, raise TimeoutError."""
        repeats = 0
        while True:
            responses = self.send(name, handle)
            for _ in range(self.random.randint(4, 25) if not self.calm else 40):
                yield
                if responses:
                    if isinstance(responses[0], Exception):
                        raise responses[0]
                    return responses[0]
            repeats += 1
            if patience is not None and repeats > patience and not self.calm:
                raise TimeoutError(name)

    def deliver(self, at: int) -> None:
        """Handle a request, once or once more; its response may get lost."""
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
        if not self.fault("answer lost", 0.1):
            message.responses.append(response)

    def step(self) -> None:
        """Let one process or one request go a step further."""
        if self.random.random() < 0.05:
            self.seconds += self.random.randint(1, 5)
        if self.fault("clock ahead", 0.003):
            self.seconds += self.random.randint(30, 90)
        waiting = len(self.network)
        if not waiting and not self.processes:
            return
        at = self.random.randrange(waiting + len(self.processes))
        # Some requests stay on their way for long.
        if at < waiting:
            if self.calm or self.random.random() < 0.7:
                self.deliver(at)
            return
        process = self.processes[at - waiting]
        if not process.over:
            self._advance(process)
        if process.over:
            self.processes.remove(process)

    def _advance(self, process: Process) -> None:
        try:
            next(process.steps)
        except StopIteration as end:
            process.over = True
            process.result = end.value
        except (SluicewayGatewayError, TimeoutError, JobFailed) as error:
            process.over = True
            process.error = error
            self.note(f"{process.name} failed: {type(error).__name__}")


class JobFailed(Exception):
    """A driver gives its run up; its supervisor starts the next one."""


class JobRefused(JobFailed):
    """The job was told that it cannot be done: by design, and for good."""


def pause(world: World, most: int) -> Steps:
    """Wait for some steps."""
    for _ in range(world.random.randint(0, most)):
        yield


def offsets(intervals: Iterable[tuple[int, int]]) -> Iterable[int]:
    """Return the offsets of intervals, one by one."""
    for first, end in intervals:
        yield from range(first, end)
