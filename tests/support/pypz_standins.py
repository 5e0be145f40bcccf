"""Small stand-ins for what pypz has around a channel: ports that drive it, and their operators.

They call a channel as pypz's ports do, in that order. The names are pypz's.
"""

import logging
from collections.abc import Sequence
from typing import Any

from sluiceway.pypz import ChannelStatus, KafkaChannelReader, KafkaChannelWriter

LOGGER = logging.getLogger("standin")


class StandinPort:
    """A port, as far as channels use it."""

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
        self.met = False

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
        if not self.met:
            come = len(channel.retrieve_connected_channel_unique_names(self._is_other))
            if come < (self.writers if self.all_open else 1):
                return False
            self.met = True
        works = channel.is_any_connected_channel_healthy_and_not_stopped_and_not_closed
        return not (self.sequential and works())

    def retrieve(self) -> list[Any]:
        return self.channel.invoke_read_records()

    def can_retrieve(self) -> bool:
        ended = len(
            self.channel.retrieve_connected_channel_unique_names(
                lambda each: (
                    self._is_other(each)
                    and (
                        not each.is_channel_healthy()
                        or each.is_channel_stopped()
                        or each.is_channel_closed()
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

    def _on_error(self) -> None:
        if self.channel.is_channel_open():
            self.channel.invoke_sync_send_status_message(ChannelStatus.Error)

    def _is_other(self, each: Any) -> bool:
        return self.group is None or each.get_channel_group_name() != self.group


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
        for each in self.inputs:
            channel = self.channel_writer_type(each, self)
            channel.set_location(self.location)
            channel.invoke_configure_channel(self.config)
            self.channels.append(channel)

    def _on_resource_creation(self) -> bool:
        return not self.is_principal() or all(
            each.invoke_resource_creation() for each in self.channels
        )

    def _on_port_open(self) -> bool:
        closed = [each for each in self.channels if not each.is_channel_open()]
        if not all(each.invoke_open_channel() for each in closed):
            return False
        for each in self.channels:
            if not each.is_channel_started():
                each.start_channel()
        return True

    def send(self, data: Any) -> None:
        for each in self.channels:
            each.invoke_write_records(data)

    def _on_port_close(self) -> bool:
        opened = [each for each in self.channels if each.is_channel_open()]
        return all(each.can_close() and each.invoke_close_channel() for each in opened)

    def _on_resource_deletion(self) -> bool:
        return not self.is_principal() or all(
            each.invoke_resource_deletion() for each in self.channels
        )

    def _on_error(self) -> None:
        for each in self.channels:
            if each.is_channel_open():
                each.invoke_sync_send_status_message(ChannelStatus.Error)
