"""pypz channels for tests: a stand-in for pypz's ports, and readers and writers of one channel."""

import json
import logging
import uuid
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from sluiceway import Channel, Gateway, Heartbeat
from sluiceway.pypz import KafkaChannelReader, KafkaChannelWriter
from waiting import collect, until

AnyChannel = TypeVar("AnyChannel", KafkaChannelReader, KafkaChannelWriter)


class StandinPort:
    """A port with the methods that channels call."""

    def __init__(
        self,
        name: str,
        schema: Any = None,
        *,
        group: str | None = None,
        index: int = 0,
        size: int = 1,
        group_mode: bool = False,
    ) -> None:
        self.get_full_name = lambda: name
        self.get_logger = lambda: logging.getLogger("standin")
        self.get_schema = lambda: schema
        self.get_group_name = lambda: group
        self.get_group_index = lambda: index
        self.get_group_size = lambda: size
        self.is_principal = lambda: index == 0
        self.is_in_group_mode = lambda: group_mode


FIELD = {"name": "demoText", "type": "string"}
SCHEMA = json.dumps({"type": "record", "name": "DemoRecord", "fields": [FIELD]})


def demo(count: int, first: int = 0) -> list[dict[str, str]]:
    return [{"demoText": f"record_{number}"} for number in range(first, first + count)]


class QuickReader(KafkaChannelReader):
    """A reader with short heartbeat intervals and short timeouts."""

    DefaultStatusThreadIntervalInMs = 100
    DataConsumerTimeoutInMs = InitialDataConsumerTimeoutInMs = 200


class QuickWriter(KafkaChannelWriter):
    DefaultStatusThreadIntervalInMs = 100


def take(reader: KafkaChannelReader, count: int) -> list[Any]:
    """Read until there are `count` records."""
    return collect(lambda _: reader.invoke_read_records(), count)


class Bench:
    """Factory of readers and writers of one channel; closes them at the end."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.url = url
        self.name = f"pipeline.reader-{uuid.uuid4().hex[:8]}.input_port"
        self._stack = stack
        self._gateway = stack.enter_context(Gateway(url))

    def reader(
        self, kind: type[KafkaChannelReader] = QuickReader, *, index: int = 0, **options: Any
    ) -> KafkaChannelReader:
        name = f"{self.name}_{index - 1}" if index else self.name
        config = {"max_poll_records": 500} | options.pop("config", {})
        return self._configured(kind, name, config=config, index=index, **options)

    def writer(
        self,
        name: str = "pipeline.writer.output_port",
        *,
        kind: type[KafkaChannelWriter] = QuickWriter,
        **options: Any,
    ) -> KafkaChannelWriter:
        return self._configured(kind, name, **options)

    def _configured(
        self,
        kind: type[AnyChannel],
        name: str,
        *,
        config: dict[str, Any] | None = None,
        schema: Any = SCHEMA,
        location: str | None = None,
        silent: bool = False,
        **place: Any,
    ) -> AnyChannel:
        channel = kind(self.name, StandinPort(name, schema, **place), silent_mode=silent)
        channel.set_location(self.url if location is None else location)
        channel.invoke_configure_channel(config or {})
        # Tests break some channels on purpose.
        self._stack.enter_context(suppress(Exception))
        self._stack.callback(channel.invoke_close_channel)
        return channel

    def pair(
        self,
        kind: type[KafkaChannelWriter] = QuickWriter,
        *,
        writer_location: str | None = None,
        **config: Any,
    ) -> tuple[KafkaChannelReader, KafkaChannelWriter]:
        """Return an open reader and an open writer."""
        reader = self.reader(config=config)
        writer = self.writer(kind=kind, location=writer_location)
        assert reader.invoke_resource_creation()
        until(reader.invoke_open_channel)
        until(writer.invoke_open_channel)
        return reader, writer

    def endpoint_id(self, role: str) -> str:
        """Return the id of the only live reader or writer."""
        endpoints = self.channel().endpoints()
        (id_,) = (endpoint.id for endpoint in endpoints if endpoint.lives and endpoint.role == role)
        return id_

    def channel(self) -> Channel:
        """Return the channel at the gateway."""
        return self._gateway.channel(self.name)

    def create_channel(self, partitions: int = 1) -> Channel:
        """Create the channel with a short heartbeat interval."""
        heartbeat = Heartbeat(interval_ms=200, timeout_ms=60_000)
        return self._gateway.channel(self.name, SCHEMA, partitions=partitions, heartbeat=heartbeat)
