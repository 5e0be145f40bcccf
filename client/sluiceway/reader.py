"""Reading records from a channel."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self

import pyarrow as pa

from sluiceway import extent
from sluiceway.decoding import decoder_for
from sluiceway.errors import EndpointClosed, OptionError, SluicewayError
from sluiceway.intake import Intake
from sluiceway.kafka.masked import MaskedProperties
from sluiceway.kafka.stream import MessageStream
from sluiceway.position import Position
from sluiceway.protocol import Connection
from sluiceway.schema import Schema

__all__ = ["ChannelReader"]


class ChannelReader:
    """Reads a channel's records; made by `Channel.reader()`, or of a Connection alone.

    Iterating gives each record as a dict; `batches()` gives pyarrow.RecordBatches, `read()` a
    list. All three take from the same place, and may be mixed. The order within a partition is
    kept, partitions come as they come. With `until="now"`, reading ends at the watermarks of
    the moment at which the reader was opened, with `until=None` never; partitions that the
    channel gets later are not read. Messages of older and of newer schemas than the reader's are
    read as records of its own.

    Nothing is committed: `position()` tells where the reader stands, valid to the record, and a
    reader that starts there reads exactly the rest. An error moves no position: the same call
    may be made again.

    Not for use by several threads at once.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        until: extent.Until,
        start: extent.Start = "earliest",
        partitions: Sequence[int] | None = None,
        on_corrupt: Literal["raise", "skip"] = "raise",
        timeout_s: float = 30.0,
        config: Mapping[str, object] | None = None,
        refresh: Callable[[], Connection] | None = None,
    ) -> None:
        """Open a reader.

        `until` may also give an end offset for each partition. `start` is "earliest", "latest",
        a datetime with a time zone (the first message not older), or a Position or offset for
        each partition (those left out start earliest). `on_corrupt="skip"` passes over messages
        that are none of the channel's and counts them. `timeout_s` bounds how long Kafka may be
        silent; `config` has further Kafka properties of a consumer. `refresh` asks the gateway for
        the connection anew, for messages of a schema that came after it. Raises OptionError,
        OffsetOutOfRange, TopicGone, KafkaUnavailable.
        """
        config = MaskedProperties(config or {})
        if on_corrupt not in ("raise", "skip"):
            raise OptionError(f"on_corrupt is {on_corrupt!r}; it takes 'raise' or 'skip'")
        if not isinstance(timeout_s, int | float) or not 1 <= timeout_s <= 86_400:
            raise OptionError(f"timeout_s is {timeout_s!r}; it takes seconds from 1 to 86400")
        self.connection = connection
        self.schema = Schema.parse(connection.schema_definition)
        self.partitions = extent.chosen_partitions(partitions, connection.partitions)
        self._stream = MessageStream(connection, config, timeout_s=timeout_s)
        self._closed = False
        self._failure: SluicewayError | None = None
        try:
            self._stream.verify()
            ends = extent.end_offsets(until, self.partitions, self._stream)
            self._intake = Intake(
                connection,
                decoder_for(connection, target=self.schema, refresh=refresh),
                self._stream,
                positions=extent.start_positions(start, self.partitions, self._stream),
                ends=ends,
                skip_corrupt=on_corrupt == "skip",
                timeout_s=timeout_s,
            )
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Give record after record; each counts as done when it is handed out."""
        while self._fetched(math.inf):
            yield from self._intake.chunk.records()

    def read(self, max_records: int, timeout: float | None = 1.0) -> list[dict[str, Any]]:
        """Return up to `max_records` records, fewer if no more came within `timeout` seconds.

        None waits for all of them. The list is short, or empty, at the end of what there is to
        read (`finished` tells), after `timeout`, and before an error, which the next call raises.
        """
        if type(max_records) is not int or max_records < 1:
            raise OptionError(f"max_records is {max_records!r}; it takes a number from 1")
        deadline_s = math.inf if timeout is None else time.monotonic() + timeout
        records: list[dict[str, Any]] = []
        while len(records) < max_records:
            try:
                if not self._fetched(deadline_s):
                    break
            except SluicewayError as error:
                if not records:
                    raise
                self._failure = error
                break
            missing = max_records - len(records)
            records += itertools.islice(self._intake.chunk.records(), missing)
        return records

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Give the records as RecordBatches of `schema.arrow`, as large as they come.

        A batch counts as done when it is handed out.
        """
        while self._fetched(math.inf):
            yield self._intake.chunk.batch()

    def position(self) -> dict[int, Position]:
        """Return the next record to hand out, for each partition."""
        self._require_open()
        return self._intake.position()

    def seek(self, positions: Mapping[int, Position | int]) -> None:
        """Go on reading these partitions from these positions (an int is an offset).

        Other partitions stay where they are. Raises OptionError and OffsetOutOfRange, and then
        nothing has moved.
        """
        self._require_open()
        marks = self._stream.watermarks(self.partitions)
        self._move(extent.positions_at(positions, marks))

    def seek_to_time(self, moment: datetime) -> None:
        """Go on reading from the first message that is not older, in each partition.

        Where there is none, reading goes on at the end. Raises OptionError.
        """
        self._require_open()
        self._move(extent.start_positions(moment, self.partitions, self._stream))

    def end_offsets(self) -> dict[int, int]:
        """Return the offset after the last message of each partition, as of now."""
        self._require_open()
        return {p: mark.end for p, mark in self._stream.watermarks(self.partitions).items()}

    def lag(self) -> dict[int, int]:
        """Return how many offsets lie between the position and the end of each partition.

        A message that is partly done counts. In a log with gaps there are fewer messages.
        """
        positions = self.position()
        return {p: max(0, end - positions[p].offset) for p, end in self.end_offsets().items()}

    @property
    def finished(self) -> bool:
        """Whether everything up to the end has been handed out; never with `until=None`."""
        return self._intake.finished

    @property
    def corrupt_messages(self) -> int:
        """How many messages were passed over so far, those met again after a seek included."""
        return self._intake.corrupt_messages

    def close(self) -> None:
        """Let go of Kafka. May be repeated."""
        if not self._closed:
            self._closed = True
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _fetched(self, deadline_s: float) -> bool:
        self._require_open()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._intake.fetch(deadline_s)

    def _move(self, positions: Mapping[int, Position]) -> None:
        self._failure = None
        self._intake.seek(positions)

    def _require_open(self) -> None:
        if self._closed:
            raise EndpointClosed("this reader is closed; open a new one with channel.reader()")
