"""pypz channels for tests, with short intervals, at the session's gateway."""

import contextlib
import itertools
import json
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pypz_standins import StandinPort
from sluiceway import Channel, Gateway, Heartbeat
from sluiceway.pypz import KafkaChannelReader, KafkaChannelWriter

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "DemoRecord",
        "fields": [{"name": "demoText", "type": "string"}],
    }
)


def demo(count: int, first: int = 0) -> list[dict[str, str]]:
    return [{"demoText": f"record_{number}"} for number in range(first, first + count)]


class QuickReader(KafkaChannelReader):
    """Creates channels with quick heartbeats; calls without records return soon."""

    DefaultStatusThreadIntervalInMs = 100
    DataConsumerTimeoutInMs = InitialDataConsumerTimeoutInMs = 200


class QuickWriter(KafkaChannelWriter):
    DefaultStatusThreadIntervalInMs = 100


def until(done: Callable[[], Any], timeout_s: float = 30.0) -> None:
    """Call repeatedly until it is done, as an executor of pypz does."""
    deadline_s = time.monotonic() + timeout_s
    pause = iter(itertools.chain([0.01] * 10, itertools.repeat(0.05)))
    while not done():
        assert time.monotonic() < deadline_s, "it did not come to its end"
        time.sleep(next(pause))


def take(reader: KafkaChannelReader, count: int) -> list[Any]:
    """Read a number of records."""
    records: list[Any] = []

    def taken() -> bool:
        records.extend(reader.invoke_read_records())
        return len(records) >= count

    until(taken)
    return records


class Bench:
    """Creates readers and writers of one channel, and closes them at the end."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.url = url
        self.name = f"pipeline.reader-{uuid.uuid4().hex[:8]}.input_port"
        self._stack = stack
        self._gateway = stack.enter_context(Gateway(url))

    def reader(
        self,
        kind: type[KafkaChannelReader] = QuickReader,
        *,
        config: dict[str, Any] | None = None,
        schema: Any = SCHEMA,
        location: str | None = None,
        silent: bool = False,
        **place: Any,
    ) -> KafkaChannelReader:
        index = place.get("index", 0)
        name = f"{self.name}_{index - 1}" if index else self.name
        made = kind(self.name, StandinPort(name, schema, **place), silent_mode=silent)
        made.set_location(self.url if location is None else location)
        made.invoke_configure_channel({"max_poll_records": 500} | (config or {}))
        self._stack.callback(_let_go, made)
        return made

    def writer(
        self,
        name: str = "pipeline.writer.output_port",
        *,
        kind: type[KafkaChannelWriter] = QuickWriter,
        schema: Any = SCHEMA,
        config: dict[str, Any] | None = None,
        silent: bool = False,
        **place: Any,
    ) -> KafkaChannelWriter:
        made = kind(self.name, StandinPort(name, schema, **place), silent_mode=silent)
        made.set_location(self.url)
        made.invoke_configure_channel(config or {})
        self._stack.callback(_let_go, made)
        return made

    def pair(
        self, kind: type[KafkaChannelWriter] = QuickWriter, **config: Any
    ) -> tuple[KafkaChannelReader, KafkaChannelWriter]:
        """Return an open reader and an open writer."""
        reader, writer = self.reader(config=config), self.writer(kind=kind)
        assert reader.invoke_resource_creation()
        until(reader.invoke_open_channel)
        until(writer.invoke_open_channel)
        return reader, writer

    def channel(self) -> Channel:
        """Return the channel at the gateway."""
        return self._gateway.channel(self.name)

    def quick(self, partitions: int = 1) -> Channel:
        """Create the channel beforehand, with a short heartbeat timeout."""
        heartbeat = Heartbeat(interval_ms=100, timeout_ms=1000)
        return self._gateway.channel(self.name, SCHEMA, partitions=partitions, heartbeat=heartbeat)


def _let_go(channel: Any) -> None:
    # Tests break some of them on purpose.
    with contextlib.suppress(Exception):
        channel.invoke_close_channel()
