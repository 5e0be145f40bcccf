"""KafkaChannelWriter: pypz's channel writer on a channel of a gateway."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from sluiceway import ChannelWriter, Endpoint
from sluiceway.errors import InvalidRecord, OptionError
from sluiceway.pypz.channel import ChannelBase
from sluiceway.pypz.config import group_name, writer_properties
from sluiceway.pypz.status import ChannelStatus
from sluiceway.spi import PreparedRecords
from sluiceway.spi import types as t

__all__ = ["Completion", "InvalidRecordValue", "KafkaChannelWriter", "NoRecordList", "completion"]

Completion = Callable[[Any], Any]
"""Returns a completed copy of a value, or the value itself."""


def completion(record: t.Record) -> Completion:
    """Return a function that completes a record, and the records within it.

    A missing field without a default is None if its type allows null; True and False are 1 and 0
    in a field of numbers. Everything else stays unchanged, and is refused later if it is invalid.
    """
    nullable = [f for f in record.fields if isinstance(f.type, t.Nullable) and f.default is None]
    absent = dict.fromkeys(field.name for field in nullable)
    inner = [
        (field.name, complete)
        for field in record.fields
        if (complete := _completion(field.type)) is not None
    ]

    def completed(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        fields = {**absent, **value}
        for name, complete in inner:
            if name in fields:
                fields[name] = complete(fields[name])
        return fields

    return completed


def _completion(type_: t.Type) -> Completion | None:
    """Return the completion of a type's values; None if there is nothing to complete."""
    match type_:
        case t.Nullable(item=item):
            return _completion(item)
        case t.Scalar(python=python) if python in (int, float):
            return _number
        case t.Array(items=items):
            return _each_item(_completion(items))
        case t.Map(values=values):
            return _each_value(_completion(values))
        case t.Record():
            return completion(type_)
        case t.Union(branches=branches):
            return _one_of(branches)
    return None


def _one_of(branches: tuple[t.Branch, ...]) -> Completion | None:
    """Return the completion of a union's values whose type determines the branch."""
    dicts: list[t.Branch] = [branch for branch in branches if isinstance(branch, t.Map | t.Record)]
    certain = t.Array if t.Scalar(kind=t.Kind.BOOLEAN) in branches else t.Scalar | t.Array
    decided: list[t.Branch] = [branch for branch in branches if isinstance(branch, certain)]
    decided += dicts if len(dicts) == 1 else []
    completions = [complete for complete in map(_completion, decided) if complete is not None]
    if not completions:
        return None

    def completed(value: Any) -> Any:
        if isinstance(value, tuple):
            return value  # it may name a branch
        for complete in completions:
            value = complete(value)
        return value

    return completed


def _each_item(complete: Completion | None) -> Completion | None:
    if complete is None:
        return None
    return lambda value: list(map(complete, value)) if isinstance(value, list | tuple) else value


def _each_value(complete: Completion | None) -> Completion | None:
    if complete is None:
        return None
    return lambda value: (
        {key: complete(item) for key, item in value.items()}
        if isinstance(value, Mapping)
        else value
    )


def _number(value: Any) -> Any:
    return int(value) if value is True or value is False else value


class InvalidRecordValue(InvalidRecord, ValueError):
    """A record does not match the port's schema; nothing of the list was sent."""


@contextmanager
def _refusing_values() -> Iterator[None]:
    """Raise InvalidRecordValue in place of InvalidRecord."""
    try:
        yield
    except InvalidRecord as error:
        raise InvalidRecordValue(
            index=error.index,
            field=error.field,
            reason=error.reason,
            schema_path=error.schema_path,
            public_reason=error.public_reason,
        ) from error


class NoRecordList(OptionError, TypeError):
    """The argument is not a list of records."""

    code = "no_record_list"


class KafkaChannelWriter(ChannelBase[ChannelWriter]):
    """Writes to the channel of one input port; an output port has one writer for each.

    Its group is the port's full name: a restarted port takes the place of its predecessor, which is
    fenced. Records go round robin over the partitions, from the first one. The producer is
    idempotent, and all replicas acknowledge; the next call raises a delivery failure, at the latest
    the one that closes the channel.
    """

    _role = "writer"

    def __init__(
        self, channel_name: str, context: Any, executor: Executor | None = None, **kwargs: Any
    ) -> None:
        super().__init__(channel_name, context, executor, **kwargs)
        self._kafka: Mapping[str, object] = {}
        # It stays the last one after it was closed.
        self._writer: ChannelWriter | None = None
        self._records_of_earlier_writers = 0
        self._ends: Mapping[int, int] | None = None
        self._complete: Completion | None = None

    def get_written_record_count(self) -> int:
        """Return the number of records written here, acknowledged or not."""
        written = 0 if self._writer is None else self._writer.accepted_records
        return self._records_of_earlier_writers + written

    def can_close(self) -> bool:
        """Return True: a writer may always be closed."""
        return True

    def is_all_connected_input_channels_acknowledged(self) -> bool:
        """Whether every healthy reader has acknowledged all written records.

        An acknowledgement in flight during a write does not cover its records.
        """
        readers = [monitor for monitor in self._peers.monitors if monitor.is_channel_healthy()]
        if any(ChannelStatus.Acknowledged not in reader.status_update_map for reader in readers):
            return False
        if self._ends is None and self.get_written_record_count():
            writer = self._opened()
            writer.flush()
            # On an exactly-once channel, records after the last commit may never be visible.
            exactly_once = writer.connection.delivery == "exactly_once"
            self._ends = dict(writer.batches.ends) if exactly_once else writer.end_offsets()
        ends = self._ends or {}
        return all(
            at >= ends.get(int(partition), 0)
            for reader in readers
            for partition, at in (reader.acknowledged or {}).items()
        )

    def invoke_write_records(self, records: list[Any]) -> None:
        """Write a list of records, all or none.

        As in pypz, a missing field whose type allows null is None, and True is 1 in a field of
        numbers. A default in the schema takes precedence over None.

        Raises NoRecordList (a TypeError), InvalidRecordValue (a ValueError), SchemaParseException,
        DeliveryFailed, EndpointClosed and Fenced.
        """
        if not isinstance(records, list):
            raise NoRecordList(
                f"Invalid record type: {type(records)}. List of records (dicts) is expected."
            )
        try:
            self._write_records(records)
        finally:
            # Also after an interrupt: the records may be written.
            self._ends = None
        if self._metrics_enabled:
            self._metrics.record_cycle(self.get_written_record_count() - len(records))
        for monitor in self._peers.monitors:
            monitor.status_update_map.pop(ChannelStatus.Acknowledged, None)

    def _write_records(self, records: list[Any]) -> None:
        """Write records; a subclass may change them first, and call this method."""
        writer = self._endpoint
        if writer is None:
            # An invalid schema is reported before the channel that is not open.
            _ = self._resources.schema
            writer = self._opened()
        writer.write_prepared(self._prepared(writer, records))

    def stop_channel(self, send_status_message: bool = True) -> None:
        """Wait until Kafka has acknowledged all records, then send the status Stopped."""
        if self._endpoint is not None and send_status_message:
            self._endpoint.flush()
        super().stop_channel(send_status_message)

    def _prepared(self, writer: ChannelWriter, records: list[Any]) -> PreparedRecords:
        """Validate records; complete those that only pypz accepts.

        After the first such list, all lists are completed at once: the port's code omits fields,
        and a failed validation costs more than the completion.
        """
        values = self._resources.values
        if values is not None:
            with _refusing_values():
                return writer.prepare([values.to_record(i, v) for i, v in enumerate(records)])
        if self._complete is None:
            try:
                return writer.prepare(records)
            except InvalidRecord:
                complete = completion(writer.schema.record)
        else:
            complete = self._complete
        with _refusing_values():
            prepared = writer.prepare(list(map(complete, records)))
        self._complete = complete
        return prepared

    def _create_resources(self) -> bool:
        # The channel's reader creates it; here only the connection is checked.
        return self._resources.attempt(lambda: self._resources.gateway is not None)

    def _delete_resources(self) -> bool:
        return True

    def _open_channel(self) -> bool:
        if self._endpoint is not None:
            return True
        if self._silent_mode:
            self._channel = self._resources.channel()
            return True
        channel = self._resources.writable_channel()
        group = group_name(str(self._context.get_full_name()))
        writer = channel.writer(group=group, config=self._kafka)
        try:
            # As in pypz, the first record goes to the first partition.
            writer.start_round_robin_at(0)
            handle = writer.handle
            handle.subscribe()
            earlier_records = self.get_written_record_count()
        except BaseException as error:
            writer.abort(error)
            raise
        # No call from here on: the interpreter handles interrupts at calls.
        self._endpoint, self._handle, self._channel = writer, handle, channel
        self._writer, self._records_of_earlier_writers = writer, earlier_records
        self._complete = None
        return True

    def _configure_channel(self, configuration: Mapping[str, Any]) -> None:
        self._kafka = writer_properties(configuration, self._logger.warning)

    def _record_counts(self) -> dict[str, int]:
        written = self.get_written_record_count()
        return {"sentRecordCount": written} if written else {}

    def _unreported_peers(self) -> Iterable[Endpoint]:
        return self._endpoints("reader") if self._silent_mode else ()
