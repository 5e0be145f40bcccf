"""A writer of one port's records into one channel, with the names of pypz's."""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from typing import Any

from sluiceway.errors import EndpointClosed, InvalidRecord
from sluiceway.pypz.channel import ChannelBase
from sluiceway.pypz.config import WriterSettings, group_name, writer_settings
from sluiceway.pypz.errors import InvalidRecordValue, NoRecordList, OperatorFailed
from sluiceway.pypz.heartbeats import Cycles, Link
from sluiceway.pypz.statuses import ChannelStatus
from sluiceway.rest.endpoint_models import Endpoint
from sluiceway.writer import ChannelWriter

__all__ = ["KafkaChannelWriter"]


class KafkaChannelWriter(ChannelBase):
    """Writes to the channel of one input port; an output port has one for each that it feeds.

    It is a writer of the gateway's, with its port's full name as its group: who starts the port
    again takes its place, and the one before is fenced. Records go round the partitions one by
    one, from the first, are idempotent and acknowledged by all replicas; what Kafka refuses is
    raised by the next call, at the latest by closing.
    """

    MetricsBufferLength = 10
    """How many calls averages are taken over."""

    def __init__(
        self, channel_name: str, context: Any, executor: Executor | None = None, **kwargs: Any
    ) -> None:
        super().__init__(channel_name, context, executor, **kwargs)
        self._writer: ChannelWriter | None = None
        self._settings = WriterSettings()
        self._counting = threading.Lock()
        self._written_record_count = 0
        self._ends: Mapping[int, int] | None = None
        self._cycles = Cycles("Output", self.MetricsBufferLength)

    def get_written_record_count(self) -> int:
        """Return how many records were written here, acknowledged or not."""
        return self._written_record_count

    def can_close(self) -> bool:
        """Whether it may be closed: always."""
        return True

    def is_all_connected_input_channels_acknowledged(self) -> bool:
        """Whether every healthy reader has acknowledged since it had read all that is written.

        An acknowledgement that was on its way while records were written does not count for them.
        """
        readers = [each for each in self._connected.monitors if each.is_channel_healthy()]
        if any(ChannelStatus.Acknowledged not in each.status_update_map for each in readers):
            return False
        if self._ends is None and self._written_record_count:
            writer = self._opened()
            writer.flush()
            self._ends = writer.end_offsets()
        ends = self._ends or {}
        return all(
            at >= ends.get(int(partition), 0)
            for each in readers
            for partition, at in (each.acknowledged or {}).items()
        )

    def invoke_write_records(self, records: list[Any]) -> None:
        """Write a list of records, all of them or none.

        Raises NoRecordList (a TypeError), InvalidRecordValue (a ValueError), SchemaParseException,
        DeliveryFailed, EndpointClosed and Fenced.
        """
        self._write_records(records)
        with self._counting:
            self._written_record_count += len(records)
            self._health_check_payload["sentRecordCount"] = self._written_record_count
        self._ends = None
        for each in self._connected.monitors:
            each.status_update_map.pop(ChannelStatus.Acknowledged, None)
        self._cycles.turn(len(records))

    def stop_channel(self, send_status_message: bool = True) -> None:
        """Return when Kafka has acknowledged all records, and then tell that it stopped."""
        if self._writer is not None and send_status_message:
            self._writer.flush()
        super().stop_channel(send_status_message)

    def on_status_message_send(self) -> None:
        """Put the figures into the payload, with `metricsEnabled`."""
        if self._metrics_enabled:
            self._health_check_payload.update(self._cycles.figures())

    def _write_records(self, records: list[Any]) -> None:
        if not isinstance(records, list):
            raise NoRecordList(
                f"Invalid record type: {type(records)}. List of records (dicts) is expected."
            )
        if self._writer is None:
            # What is wrong with the port is told before that it is not open.
            _ = self._resources.schema
        try:
            self._opened().write(records)
        except InvalidRecord as error:
            raise InvalidRecordValue(
                index=error.index,
                field=error.field,
                reason=error.reason,
                schema_path=error.schema_path,
                public_reason=error.public_reason,
            ) from error

    def _create_resources(self) -> bool:
        # The reader of the channel makes it; here it is seen whether there is a way to it.
        return self._resources.attempt(lambda: self._resources.gateway is not None)

    def _delete_resources(self) -> bool:
        return True

    def _open_channel(self) -> bool:
        return self._resources.attempt(self._open, opening=True)

    def _open(self) -> bool:
        if self._writer is not None:
            return True
        if self._silent_mode:
            self._channel = self._resources.to_watch()
            return True
        channel = self._resources.to_write()
        place = group_name(str(self._context.get_full_name()))
        self._writer = channel.writer(group=place, config=self._settings.kafka)
        # Its count is the record's place, as in pypz: the first record goes to the first partition.
        self._writer.start_round_robin_at(0)
        self._link = Link(self._writer)
        self._channel = channel
        return True

    def _close_channel(self) -> bool:
        if self._writer is not None and self._failed:
            error = OperatorFailed(f"{self._context.get_full_name()} told of an error")
            self._writer.__exit__(OperatorFailed, error, None)
        elif self._writer is not None:
            self._writer.close()
        return True

    def _part(self) -> None:
        super()._part()
        self._writer = None

    def _configure_channel(self, configuration: Mapping[str, Any]) -> None:
        self._settings = writer_settings(configuration, self._logger.warning)

    def _asked(self) -> Iterable[Endpoint]:
        return self._present("reader") if self._silent_mode else ()

    def _opened(self) -> ChannelWriter:
        if self._writer is None:
            how = "is silent and writes nothing" if self._silent_mode else "is not open"
            raise EndpointClosed(
                f"the channel {self._unique_name} {how}: call invoke_open_channel() until it is "
                "True"
            )
        return self._writer
