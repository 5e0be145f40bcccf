"""ChannelReader: reads records from a channel."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal

import pyarrow as pa

from sluiceway import offsets
from sluiceway.api.arguments import check_seconds, whole_number
from sluiceway.api.endpoints import Position, PositionAdvance
from sluiceway.api.models import Connection
from sluiceway.api.schema_registry import SchemaRegistry
from sluiceway.codecs.decoder import decoder_for
from sluiceway.endpoint.attached import AttachedEndpoint
from sluiceway.endpoint.channel_endpoint import ChannelEndpoint
from sluiceway.endpoint.committer import OffsetCommitter
from sluiceway.endpoint.stop_condition import OnLostWriter, StopCondition, WhenFinished
from sluiceway.errors import (
    CommitUnknown,
    EndpointClosed,
    KafkaUnavailable,
    OptionError,
    SchemaMismatch,
    SluicewayError,
)
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.fetcher import Fetcher
from sluiceway.kafka.io_thread import SHARED_CONSUMERS
from sluiceway.kafka.keys import KeyField
from sluiceway.ledger.committed_stream import open_stream
from sluiceway.ledger.visibility import Visibility
from sluiceway.ledger.write_batch import Block
from sluiceway.records import import_pandas
from sluiceway.records.frames import require_library, to_pandas, to_polars
from sluiceway.records.instances import Instances
from sluiceway.runtime.threads import Signal
from sluiceway.schema import Schema
from sluiceway.schema.types import find_union
from sluiceway.tracing import ActiveSpan, channel_span

__all__ = ["ChannelReader"]

LOGGER = logging.getLogger("sluiceway.reader")

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from typing_extensions import TypeVar

    R = TypeVar("R", default=dict[str, Any])
else:
    from typing import TypeVar

    R = TypeVar("R")
"""The type of a reader's records."""
T = TypeVar("T")

_MAX_PARTITIONS = 2**31
_GROWTH_CHECK_S = 1.0
_DESCRIPTION_MAX_AGE_S = 5.0
"""The age of the topic's description that a reader without an endpoint uses to see growth."""
_DESCRIPTION_TIMEOUT_S = 2.0


class ChannelReader(ChannelEndpoint, Generic[R]):
    """Reads a channel's records; opened by `Channel.reader()`, or with a Connection alone.

    Iteration yields each record as a dict, or as an instance of the class `as_`; `read()` returns a
    list of them, `batches()` yields pyarrow.RecordBatches. All three continue at the same position
    and may be mixed; `to_arrow()`, `to_pandas()` and `to_polars()` return all the rest. The order
    within a partition is kept; partitions are interleaved as they arrive. With `until="finished"`,
    reading ends when the channel's writers have finished and all their records are read; with
    `until="now"`, at the end offsets at the time the reader was opened; with `until=None`, never.
    Messages with older or newer schemas are returned as records of the reader's schema.

    When the channel grows, a reader without a fixed end reads the added partitions that are its own
    within ten seconds, from their first record.

    From an exactly-once channel it returns committed records only, once and in order. End offsets,
    `lag` and "latest" refer to committed records below the oldest open batch. With `until="now"`
    and without a group, and of a `snapshot`, it reads the batches that were committed when it was
    opened, each wholly, and waits for nothing. Another bounded read waits for batches that are open
    below its end; after `timeout_s` without a record it raises SluicewayTimeout, which names one of
    them.

    A message without a value deletes a key on a compacted channel, and is skipped. With `deletes`,
    `Deleted(key=...)` is returned in its place, and counts as a record.

    `position()` is exact to the record: a reader that starts there reads exactly the rest. A
    reader with a group shares the channel with the group's other members; `commit()` stores its
    positions with the gateway, and its successor continues there. Nothing is committed implicitly.
    An error leaves the position unchanged, so the call may be repeated.

    Thread-safe: each record goes to one of the threads that share a reader. Each thread iterates
    with its own iterator (`for record in reader`). While one waits for records, the others wait
    for their turn, but any of them may commit, seek and close.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        until: offsets.Until,
        start: offsets.Start = "earliest",
        partitions: Sequence[int] | None = None,
        on_corrupt: Literal["raise", "skip"] = "raise",
        timeout_s: float = 30.0,
        config: Mapping[str, object] | None = None,
        refresh: Callable[[], Connection] | None = None,
        handle: AttachedEndpoint | None = None,
        writers: int = 1,
        on_lost_writer: OnLostWriter = "raise",
        open_timeout_s: float | None = None,
        share_connection: bool = False,
        visibility: Visibility | None = None,
        as_: type[R] | None = None,
        deletes: bool = False,
        key: str | None = None,
        schema_registry: SchemaRegistry | None = None,
    ) -> None:
        """Open a reader.

        `until` may also be an end offset for each partition. `start` is "earliest", "latest", a
        datetime with a time zone (the first message not older), or a Position or offset for each
        partition (the others start at the earliest). `on_corrupt="skip"` skips and counts
        messages that do not belong to the channel. `timeout_s` limits the wait for messages and
        responses of Kafka, `config` has further properties of a Kafka consumer. With
        `share_connection`, readers of a process share connections. `refresh` requests the
        connection again, for messages with a schema that was registered later. `visibility` is the
        committed part of an exactly-once channel. `as_` is the class of records: a dataclass, a
        pydantic model, a msgspec.Struct, an attrs class, a NamedTuple or a TypedDict. Its instances
        are validated as its library does when it reads data; a record that is not valid raises
        ValidationFailed, and the position stays before it. `deletes` returns deletes, from any
        channel without exactly-once delivery; batches and tables have none. With `key`, the field
        that is the writer's `key`, their keys are values of this field, without it bytes. The ids
        in messages are those of `schema_registry`, if there is one: each schema is requested once a
        process, and resolved to the reader's. Reads may then raise RegistryFailure, and
        RegistryUnavailable, after which the same call requests it again.

        `handle` makes the reader an endpoint, with the partitions and committed positions of its
        group. With `until="finished"`, `writers` is the least number that has to attach, 0 to
        wait for open ones only; a writer that ended counts if no reader in this place has closed
        at its end, and with `start="latest"` if it was open when this reader attached. After
        `open_timeout_s` SluicewayTimeout names the missing ones, and the same call waits again.
        `on_lost_writer` is the behaviour after a writer failed or was lost: "raise" WriterFailed or
        WriterLost once everything else is read and no successor has attached for the channel's
        heartbeat timeout; "wait" for a successor; "go_on" as if it had finished. Raises
        OptionError, SchemaMismatch, OffsetOutOfRange, TopicGone, KafkaUnavailable.
        """
        import_pandas()
        config = MaskedProperties(config or {})
        if on_corrupt not in ("raise", "skip"):
            raise OptionError(f"on_corrupt is {on_corrupt!r}; it takes 'raise' or 'skip'")
        if visibility is None and connection.delivery == "exactly_once":
            raise OptionError(
                f"the channel {connection.channel_name!r} has the delivery exactly_once, so "
                "readers need the gateway: open them with channel.reader()"
            )
        if open_timeout_s is not None:
            check_seconds("open_timeout_s", open_timeout_s)
            if until != "finished":
                raise OptionError(
                    "open_timeout_s limits the wait for writers, which only a reader with "
                    "until='finished' has: leave it out"
                )
        if deletes and connection.delivery == "exactly_once":
            raise OptionError(
                f"the channel {connection.channel_name!r} has the delivery exactly_once, which "
                "has no deletes: leave deletes out"
            )
        if key is not None and not deletes:
            raise OptionError(
                f"key is {key!r}, but a reader uses it for the keys of deletes: give deletes=True "
                "as well, or leave it out"
            )
        super().__init__(handle)
        self.connection = connection
        self.schema = Schema.parse(connection.schema_definition)
        instances = None
        if as_ is not None:
            instances = Instances(as_, self.schema, connection.channel_name)
        self._deletes = deletes
        key_field = None if key is None else KeyField(key, self.schema)
        self._has_end = until is not None
        grouped = False
        chosen = offsets.chosen_partitions(partitions, connection.partitions)
        has_all = partitions is None
        self._owns: Callable[[int], bool] = frozenset(chosen).__contains__
        if handle is not None and handle.membership is not None:
            grouped, chosen, self._owns = True, handle.attached.partitions, handle.owns
        elif has_all:
            # A reader of all partitions also reads added ones.
            self._owns = range(_MAX_PARTITIONS).__contains__
        # A fixed end has no added partitions, and neither have chosen ones.
        self._follows_growth = until in (None, "finished") and (grouped or has_all)
        self._known_partitions = connection.partitions
        self._growth_due_s = 0.0
        if not isinstance(timeout_s, int | float) or not 1 <= timeout_s <= 86_400:
            raise OptionError(f"timeout_s is {timeout_s!r}; it takes seconds from 1 to 86400")
        self._stream = open_stream(
            connection,
            config or {},
            timeout_s=timeout_s,
            visibility=visibility,
            grouped=grouped,
            consumers=SHARED_CONSUMERS if share_connection else None,
            whole_messages=deletes,
        )
        self._visibility = visibility
        self._committer = OffsetCommitter(
            connection.channel_name,
            handle.membership.group if handle is not None and handle.membership else None,
            uid=connection.channel_uid,
            topic_id=connection.topic_id,
            member=handle,
        )
        self._closed = False
        self._failure: SluicewayError | None = None
        self._suspended: SluicewayError | None = None
        self.transaction: Block | None = None
        """The block that commits its positions, until the reader has gone on or back after it."""
        try:
            # Many of these open at once, and their commits carry the topic's id for a later check.
            self._stream.verify(max_age_s=1.0 if grouped or share_connection else 0.0)
            committed = {} if handle is None else handle.attached.positions
            self._stop_condition = self._create_stop_condition(
                until,
                chosen,
                writers=writers,
                on_lost_writer=on_lost_writer,
                latest=start == "latest",
                open_timeout_s=open_timeout_s,
            )
            self._fetcher = Fetcher(
                connection,
                decoder_for(
                    connection,
                    target=self.schema,
                    refresh=refresh,
                    registry=schema_registry,
                    deletes=deletes,
                ),
                self._stream,
                positions=self._start_positions(start, chosen, committed),
                end_offsets=self._stop_condition,
                skip_corrupt=on_corrupt == "skip",
                timeout_s=timeout_s,
                instances=instances,
                deletes=deletes,
                key=key_field,
            )
            self._committer.start_at(self._fetcher.position())
            if handle is not None:
                handle.metrics.observe(self._fetcher.progress)
        except BaseException:
            self._stream.close()
            raise

    def __iter__(self) -> Iterator[R]:
        """Yield the records one by one; each counts as returned when it is yielded."""
        while (records := self._next(self.records_at_hand)) is not None:
            yield from records

    def records_at_hand(self) -> Iterator[R]:
        """Return an iterator over some fetched records; each counts as returned when it is taken.

        It does not wait, and may be empty. For `aio`, as the next three.
        """
        return self._fetcher.records()

    def read(self, max_records: int, timeout: float | None = 1.0) -> list[R]:
        """Return up to `max_records` records, fewer if no more arrived within `timeout` seconds.

        None waits for all of them. The list is short or empty at the end (see `finished`), after
        the timeout, and before an error, which the next call raises.
        """
        return self.read_some(max_records, timeout, least=max_records)

    def read_some(self, max_records: int, timeout: float | None, *, least: int = 1) -> list[R]:
        """Like `read`, but wait for `least` records only; for facades."""
        self._fetcher.begin_call()
        try:
            with self.span("receive", kind="receive") as span:
                records = self._read(max_records, timeout, least)
                span.set("sluiceway.records", len(records))
        except BaseException:
            # Also an interrupt after the records were counted as returned.
            self._cancel_call()
            raise
        return records

    def _read(self, max_records: int, timeout: float | None, least: int) -> list[R]:
        deadline_s = math.inf if timeout is None else time.monotonic() + timeout
        records: list[R] = []
        self._require_open()
        with self._fetcher.turn.urgent(deadline_s):
            if self._fetcher.reading:
                # Another thread holds the turn and waits for more records past this deadline.
                return records
            try:
                self._record_cycle()
                self._extend(records, max_records, deadline_s, least)
            except BaseException:
                self._cancel_call()
                raise
            finally:
                self._fetcher.end_read()
        return records

    def _extend(self, records: list[R], max_records: int, deadline_s: float, least: int) -> bool:
        """Add fetched records to those of a `read`; False if it may wait for more."""
        limit = whole_number(max_records, 1)
        if limit is None:
            raise OptionError(f"max_records is {max_records!r}; it takes a number from 1")
        while len(records) < limit:
            try:
                if not self._fetch(deadline_s, holding=bool(records)):
                    # The records at hand are returned before a rebalance, which may commit them.
                    return self.finished or (bool(records) and self.rebalance_due)
                records += self._fetcher.take(limit - len(records))
                if len(records) >= least:
                    deadline_s = -math.inf
            except SluicewayError as error:
                if not records:
                    raise
                self._failure = error
                break
        return True

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records as RecordBatches of `schema.arrow`, as large as they arrive.

        A batch counts as returned when it is yielded. Raises SchemaMismatch, before it reads
        anything, for a schema with a union of several types, and OptionError with `deletes`.
        """
        self.require_batches()
        return iter(lambda: self._next(self._fetcher.batch), None)

    def require_batches(self) -> None:
        """Raise SchemaMismatch for a schema with a union of several types.

        OptionError for a reader with `deletes`.
        """
        if self._deletes:
            raise OptionError(
                "batches and tables have no deletes, which this reader returns (deletes=True): "
                "read records, by iteration or with read()"
            )
        if path := find_union(self.schema.record):
            raise SchemaMismatch(
                f"the field {path!r} is a union of several types, which batches do not support: "
                "read records instead, by iteration or with read()"
            )

    def to_arrow(self) -> pa.Table:
        """Return all records up to the end as a table of `schema.arrow`, also if there are none.

        They are in memory together: about as much as their messages take without compression, and
        twice that for `to_pandas` and `to_polars`, more for nested values in pandas and for records
        that arrive a few at a time. An error takes nothing: the next call returns
        the same records again. Raises SchemaMismatch for a schema with a union of several types,
        OptionError with `until=None`, and in a dynamic group, whose partitions change.
        """
        return self._to_end(lambda table: table)

    def to_pandas(self) -> "pd.DataFrame":
        """Return all records up to the end as a dataframe; see `to_arrow`.

        Integers and booleans of nullable fields have pandas' nullable types, because those of NumPy
        would round large integers; nested values are lists and dicts. Raises OptionError without
        pandas.
        """
        require_library("pandas", "to_pandas")
        return self._to_end(to_pandas)

    def to_polars(self) -> "pl.DataFrame":
        """Return all records up to the end as a dataframe of polars; see `to_arrow`.

        Raises OptionError without polars.
        """
        require_library("polars", "to_polars")
        return self._to_end(to_polars)

    def _to_end(self, convert: Callable[[pa.Table], T]) -> T:
        """Read to the end, and return the result of `convert` for all records."""
        self.require_end()
        self._fetcher.begin_call()
        batches: list[pa.RecordBatch] = []
        try:
            with self.span("receive", kind="receive") as span:
                self.take_to_end(batches, math.inf)
                table = pa.Table.from_batches(batches, self.schema.arrow)
                span.set("sluiceway.records", table.num_rows)
                converted = convert(table)
            self._fetcher.end_read()
        except BaseException:
            self._cancel_call()
            raise
        return converted

    def require_end(self) -> None:
        """Raise unless `to_arrow` and its like have an end, and a table for the schema."""
        self.require_batches()
        if not self._has_end:
            raise OptionError(
                "this reader has no end (until=None), so all of its records are never there: open "
                "it with until='now', or loop over batches()"
            )

    def take_to_end(self, batches: list[pa.RecordBatch], deadline_s: float = -math.inf) -> bool:
        """Add the batches up to the end, or those that arrive before the deadline; False then.

        They count as returned after `end_call`. For `aio`, by default without waiting.
        """
        self._require_open()
        with self._fetcher.turn:
            self._record_cycle()
            while self._fetch(deadline_s, holding=bool(batches)):
                if (batch := self._fetcher.take_batch()) is not None:
                    batches.append(batch)
            return self.finished

    def read_at_hand(self, records: list[R], max_records: int) -> bool:
        """Add records that have arrived to those of a `read`; False if it may wait for more.

        They count as returned after `end_call`; `put_back` takes them back.
        """
        self._require_open()
        with self._fetcher.turn.urgent():
            self._record_cycle()
            return self._extend(records, max_records, -math.inf, max_records)

    def take_at_hand(self, take: Callable[[], T | None]) -> T | None:
        """Return the result of `take` if records have arrived; None also at the end."""
        self._require_open()
        with self._fetcher.turn.urgent():
            self._record_cycle()
            return take() if self._fetch(-math.inf) else None

    def batch_at_hand(self) -> pa.RecordBatch | None:
        """Return a batch of records that have arrived; it counts as returned after `end_call`."""
        return self.take_at_hand(self._fetcher.take_batch)

    def end_call(self) -> None:
        """Count what the last call has taken as returned."""
        self._fetcher.end_call()

    def put_back(self) -> None:
        """Put back what the last call has taken, before `end_call`: its caller does not get it."""
        self._fetcher.put_back()
        self._mark_incomplete()

    def _cancel_call(self) -> None:
        self._fetcher.cancel_call()
        self._mark_incomplete()

    def _mark_incomplete(self) -> None:
        if self._handle is not None:
            self._handle.mark_incomplete()

    @property
    def arrived(self) -> Signal:
        """It is set when records may have arrived."""
        return self._stream.arrived

    @property
    def rebalance_due(self) -> bool:
        """Whether the next call begins with a rebalance of the group."""
        return False

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that this reader reads, in order."""
        return self._fetcher.partitions

    def discover_partitions(self) -> tuple[int, ...]:
        """Start to read added partitions that are assigned to this reader, and return them.

        They are read from the beginning. Readers without a fixed end do so by themselves, some
        seconds later. Members of dynamic groups get them with a rebalance.
        """
        with self._fetcher.turn.urgent():
            self._require_open()
            return self._read_added_partitions()

    def commit(self, positions: Mapping[int, Position | int] | None = None) -> None:
        """Store positions with the gateway, all or none; by default the current ones.

        A successor of this reader continues there. Raises CommitBeyondRead for records that were
        not returned yet, Conflict `goes_back` for a position before a stored one, Fenced and
        StaleGeneration for a superseded reader, GatewayUnavailable and other GatewayErrors that are
        not final, after which the next commit includes these positions, and OptionError in a
        transaction, which commits them together with its output.
        """
        self.require_continued()
        if self.in_transaction:
            raise OptionError(
                "this reader is in a transaction, which commits its positions with the output: if "
                "the block failed after this commit, records would be lost. Leave the block first"
            )
        with self.span("commit", kind="settle"):
            self._committer.commit(positions, self.position)

    def commit_with(self, send: Callable[[PositionAdvance | None], None]) -> None:
        """Commit the current positions by the caller's `send`, for transactions.

        `send` gets None if they are committed already.
        """
        self._require_open()
        self._committer.commit_with(send, self.position)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction commits its positions."""
        return self.transaction is not None and not self.transaction.abandoned

    @property
    def revoked_uncommitted(self) -> bool:
        """True after the loss of a partition with returned records that were not committed."""
        return self._committer.revoked_uncommitted

    def mark_committed(self, positions: Mapping[int, Position]) -> None:
        """Record positions that an unanswered commit of `commit_with` has stored."""
        self._committer.mark_committed(positions)

    def rewind(self) -> None:
        """Return to the last commit or seek, or to the start."""
        with self._fetcher.turn.urgent():
            self._require_open()
            start = self._committer.rewind()
            # Partitions that were added since are read from their beginning.
            self._seek({p: start.get(p, Position(offset=0)) for p in self.partitions})

    def suspend(self, error: SluicewayError | None) -> None:
        """Refuse further calls with an error, for transactions; None accepts them again."""
        with self._fetcher.turn.urgent():
            self._suspended = error
            # Iterators have records at hand.
            self._fetcher.reclaim()

    def committed(self) -> dict[int, Position]:
        """Return the committed positions of this reader's partitions."""
        self._require_open()
        return {p: at for p, at in self._committer.committed().items() if self._owns(p)}

    def position(self) -> dict[int, Position]:
        """Return the position of the next record, by partition.

        For a snapshot of an exactly-once channel, and without a group for until="now", positions
        above the oldest open batch's begin are reported as that: starting there may repeat records,
        and skips none.
        """
        self._require_open()
        positions, visibility = self._fetcher.position(), self._visibility
        if visibility is None:
            return positions
        return {p: visibility.resumable(p, at) for p, at in positions.items()}

    def seek(self, positions: Mapping[int, Position | int]) -> None:
        """Continue reading these partitions at these positions (an int is an offset).

        Other partitions keep theirs. Raises OptionError and OffsetOutOfRange, without a change.
        """
        with self._fetcher.turn.urgent():
            self._require_open()
            self._seek(offsets.positions_at(positions, self._stream.watermarks(self.partitions)))

    def seek_to_time(self, moment: datetime) -> None:
        """Continue each partition at the first message that is not older, or at its end.

        Raises OptionError.
        """
        with self._fetcher.turn.urgent():
            self._require_open()
            self._seek(offsets.start_positions(moment, self.partitions, self._stream))

    def end_offsets(self) -> dict[int, int]:
        """Return the offset after the last message of each partition that can be read."""
        self._require_open()
        return self._stream.ends(self.partitions)

    def lag(self) -> dict[int, int]:
        """Return the number of offsets between the position and the end of each partition.

        A partly read message counts. With gaps in the log there are fewer messages.
        """
        self._require_open()
        positions = self._fetcher.position()
        ends = self._stream.ends(positions)
        return {p: max(0, ends[p] - at.offset) for p, at in positions.items()}

    @property
    def finished(self) -> bool:
        """Whether all records up to the end have been returned; never with `until=None`.

        False while an error is still to be raised, such as WriterFailed: the next call raises it.
        """
        complete = self._failure is None and not self._stop_condition.failed
        return complete and self._fetcher.finished

    @property
    def corrupt_messages(self) -> int:
        """The number of messages skipped so far, counted again after a seek."""
        return self._fetcher.corrupt_messages

    def close(self) -> None:
        """Close the Kafka consumer and detach from the channel. May be repeated.

        Index 0 of a group waits for the other members; SluicewayTimeout names those that are
        still attached after the `close_timeout_s` of `Channel.reader`. Raises Fenced for a
        superseded reader, and GatewayUnavailable.
        """
        self._release()
        if self._handle is not None:
            # Other threads raise before they take the turn; the rest may take long.
            with self._fetcher.turn:
                self._handle.detach()

    def abort(self, error: BaseException) -> None:
        """Close, and report to the gateway that `error` ended this reader."""
        try:
            self._release()
        finally:
            # Also after an interrupt, or `close` would report success.
            if self._handle is not None:
                with self._fetcher.turn:
                    self._handle.fail(error)

    def span(self, operation: str, *, kind: str) -> AbstractContextManager[ActiveSpan]:
        """Start the span of an operation of this reader."""
        member = None if self._handle is None else self._handle.membership
        group = None if member is None else member.group
        name, topic = self.connection.channel_name, self.connection.topic_name
        return channel_span(operation, name, kind=kind, topic=topic, group=group)

    def _release(self) -> None:
        with self._fetcher.turn.urgent():
            if not self._closed:
                self._closed = True
                self._fetcher.reclaim()
                self._stream.close()

    def _start_positions(
        self, start: offsets.Start, partitions: Sequence[int], committed: Mapping[int, Position]
    ) -> dict[int, Position]:
        return offsets.start_positions(start, partitions, self._stream, committed)

    def _create_stop_condition(
        self,
        until: offsets.Until,
        chosen: Sequence[int],
        **waiting: Any,
    ) -> StopCondition:
        handle, stream, owns = self._handle, self._stream, self._owns
        if until != "finished" or handle is None:
            return StopCondition(offsets.end_offsets(until, chosen, stream), handle)
        return WhenFinished(
            handle,
            final_ends=lambda: stream.final_ends(  # must not keep this reader alive
                # A broker may not know the latest partitions yet.
                [*filter(owns, range(max(stream.discover_partitions(), handle.partitions)))]
            ),
            owns=owns,
            **waiting,
            committed=self.connection.delivery == "exactly_once",
        )

    def _next(self, take: Callable[[], T | None]) -> T | None:
        """Return the result of `take` once there are fetched records; None at the end."""
        self._require_open()
        self._fetcher.begin_call()
        try:
            with self._fetcher.turn:
                self._record_cycle()
                while self._fetch(math.inf):
                    if (taken := take()) is not None:
                        return taken
                return None
        except BaseException:
            self._cancel_call()
            raise

    def _fetch(self, deadline_s: float, *, holding: bool = False) -> bool:
        """Whether there are fetched records before the deadline; call it with the turn held.

        `holding`: the caller has records that it has not returned yet.
        """
        self._require_open()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._visibility is not None:
            # Also before the records that are fetched already.
            self._visibility.require_current()
        self._follow_growth()
        while not self._fetcher.fetch(self._next_check_s(deadline_s), holding=holding):
            if self._fetcher.finished and self._stop_condition.verify_complete():
                if self.finished and self._handle is not None:
                    through = self._stop_condition.finished_through
                    self._handle.mark_complete(finished_through=through)
                return False
            if time.monotonic() >= deadline_s:
                return False
            self._fetcher.turn.yield_to_waiters(-math.inf if holding else deadline_s)
            self._require_open()
            self._follow_growth()
        return True

    def _next_check_s(self, deadline_s: float) -> float:
        """Return the time until which one fetch may last."""
        if not self._follows_growth:
            return deadline_s
        return min(deadline_s, max(self._growth_due_s, time.monotonic()))

    def _follow_growth(self) -> None:
        """Read added partitions, as of the last heartbeat, or of Kafka without an endpoint."""
        if not self._follows_growth or time.monotonic() < self._growth_due_s:
            return
        pause_s = _GROWTH_CHECK_S
        try:
            if self._handle is not None:
                total = self._handle.partitions
            else:
                total = self._stream.count_partitions(
                    timeout_s=_DESCRIPTION_TIMEOUT_S, max_age_s=_DESCRIPTION_MAX_AGE_S
                )
            if total > self._known_partitions:
                self._read_added_partitions()
        except KafkaUnavailable as error:
            # The partitions at hand are read on; added ones follow when Kafka answers.
            LOGGER.info("added partitions are looked for later: %s", error)
            pause_s = _DESCRIPTION_MAX_AGE_S
        # After the request, which may take longer than the pause.
        self._growth_due_s = time.monotonic() + pause_s

    def _read_added_partitions(self) -> tuple[int, ...]:
        present = self._fetcher.partitions
        total = self._stream.discover_partitions()
        added = tuple(p for p in filter(self._owns, range(total)) if p not in present)
        if added:
            self._fetcher.reassign(added={p: Position(offset=0) for p in added})
            if self._handle is not None:
                self._handle.mark_incomplete()
        self._known_partitions = max(self._known_partitions, total)
        return added

    def _record_cycle(self) -> None:
        if self._handle is not None:
            self._handle.record_cycle(self._fetcher.returned_records)

    def _seek(self, positions: Mapping[int, Position]) -> None:
        self._failure = None
        if self._handle is not None:
            self._handle.mark_incomplete()
        self._committer.track_consumed(self._fetcher.position())
        self._fetcher.seek(positions)
        self._committer.start_at(positions)

    def _require_open(self) -> None:
        if self._closed:
            raise EndpointClosed("this reader is closed; open a new one with channel.reader()")
        self.require_continued()
        if self._handle is not None:
            self._handle.check()

    def require_continued(self) -> None:
        """Raise unless the reader has gone on, or back, after its last transaction.

        After a retriable error of going back, such as KafkaUnavailable, it goes back now.
        """
        if self._suspended is not None:
            self._go_back_again()
        if self.transaction is not None and self.transaction.abandoned:
            raise EndpointClosed(
                "an interrupt ended a transaction of this reader before the reader went back to "
                "its last commit: open a new reader"
            )

    def _go_back_again(self) -> None:
        with self._fetcher.turn.urgent():
            suspended = self._suspended
            if suspended is None:
                return
            if not suspended.retriable or isinstance(suspended, CommitUnknown):
                raise suspended
            try:
                self._suspended = None
                self.rewind()
            except BaseException as error:
                self._suspended = error if isinstance(error, SluicewayError) else suspended
                raise
