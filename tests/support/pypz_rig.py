"""pypz channels for tests: stand-ins for pypz's ports, and readers and writers of one channel."""

import contextlib
import json
import logging
import types
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest

from relay import Relay
from sluiceway import Channel, Gateway, Heartbeat
from sluiceway.pypz import ChannelStatus, KafkaChannelReader, KafkaChannelWriter
from waiting import until

LOGGER = logging.getLogger("standin")


class PortSteps:
    """The steps of a port by public names; pypz's executor takes them through its hooks."""

    _pre_execution: Any
    _on_resource_creation: Any
    _on_port_open: Any
    _on_port_close: Any
    _on_resource_deletion: Any

    def prepare(self) -> None:
        self._pre_execution()

    def create_resource(self) -> bool:
        return bool(self._on_resource_creation())

    def open(self) -> bool:
        return bool(self._on_port_open())

    def close(self) -> bool:
        return bool(self._on_port_close())

    def delete_resource(self) -> bool:
        return bool(self._on_resource_deletion())


class StandinPort(PortSteps):
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
        self.name, self.schema = name, schema
        self.group, self.index, self.size, self.group_mode = group, index, size, group_mode

    def get_full_name(self) -> str:
        return self.name

    def get_logger(self) -> logging.Logger:
        return LOGGER

    def get_schema(self) -> Any:
        return self.schema

    def get_group_name(self) -> str | None:
        return self.group

    def get_group_index(self) -> int:
        return self.index

    def get_group_size(self) -> int:
        return self.size

    def is_principal(self) -> bool:
        return self.index == 0

    def is_in_group_mode(self) -> bool:
        return self.group_mode


class StandinInputPort(StandinPort):
    """An input port with one reader."""

    def __init__(
        self,
        *args: Any,
        location: str,
        writers: int,
        config: dict[str, Any] | None = None,
        sync_connections_open: bool = False,
        sequential_mode_enabled: bool = False,
        channel_reader_type: type[KafkaChannelReader] = KafkaChannelReader,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.location, self.writers, self.config = location, writers, config or {}
        self.all_open, self.sequential = sync_connections_open, sequential_mode_enabled
        self.channel_reader_type = channel_reader_type
        self.channel: KafkaChannelReader
        self.connected = False

    def _pre_execution(self) -> None:
        self.channel = self.channel_reader_type(self.group or self.name, self)
        self.channel.set_location(self.location)
        self.channel.invoke_configure_channel(self.config)

    def _on_resource_creation(self) -> bool:
        return not self.is_principal() or self.channel.invoke_resource_creation()

    def _on_port_open(self) -> bool:
        channel = self.channel
        if not channel.is_channel_open() and not channel.invoke_open_channel():
            return False
        if channel.get_read_record_offset() == channel.NotInitialized:
            channel.set_initial_record_offset_auto()
        if not channel.is_channel_started():
            channel.start_channel()
        channel.invoke_sync_status_update()
        if not self.connected:
            connected = len(channel.retrieve_connected_channel_unique_names(self._is_other))
            if connected < (self.writers if self.all_open else 1):
                return False
            self.connected = True
        has_running_writers = (
            channel.is_any_connected_channel_healthy_and_not_stopped_and_not_closed
        )
        return not (self.sequential and has_running_writers())

    def retrieve(self) -> list[Any]:
        return self.channel.invoke_read_records()

    def can_retrieve(self) -> bool:
        ended = len(
            self.channel.retrieve_connected_channel_unique_names(
                lambda monitor: (
                    self._is_other(monitor)
                    and (
                        not monitor.is_channel_healthy()
                        or monitor.is_channel_stopped()
                        or monitor.is_channel_closed()
                    )
                )
            )
        )
        return self.channel.has_records() or self.writers > ended

    def commit_current_read_offset(self) -> None:
        self.channel.invoke_commit_current_read_offset()

    def _on_port_close(self) -> bool:
        channel = self.channel
        if not channel.is_channel_open():
            return True
        return channel.can_close() and channel.invoke_close_channel()

    def _on_resource_deletion(self) -> bool:
        return not self.is_principal() or self.channel.invoke_resource_deletion()

    def fail(self) -> None:
        if self.channel.is_channel_open():
            self.channel.invoke_sync_send_status_message(ChannelStatus.Error)

    def _is_other(self, monitor: Any) -> bool:
        return self.group is None or monitor.get_channel_group_name() != self.group


class StandinOutputPort(StandinPort):
    """An output port with a writer for each connected input port."""

    def __init__(
        self,
        *args: Any,
        location: str,
        inputs: Sequence[str],
        config: dict[str, Any] | None = None,
        channel_writer_type: type[KafkaChannelWriter] = KafkaChannelWriter,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.location, self.inputs, self.config = location, inputs, config or {}
        self.channel_writer_type = channel_writer_type
        self.channels: list[KafkaChannelWriter] = []

    def _pre_execution(self) -> None:
        for name in self.inputs:
            channel = self.channel_writer_type(name, self)
            channel.set_location(self.location)
            channel.invoke_configure_channel(self.config)
            self.channels.append(channel)

    def _on_resource_creation(self) -> bool:
        return not self.is_principal() or all(
            channel.invoke_resource_creation() for channel in self.channels
        )

    def _on_port_open(self) -> bool:
        closed = [channel for channel in self.channels if not channel.is_channel_open()]
        if not all(channel.invoke_open_channel() for channel in closed):
            return False
        for channel in self.channels:
            if not channel.is_channel_started():
                channel.start_channel()
        return True

    def send(self, data: Any) -> None:
        for channel in self.channels:
            channel.invoke_write_records(data)

    def _on_port_close(self) -> bool:
        opened = [channel for channel in self.channels if channel.is_channel_open()]
        return all(channel.can_close() and channel.invoke_close_channel() for channel in opened)

    def _on_resource_deletion(self) -> bool:
        return not self.is_principal() or all(
            channel.invoke_resource_deletion() for channel in self.channels
        )

    def fail(self) -> None:
        for channel in self.channels:
            if channel.is_channel_open():
                channel.invoke_sync_send_status_message(ChannelStatus.Error)


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
    """A reader with short heartbeat intervals and short timeouts."""

    DefaultStatusThreadIntervalInMs = 100
    DataConsumerTimeoutInMs = InitialDataConsumerTimeoutInMs = 200


class QuickWriter(KafkaChannelWriter):
    DefaultStatusThreadIntervalInMs = 100


def take(reader: KafkaChannelReader, count: int) -> list[Any]:
    """Read until there are `count` records."""
    records: list[Any] = []

    def take_more() -> bool:
        records.extend(reader.invoke_read_records())
        return len(records) >= count

    until(take_more)
    return records


class Bench:
    """Factory of readers and writers of one channel; closes them at the end."""

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
        channel = kind(self.name, StandinPort(name, schema, **place), silent_mode=silent)
        channel.set_location(self.url if location is None else location)
        channel.invoke_configure_channel({"max_poll_records": 500} | (config or {}))
        self._stack.callback(_close_quietly, channel)
        return channel

    def writer(
        self,
        name: str = "pipeline.writer.output_port",
        *,
        kind: type[KafkaChannelWriter] = QuickWriter,
        schema: Any = SCHEMA,
        config: dict[str, Any] | None = None,
        location: str | None = None,
        silent: bool = False,
        **place: Any,
    ) -> KafkaChannelWriter:
        channel = kind(self.name, StandinPort(name, schema, **place), silent_mode=silent)
        channel.set_location(self.url if location is None else location)
        channel.invoke_configure_channel(config or {})
        self._stack.callback(_close_quietly, channel)
        return channel

    def pair(
        self,
        kind: type[KafkaChannelWriter] = QuickWriter,
        *,
        location: str | None = None,
        writer_location: str | None = None,
        **config: Any,
    ) -> tuple[KafkaChannelReader, KafkaChannelWriter]:
        """Return an open reader and an open writer."""
        reader = self.reader(config=config, location=location)
        writer = self.writer(kind=kind, location=writer_location or location)
        assert reader.invoke_resource_creation()
        until(reader.invoke_open_channel)
        until(writer.invoke_open_channel)
        return reader, writer

    def impatient_reader(self) -> KafkaChannelReader:
        """Return an open reader that waits a second for successors of failed writers.

        It takes the time from the channel when it opens. Afterwards the channel's heartbeat timeout
        is long again, so that nothing is lost which only a busy machine delays.
        """
        channel = self.create_channel()
        usual = channel.heartbeat
        channel.update(heartbeat=replace(usual, timeout_ms=1000))
        reader = self.reader()
        until(reader.invoke_open_channel)
        channel.update(heartbeat=usual)
        return reader

    def relay(self) -> Relay:
        """Return a connection to the gateway for channels that are made later."""
        return self._stack.enter_context(closing(Relay(int(self.url.rpartition(":")[2]))))

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
        heartbeat = Heartbeat(interval_ms=100, timeout_ms=60_000)
        return self._gateway.channel(self.name, SCHEMA, partitions=partitions, heartbeat=heartbeat)


def _close_quietly(channel: Any) -> None:
    # Tests break some channels on purpose.
    with contextlib.suppress(Exception):
        channel.invoke_close_channel()


def without_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the sleep of five seconds before pypz's ports close, which has no parameter."""
    from pypz.abstracts import channel_ports

    # It has no parameter.
    monkeypatch.setattr(channel_ports, "time", types.SimpleNamespace(sleep=lambda _s: None))
