"""Ports of a job: writing to many channels, and reading from many writers."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NoReturn

import pyarrow as pa

from sluiceway.api.arguments import check_seconds
from sluiceway.api.endpoints import Endpoint, Position
from sluiceway.channel import Channel
from sluiceway.endpoint.channel_endpoint import ClosesOnExit
from sluiceway.endpoint.stop_condition import (
    LOG_AFTER_S,
    LostWriterPolicy,
    OnLostWriter,
    already_read,
    writers_outcome,
)
from sluiceway.endpoint.waiting import missing_endpoints
from sluiceway.errors import OptionError, PortError, SluicewayError, SluicewayTimeout
from sluiceway.reader import ChannelReader, R
from sluiceway.records import repeatable
from sluiceway.writer import ChannelWriter, PreparedRecords

__all__ = ["InputPort", "OutputPort"]

LOGGER = logging.getLogger("sluiceway.ports")

_CLOSES = ("closing", "closed")
_MAX_NAMED = 10


class OutputPort(ClosesOnExit):
    """Writes each record to all of its channels.

    Either all writers are opened or none. An operation that fails for one channel is still
    performed for the others; then PortError names the channels that failed. Leaving `with` by an
    exception reports the failure to all channels.

    Thread-safe. Concurrent writes may have a different order in each channel.
    """

    def __init__(
        self,
        channels: Iterable[Channel],
        *,
        readers: int = 0,
        open_timeout_s: float | None = None,
        **options: Any,
    ) -> None:
        """Open a writer of each channel, with the `options` of `Channel.writer`.

        Before the first record it waits until each channel has this number of `readers`, without
        limit or for `open_timeout_s`. Raises OptionError and PortError.
        """
        outputs = list(channels)
        names = [channel.name for channel in outputs]
        if not outputs or len(set(names)) < len(outputs):
            raise OptionError(f"an output port needs different channels; given: {names or 'none'}")
        self._channels = {channel.name: channel for channel in outputs}
        self._readers = readers
        self._timeout_s = _checked_timeout(open_timeout_s)
        self._waited = readers == 0
        self._writers: dict[str, ChannelWriter] = {}

        def open_(name: str) -> None:
            self._writers[name] = self._channels[name].writer(**options)

        try:
            self._try_all("opening", open_)
        except BaseException as error:
            self.abort(error)
            raise
        # One of the writers with equal schemas validates for all of them, which have its index.
        self._prepare: list[Callable[[Any], PreparedRecords]] = []
        self._targets: list[tuple[str, ChannelWriter, int]] = []
        indexes: dict[tuple[object, ...], int] = {}
        for name, writer in self._writers.items():
            connection = writer.connection
            rows = (writer.schema, connection.format, connection.max_message_bytes)
            if rows not in indexes:
                indexes[rows] = len(self._prepare)
                self._prepare.append(writer.prepare)
            self._targets.append((name, writer, indexes[rows]))

    @property
    def writers(self) -> Mapping[str, ChannelWriter]:
        """The writers by their channels' names."""
        return MappingProxyType(self._writers)

    @property
    def finish_requested(self) -> bool:
        """Whether a channel is closing or being deleted: the job should finish."""
        return any(writer.finish_requested for writer in self._writers.values())

    def wait(self) -> None:
        """Wait for the readers now. Raises SluicewayTimeout that names the missing ones."""
        if self._waited:
            return
        deadline_s = time.monotonic() + self._timeout_s
        late: list[str] = []
        for channel in self._channels.values():
            try:
                _await(
                    channel,
                    lambda present: missing_endpoints(present, "reader", self._readers, "opened"),
                    deadline_s,
                )
            except SluicewayTimeout as error:
                late.append(str(error))
        if late:
            raise SluicewayTimeout("; ".join(late))
        self._waited = True

    def write(self, records: Any) -> int:
        """Write one or many records to every channel and return their number.

        They are validated against the schemas of all channels before any is sent: after
        RecordError and SchemaError, no channel has any of them.
        """
        if not self._waited:
            self.wait()
        if len(self._prepare) > 1:
            records = repeatable(records)
        # No comprehension, because a port may write each record alone: it would be another call.
        prepared: list[PreparedRecords] = []
        for prepare in self._prepare:
            prepared.append(prepare(records))  # noqa: PERF401
        written = 0
        errors: dict[str, SluicewayError] = {}
        for name, writer, validator in self._targets:
            try:
                written = writer.write_prepared(prepared[validator])
            except SluicewayError as error:
                errors[name] = error
        if errors:
            self._raise("writing", errors)
        return written

    def flush(self) -> None:
        """Return when Kafka has acknowledged every record in all channels."""
        self._try_all("flushing", lambda name: self._writers[name].flush())

    def close(self) -> None:
        """Close every writer. May be repeated."""
        self._try_all("closing", lambda name: self._writers[name].close())

    def is_unfinished(self, error: BaseException | None) -> bool:
        """Whether `error` left a block of one of the writers."""
        return any(writer.is_unfinished(error) for writer in self.writers.values())

    def abort(self, error: BaseException) -> None:
        """Abort every writer; `error` is reported to all channels, also after an interrupt."""
        interrupt: BaseException | None = None
        for name, writer in self._writers.items():
            try:
                writer.abort(error)
            except SluicewayError as other:
                LOGGER.warning("the writer of the channel %r was not closed: %s", name, other)
            except BaseException as other:
                interrupt = interrupt or other
        if interrupt is not None:
            raise interrupt

    def _try_all(self, doing: str, act: Callable[[str], object]) -> None:
        errors: dict[str, SluicewayError] = {}
        for name in self._channels:
            try:
                act(name)
            except SluicewayError as error:
                errors[name] = error
        if errors:
            self._raise(doing, errors)

    def _raise(self, doing: str, errors: Mapping[str, SluicewayError]) -> NoReturn:
        first = next(iter(errors.values()))
        raise PortError(doing, errors=errors, channels=len(self._channels)) from first


class InputPort(ClosesOnExit, Generic[R]):
    """Reads a channel after its expected writers have attached or finished.

    Records of one writer keep their order within a partition; there is no order between writers.
    `reader` is the underlying ChannelReader. Thread-safe.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        writers: int = 1,
        all_open: bool = False,
        sequential: bool = False,
        open_timeout_s: float | None = None,
        on_lost_writer: OnLostWriter = "raise",
        as_: type[R] | None = None,
        **options: Any,
    ) -> None:
        """Open and attach the reader, with the `options` of `Channel.reader`.

        Before the first record it waits for a writer, with `all_open` until all `writers` have
        attached, with `sequential` until they have finished; without limit or for
        `open_timeout_s`. The wait also ends when the channel closes.
        """
        self._channel = channel
        self._writers = writers
        self._wanted = writers if all_open or sequential else min(writers, 1)
        self._sequential = sequential
        self._every_s = channel.heartbeat.timeout_ms / 1000
        self._timeout_s = _checked_timeout(open_timeout_s)
        self._waited = False
        self.reader: ChannelReader[R] = channel.reader(
            writers=writers, on_lost_writer=on_lost_writer, as_=as_, **options
        )
        attached = self.reader.endpoint_id is not None
        self._policy = LostWriterPolicy(
            on_lost_writer,
            heartbeat_timeout_s=self._every_s,
            reader=self.reader.handle.attached if attached else None,
            latest=options.get("start") == "latest",
        )

    def wait(self) -> None:
        """Wait for the writers. Raises SluicewayTimeout that names the missing; may be repeated."""
        if not self._waited:
            deadline_s = time.monotonic() + self._timeout_s
            _await(self._channel, self._missing, deadline_s, every_s=self._every_s)
            self._waited = True

    def __iter__(self) -> Iterator[R]:
        """Yield the records one by one, as ChannelReader does."""
        self.wait()
        return iter(self.reader)

    def read(self, max_records: int, timeout: float | None = 1.0) -> list[R]:
        """Return up to `max_records` records; `timeout` starts after the wait for writers."""
        self.wait()
        return self.reader.read(max_records, timeout)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records as RecordBatches, as large as they arrive."""
        self.wait()
        return self.reader.batches()

    def commit(self, positions: Mapping[int, Position | int] | None = None) -> None:
        """Store positions with the gateway; by default the current ones."""
        self.reader.commit(positions)

    @property
    def finished(self) -> bool:
        """Whether all records up to the end have been returned."""
        return self._waited and self.reader.finished

    def close(self) -> None:
        """Close the reader. May be repeated; index 0 of a group closes last."""
        self.reader.close()

    def abort(self, error: BaseException) -> None:
        """Close the reader, and report to the gateway that `error` ended it."""
        self.reader.abort(error)

    def _missing(self, present: Sequence[Endpoint]) -> list[str]:
        own = self.reader.endpoint_id
        if own is not None and all(endpoint.id != own for endpoint in present):
            # It is fenced or lost. A heartbeat revives a lost one.
            self.reader.handle.heartbeat_now()
        writers = [endpoint for endpoint in present if endpoint.role == "writer"]
        read = [writer.place for writer in writers if self._policy.was_read(writer)]
        attached = [writer for writer in writers if self._policy.counts(writer)]
        closes = self._channel.refresh().status.phase in _CLOSES
        if len(attached) < self._wanted and not closes:
            others = [
                writer
                for writer in writers
                if not self._policy.was_read(writer) and not self._policy.is_settled(writer)
            ]
            names = missing_endpoints(others, "writer", self._wanted, "opened")
            return [*names, *([already_read(", ".join(read[:_MAX_NAMED]))] if read else [])]
        over = not self._sequential or writers_outcome(
            present,
            self._policy,
            channel=self._channel.name,
            writers=self._writers,
            complete=closes,
        )
        return [] if over else missing_endpoints(present, "writer", len(attached), "closed")


def _await(
    channel: Channel,
    missing: Callable[[Sequence[Endpoint]], list[str]],
    deadline_s: float,
    *,
    every_s: float = math.inf,
) -> None:
    """Wait until no endpoint is missing; log a wait without limit after a while."""
    if deadline_s == math.inf:
        try:
            channel.wait_until(missing, timeout_s=LOG_AFTER_S, every_s=every_s)
        except SluicewayTimeout as error:
            LOGGER.warning("%s; still waiting", error)
        else:
            return
    left_s = max(0.0, deadline_s - time.monotonic())
    channel.wait_until(missing, timeout_s=left_s, every_s=every_s)


def _checked_timeout(timeout_s: float | None) -> float:
    if timeout_s is None:
        return math.inf
    check_seconds("open_timeout_s", timeout_s)
    return timeout_s
