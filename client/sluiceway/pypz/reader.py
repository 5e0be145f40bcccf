"""KafkaChannelReader: pypz's channel reader, with record counts as offsets."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from sluiceway import ChannelReader, Endpoint, Heartbeat, Position
from sluiceway.errors import CommitBeyondRead, Conflict, OptionError
from sluiceway.pypz.channel import ChannelBase
from sluiceway.pypz.config import ReaderSettings, group_name, reader_settings
from sluiceway.pypz.peers import ChannelStatusMonitor, FailedWriters
from sluiceway.pypz.status import ChannelStatus
from sluiceway.pypz.values import ValueSchema

__all__ = ["KafkaChannelReader", "OffsetHistory"]


_MAX_ACKNOWLEDGED = 100
"""With more partitions, an acknowledgement has no positions, which would not fit."""
_CLOSE_TIMEOUT_S = 60.0
_MAX_RUNS = 10_000
"""With more runs, pairs of them become one, with a position for its first record only."""


@dataclass(kw_only=True)
class _Run:
    """`length` consecutive records from `count` on; `before` are the positions before them."""

    count: int
    length: int
    partition: int | None
    before: Mapping[int, Position]

    def leads_to(self, partition: int, history: "OffsetHistory") -> bool:
        return self.partition == partition and self.at(history.count) == history.current

    def at(self, count: int) -> Mapping[int, Position]:
        if self.partition is None:
            return self.before
        offset = self.before[self.partition].offset + count - self.count
        return {**self.before, self.partition: Position(offset=offset)}


class OffsetHistory:
    """Positions of a reader by the number of records read, until they are committed.

    In one partition without gaps, every count has a position. With several partitions, or gaps,
    only the counts at the ends of calls have one; after each 10,000 uncommitted calls, only every
    second of these. Others are rounded down to it, so a commit never covers a record that was not
    read.
    """

    def __init__(self, count: int, positions: Mapping[int, Position]) -> None:
        self.count = count
        self.current = dict(positions)
        self._runs: deque[_Run] = deque()

    def add(self, records: int, positions: Mapping[int, Position]) -> None:
        """Add records that were read, up to these positions."""
        if not records:
            # Only offsets without records are in between.
            self.current = dict(positions)
            return
        moved = [p for p in positions if positions[p] != self.current.get(p)]
        partition = None
        if len(moved) == 1 and self._is_consecutive(moved[0], records, positions):
            partition = moved[0]
        last = self._runs[-1] if self._runs else None
        if last is not None and partition is not None and last.leads_to(partition, self):
            last.length += records
        else:
            if len(self._runs) >= _MAX_RUNS:
                self._coarsen()
            self._runs.append(
                _Run(count=self.count, length=records, partition=partition, before=self.current)
            )
        self.count += records
        self.current = dict(positions)

    def at(self, count: int) -> Mapping[int, Position]:
        """Return the positions after `count` records, or the last known ones before that.

        `count` is not lower than the last one that was forgotten.
        """
        if count >= self.count:
            return self.current
        return next(run for run in reversed(self._runs) if run.count <= count).at(count)

    def go_back(self, count: int, positions: Mapping[int, Position]) -> None:
        """Remove the records after the first `count`, which are at these positions."""
        while self._runs and self._runs[-1].count >= count:
            self._runs.pop()
        if self._runs:
            last = self._runs[-1]
            last.length = min(last.length, count - last.count)
        self.count, self.current = count, dict(positions)

    def forget(self, count: int) -> None:
        """Forget the positions before `count`, which is committed."""
        while self._runs and self._runs[0].count + self._runs[0].length <= count:
            self._runs.popleft()

    def _coarsen(self) -> None:
        runs = [*self._runs]
        self._runs = deque(
            _Run(
                count=first.count,
                length=first.length + second.length,
                partition=None,
                before=first.before,
            )
            for first, second in zip(runs[::2], runs[1::2], strict=True)
        )

    def _is_consecutive(
        self, partition: int, records: int, positions: Mapping[int, Position]
    ) -> bool:
        before, after = self.current.get(partition), positions[partition]
        if before is None or before.records or after.records:
            return False
        return after.offset - before.offset == records


class KafkaChannelReader(ChannelBase[ChannelReader]):
    """Reads the channel of one input port; the principal's port creates and deletes it.

    The replicas of a port are a group: replica i of n reads the partitions p with p mod n = i, in
    group mode all of them. Offsets count records; a channel with one partition per replica has
    Kafka's own offsets. Committed positions only move forward.
    """

    InitialDataConsumerTimeoutInMs = 10_000
    """The timeout of the first call, in milliseconds."""
    DataConsumerTimeoutInMs = 5000
    """The timeout of later calls, in milliseconds."""
    NotInitialized = -9999
    """The offset before one is set."""

    _role = "reader"

    def __init__(
        self, channel_name: str, context: Any, executor: Executor | None = None, **kwargs: Any
    ) -> None:
        super().__init__(channel_name, context, executor, **kwargs)
        self._settings = ReaderSettings()
        self._failed_writers: FailedWriters | None = None
        self._consumer_timeout_ms: int | None = None
        self._end_offsets: Mapping[int, int] = {}
        self._read_record_count = 0
        self._read_record_offset = self.NotInitialized
        self._initial_input_record_offset = 0
        self._last_offset_committed = 0
        self._history: OffsetHistory | None = None
        self._unreturned: Mapping[int, Position] | None = None
        """The positions before a call that was interrupted, to which the next one goes back."""
        self._starts: dict[int, Position] = {}
        self._written: Mapping[bytes, ValueSchema] = {}
        """The schemas of values that other ports have written, by fingerprint."""

    def acknowledge_input(self) -> None:
        """Acknowledge all records read so far to the writers."""
        at: dict[str, int] = {}
        reader = None if self._endpoint is None else self._opened()
        if reader is not None and len(reader.partitions) <= _MAX_ACKNOWLEDGED:
            at = {str(p): position.offset for p, position in reader.position().items()}
        self.invoke_sync_send_status_message(ChannelStatus.Acknowledged, {"at": at} if at else None)

    def has_records(self) -> bool:
        """Whether there are records to read, or to wait for.

        If everything is read and a writer failed or was lost, it waits for a successor up to the
        channel's heartbeat timeout, then raises WriterFailed or WriterLost, unless the writer wrote
        nothing. With `onLostWriter` "wait" the wait is unlimited, with "go_on" there is none;
        neither raises these errors.
        """
        reader = self._opened()
        # Before the end offsets: writers that have ended now write nothing after these.
        waits, fault, through = False, None, None
        if self._failed_writers is not None:
            waits, fault = self._failed_writers.check(self._counterparts)
            through = self._failed_writers.finished_through(self._counterparts)
            reader.handle.mark_incomplete()
        if any(reader.position()[p].offset < end for p, end in self._end_offsets.items()):
            return True
        if self.get_consumer_lag() > 0:
            return True
        if (
            not self.is_any_connected_channel_healthy_and_not_stopped_and_not_closed()
            and self._read_new_partitions(reader)
            and self.get_consumer_lag() > 0
        ):
            return True
        if fault is not None:
            raise fault
        if through is not None and not waits:
            reader.handle.mark_complete(finished_through=through)
        return waits

    def get_consumer_lag(self) -> int:
        """Return the number of offsets up to the ends of this reader's partitions."""
        reader = self._opened()
        self._end_offsets = reader.end_offsets()
        positions = reader.position()
        return sum(max(0, end - positions[p].offset) for p, end in self._end_offsets.items())

    def can_close(self) -> bool:
        """Whether it may be closed; a principal's reader only after those of its replicas."""
        group = self._context.get_group_name()
        if not self._context.is_principal() or group is None:
            return True
        self.invoke_sync_status_update()
        if self.retrieve_all_connected_channel_count() == 0:
            return True

        def has_ended(member: ChannelStatusMonitor) -> bool:
            ended = member.is_channel_stopped() or member.is_channel_closed()
            return member.get_channel_group_name() == group and (
                ended or not member.is_channel_healthy()
            )

        # Members of a larger group, which has shrunk since, have ended too.
        ended = len(self.retrieve_connected_channel_unique_names(has_ended))
        return ended >= int(self._context.get_group_size()) - 1 and not any(
            monitor.get_channel_group_name() == group and not has_ended(monitor)
            for monitor in self._peers.monitors
        )

    def invoke_read_records(self) -> list[Any]:
        """Return up to `max_poll_records` records as soon as there are some; [] after the timeout.

        The timeout is InitialDataConsumerTimeoutInMs for the first call, then
        DataConsumerTimeoutInMs. [] is not the end: see `has_records` and the writers' states.

        Raises SchemaParseException, EndpointClosed, Fenced, CorruptMessage, SchemaMismatch,
        OffsetOutOfRange, TopicGone and KafkaUnavailable; none of them loses a record.
        """
        if self._endpoint is None:
            # An invalid schema is reported before a channel that is not open.
            _ = self._resources.schema
        reader, before = self._opened(), self._ensure_history().current
        records = self._read_records()
        try:
            self._catch_up()
            count, position = len(records), reader.position()
            if self._metrics_enabled:
                self._metrics.record_cycle(self._read_record_count)
            if self._history is not None:
                self._history.add(count, position)
        except BaseException:
            # This call returns no records, so the next one goes back.
            self._unreturned = before
            raise
        # No call from here on: the interpreter handles interrupts at calls.
        self._read_record_count += count
        self._read_record_offset += count
        return records

    def _opened(self) -> ChannelReader:
        reader = super()._opened()
        if self._unreturned is not None:
            history, before = self._history, self._unreturned
            # Partitions that were added in the interrupted call are read from their beginning.
            first = Position(offset=0)
            reader.seek({p: before.get(p, first) for p in reader.partitions})
            if history is not None:
                history.go_back(self._read_record_offset, before)
            self._unreturned = None
        return reader

    def _read_records(self) -> list[Any]:
        """Return the next records; a subclass may call this method, and change them."""
        timeout_ms = self._consumer_timeout_ms
        if timeout_ms is None:
            timeout_ms = self.InitialDataConsumerTimeoutInMs
            self._consumer_timeout_ms = self.DataConsumerTimeoutInMs
        reader, values = self._opened(), self._resources.values
        # Only the conversion of values may fail after the read.
        before = {} if values is None else reader.position()
        # Changes of writers do not end the wait: their records may be in flight.
        records = reader.read_some(self._settings.max_poll_records, timeout_ms / 1000)
        if values is None or not records:
            return records
        try:
            return [values.from_record(record, self._other_schemas(record)) for record in records]
        except BaseException:
            self._unreturned = before
            raise

    def _other_schemas(self, record: Mapping[str, Any]) -> Mapping[bytes, ValueSchema]:
        """Return the schemas of the channel's values, requested for one of another schema."""
        values, fingerprint = self._resources.values, record["fingerprint"]
        if values is not None and fingerprint in (values.fingerprint, *self._written):
            return self._written
        versions = self._resources.channel().schemas()
        self._written = ValueSchema.of_versions([version.definition for version in versions])
        return self._written

    def get_read_record_count(self) -> int:
        """Return the number of records read by this reader."""
        return self._read_record_count

    def get_read_record_offset(self) -> int:
        """Return the offset of the next record, or NotInitialized."""
        return self._read_record_offset

    def set_initial_record_offset(self, initial_record_offset: int) -> None:
        """Continue reading at this offset, and count from it.

        Raises OffsetOutOfRange, and OptionError if the reader has several partitions, where one
        offset is ambiguous.
        """
        if self._endpoint is not None:
            reader = self._opened()
            before = reader.position()
            try:
                self._history = self._seek(reader, initial_record_offset)
            except BaseException:
                self._unreturned = before
                raise
        self._initial_input_record_offset = initial_record_offset
        self._last_offset_committed = initial_record_offset
        self._read_record_offset = initial_record_offset

    def set_initial_record_offset_auto(self) -> None:
        """Continue at the group's committed positions, else at this reader's start."""
        before = self._opened().position()
        try:
            self.set_initial_record_offset(self._load_input_record_offset())
        except BaseException:
            self._unreturned = before
            raise

    def _load_input_record_offset(self) -> int:
        """Move to the group's committed positions, else to this reader's start; return their sum.

        A subclass may return an offset of its own.
        """
        reader = self._opened()
        committed = {} if self._silent_mode else reader.committed()
        # Partitions that were added since the start are read from their beginning.
        starts = {p: self._starts.get(p, Position(offset=0)) for p in reader.partitions}
        positions = starts | {p: at for p, at in committed.items() if p in starts}
        moved = {p: at for p, at in positions.items() if reader.position()[p] != at}
        if moved:
            reader.seek(moved)
        return sum(position.offset for position in positions.values())

    def invoke_commit_offset(
        self, offset: int, compensate_with_initial_offset: bool = True
    ) -> None:
        """Commit the records up to this offset, counted from the initial offset.

        Without compensation, `offset` is absolute. Raises CommitBeyondRead (a ValueError) for
        records that were not read, and Conflict `goes_back` below the last commit.
        """
        self._opened()
        self._ensure_history()
        wanted = offset + self._initial_input_record_offset * compensate_with_initial_offset
        if wanted > self._read_record_offset:
            raise CommitBeyondRead(
                f"Offset is out of range: {wanted}; Current read offset? {self._read_record_offset}"
            )
        if wanted == self._last_offset_committed:
            return
        if wanted < self._last_offset_committed:
            raise Conflict(
                f"Offset to commit ({wanted}) is lower than the last committed offset "
                f"({self._last_offset_committed}); nothing was committed. To go back, use "
                "channel.reset(group, …, reason=…)",
                status=409,
                code="goes_back",
            )
        self._commit_offset(wanted)
        self._last_offset_committed = wanted

    def invoke_commit_current_read_offset(self) -> None:
        """Commit all records that were returned."""
        self._opened()
        self._ensure_history()
        self._commit_offset(self._read_record_offset)
        self._last_offset_committed = self._read_record_offset

    def _commit_offset(self, offset: int) -> None:
        """Commit the positions before the record of this absolute offset, or before an earlier one.

        A subclass may note the offset elsewhere, and call this method.
        """
        history = self._ensure_history()
        # Not the reader's own positions: within `invoke_read_records`, a status callback may commit
        # before the records are returned.
        self._opened().commit(history.at(offset))
        history.forget(offset)

    def _ensure_history(self) -> OffsetHistory:
        """Return the history, which begins at the set offset, else at the committed one."""
        if self._history is None:
            self.set_initial_record_offset_auto()
        assert self._history is not None  # noqa: S101 - set just now
        return self._history

    def _seek(self, reader: ChannelReader, offset: int) -> OffsetHistory:
        """Move the reader to an offset, and return a history that begins there."""
        positions = reader.position()
        if offset != sum(position.offset for position in positions.values()):
            if len(positions) != 1:
                raise OptionError(
                    f"the offset {offset} is ambiguous in {len(positions)} partitions; continue at "
                    "the committed positions: set_initial_record_offset_auto()"
                )
            reader.seek(dict.fromkeys(positions, offset))
        return OffsetHistory(offset, reader.position())

    def _read_new_partitions(self, reader: ChannelReader) -> bool:
        """Read added partitions; return whether there are any."""
        new = reader.discover_partitions()
        if new:
            self._ensure_history().add(0, reader.position())
        return bool(new)

    def _create_resources(self) -> bool:
        heartbeat = Heartbeat(
            interval_ms=self.DefaultStatusThreadIntervalInMs,
            timeout_ms=ChannelStatusMonitor.ValidPatienceTimeInMs,
        )
        group_mode = self._context.is_in_group_mode()
        partitions = 1 if group_mode else int(self._context.get_group_size())
        return self._resources.attempt(lambda: self._resources.create(partitions, heartbeat))

    def _delete_resources(self) -> bool:
        unread = self._settings.delete_unread
        return self._resources.attempt(lambda: self._resources.delete(unread=unread))

    def _open_channel(self) -> bool:
        if self._endpoint is not None:
            return True
        if self._silent_mode:
            channel = self._resources.channel()
            reader = channel.reader(until=None, config=self._settings.kafka)
        else:
            channel = self._resources.readable_channel()
            reader = channel.reader(
                group=self._group,
                index=self._context.get_group_index(),
                size=self._context.get_group_size(),
                mode="broadcast" if self._context.is_in_group_mode() else "shared",
                until=None,
                close_timeout_s=_CLOSE_TIMEOUT_S,
                patience_s=self._settings.patience_s(channel.heartbeat.timeout_ms),
                config=self._settings.kafka,
            )
        history, handle, failed_writers = None, None, None
        try:
            starts = reader.position()
            if self._read_record_offset != self.NotInitialized:
                # It was set before.
                history = self._seek(reader, self._read_record_offset)
            if not self._silent_mode:
                handle = reader.handle
                handle.subscribe()
                failed_writers = FailedWriters(
                    channel.name,
                    self._settings.on_lost_writer,
                    patience_s=channel.heartbeat.timeout_ms / 1000,
                    reader=handle.attached,
                )
        except BaseException as error:
            reader.abort(error)
            raise
        # No call from here on: the interpreter handles interrupts at calls.
        self._endpoint, self._handle, self._channel = reader, handle, channel
        self._starts, self._history, self._failed_writers = starts, history, failed_writers
        self._consumer_timeout_ms = None
        return True

    def _may_close(self) -> bool:
        """Whether the other members have left the group; the principal leaves last."""
        if self._silent_mode or not self._context.is_principal():
            return True
        return not any(member.lives for member in self._other_members())

    def _release(self) -> None:
        super()._release()
        self._failed_writers = self._history = self._unreturned = None
        self._end_offsets = {}

    def _configure_channel(self, configuration: Mapping[str, Any]) -> None:
        self._settings = reader_settings(configuration, self._logger.warning)

    def _update(self, endpoints: Iterable[Endpoint]) -> None:
        present = list(endpoints)
        if self._failed_writers is not None:
            self._failed_writers.observe(present)
            present = [
                endpoint for endpoint in present if not self._failed_writers.was_read(endpoint)
            ]
        super()._update(present)

    def _record_counts(self) -> dict[str, int]:
        read = self._read_record_count
        return {"receivedRecordCount": read} if read else {}

    def _unreported_peers(self) -> Iterable[Endpoint]:
        if self._silent_mode:
            return self._endpoints("writer")
        return self._other_members() if self._context.is_principal() else ()

    def _other_members(self) -> Sequence[Endpoint]:
        """Request the other members of the group, as heartbeats report writers only."""
        if self._endpoint is None or int(self._context.get_group_size()) <= 1:
            return ()
        own_id = self._endpoint.endpoint_id
        readers = self._endpoints("reader")
        return [reader for reader in readers if reader.group == self._group and reader.id != own_id]

    @property
    def _group(self) -> str:
        return group_name(str(self._context.get_group_name() or self._context.get_full_name()))
