"""KafkaChannelWriter: pypz's channel writer on a channel of a gateway."""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from typing import Any

from sluiceway.errors import InvalidRecord, OptionError
from sluiceway.pypz.channel import ChannelBase
from sluiceway.pypz.config import group_name, writer_properties
from sluiceway.pypz.records import Completion, completion
from sluiceway.pypz.status import ChannelStatus
from sluiceway.rest.endpoint_models import Endpoint
from sluiceway.writer import ChannelWriter, PreparedRecords

__all__ = ["InvalidRecordValue", "KafkaChannelWriter", "NoRecordList"]


class InvalidRecordValue(InvalidRecord, ValueError):
    """A record does not match the port's schema; nothing of the list was sent."""


class NoRecordList(OptionError, TypeError):
    """The argument is not a list of records."""

    code = "no_record_list"


class KafkaChannelWriter(ChannelBase[ChannelWriter]):
    """Writes to the channel of one input port; an output port has one writer for each.

    Its group is the port's full name: a port that is started again takes the place of the former
    one, which is fenced. Records go round the partitions one by one, from the first. They are
    idempotent and acknowledged by all replicas; a delivery failure is raised by the next call, at
    the latest by closing.
    """

    _role = "writer"

    def __init__(
        self, channel_name: str, context: Any, executor: Executor | None = None, **kwargs: Any
    ) -> None:
        super().__init__(channel_name, context, executor, **kwargs)
        self._kafka: Mapping[str, object] = {}
        self._counting = threading.Lock()
        self._written_record_count = 0
        self._ends: Mapping[int, int] | None = None
        self._complete: Completion | None = None

    def get_written_record_count(self) -> int:
        """Return the number of records written here, acknowledged or not."""
        return self._written_record_count

    def can_close(self) -> bool:
        """Return True: it may always be closed."""
        return True

    def is_all_connected_input_channels_acknowledged(self) -> bool:
        """Whether every healthy reader has acknowledged all that was written.

        An acknowledgement that was under way while records were written does not cover them.
        """
        readers = [each for each in self._peers.monitors if each.is_channel_healthy()]
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
        """Write a list of records, all or none.

        As in pypz, a missing field whose type admits null is None, and True is 1 in a field of
        numbers. A default in the schema comes before None.

        Raises NoRecordList (a TypeError), InvalidRecordValue (a ValueError), SchemaParseException,
        DeliveryFailed, EndpointClosed and Fenced.
        """
        if not isinstance(records, list):
            raise NoRecordList(
                f"Invalid record type: {type(records)}. List of records (dicts) is expected."
            )
        if self._endpoint is None:
            # An invalid schema is reported before the channel that is not open.
            _ = self._resources.schema
        writer = self._opened()
        writer.write_prepared(self._prepared(writer, records))
        with self._counting:
            self._metrics.record_cycle(self._written_record_count)
            self._written_record_count += len(records)
            self._health_check_payload["sentRecordCount"] = self._written_record_count
        self._ends = None
        for each in self._peers.monitors:
            each.status_update_map.pop(ChannelStatus.Acknowledged, None)

    def stop_channel(self, send_status_message: bool = True) -> None:
        """Wait until Kafka has acknowledged all records, then send the status Stopped."""
        if self._endpoint is not None and send_status_message:
            self._endpoint.flush()
        super().stop_channel(send_status_message)

    def _prepared(self, writer: ChannelWriter, records: list[Any]) -> PreparedRecords:
        """Validate records; those that only pypz accepts are completed.

        Once there was such a list, the later ones are completed at once: the port's code leaves
        out fields, and finding that out costs more than completing.
        """
        if self._complete is None:
            try:
                return writer.prepare(records)
            except InvalidRecord:
                complete = completion(writer.schema.record)
        else:
            complete = self._complete
        try:
            prepared = writer.prepare(list(map(complete, records)))
        except InvalidRecord as error:
            raise InvalidRecordValue(
                index=error.index,
                field=error.field,
                reason=error.reason,
                schema_path=error.schema_path,
                public_reason=error.public_reason,
            ) from error
        self._complete = complete
        return prepared

    def _create_resources(self) -> bool:
        # The channel's reader creates it; here only the connection is checked.
        return self._resources.attempt(lambda: self._resources.gateway is not None)

    def _delete_resources(self) -> bool:
        return True

    def _open(self) -> bool:
        if self._endpoint is not None:
            return True
        if self._silent_mode:
            self._channel = self._resources.channel()
            return True
        channel = self._resources.writable_channel()
        group = group_name(str(self._context.get_full_name()))
        writer = self._endpoint = channel.writer(group=group, config=self._kafka)
        # As in pypz, the first record goes to the first partition.
        writer.start_round_robin_at(0)
        self._complete = None
        writer.handle.subscribe()
        self._handle = writer.handle
        self._channel = channel
        return True

    def _configure(self, configuration: Mapping[str, Any]) -> None:
        self._kafka = writer_properties(configuration, self._logger.warning)

    def _unreported_peers(self) -> Iterable[Endpoint]:
        return self._endpoints("reader") if self._silent_mode else ()
