"""ChannelReader: reads records from a channel."""

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import pyarrow as pa

from sluiceway import offsets
from sluiceway.codecs.decoder import decoder_for
from sluiceway.endpoint.committer import OffsetCommitter
from sluiceway.endpoint.handle import EndpointHandle, StatusCallback
from sluiceway.endpoint.stop_condition import OnLostWriter, StopCondition, WhenFinished
from sluiceway.errors import EndpointClosed, OptionError, SluicewayError
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.consumer import MessageStream
from sluiceway.kafka.fetcher import Fetcher
from sluiceway.kafka.shared_stream import opened
from sluiceway.rest.endpoint_models import Position
from sluiceway.rest.models import Connection
from sluiceway.schema import Schema


class Presence:
    """A writer or reader that may be an endpoint of its channel."""

    _attachment: EndpointHandle | None

    @property
    def endpoint_id(self) -> str | None:
        """Its id, 32 hexadecimal digits; None: it is no endpoint, nobody knows of it."""
        return None if self._attachment is None else self._attachment.id

    @property
    def payload(self) -> Mapping[str, Any] | None:
        """What its counterparts are told: an object of JSON's values, up to 4 KiB, or None."""
        return self.attachment.payload

    @payload.setter
    def payload(self, payload: Mapping[str, Any] | None) -> None:
        self.attachment.payload = payload

    @property
    def finish_requested(self) -> bool:
        """Whether the channel closes or is being deleted, as far as the beats have told.

        A writer should come to its end then; a reader knows that no other writer comes.
        """
        return self._attachment is not None and self._attachment.finish_requested

    def on_status(self, callback: StatusCallback) -> None:
        """Call `callback` with its counterparts, a tuple of Endpoint: now, and when they change.

        It is called in the thread of the beats, which it should not keep; what it raises is
        written to the log.
        """
        self.attachment.listen(callback)

    @property
    def attachment(self) -> EndpointHandle:
        """Its life as an endpoint, for what is built upon readers and writers. Raises OptionError.

        There is none where nobody knows of it.
        """
        if self._attachment is None:
            raise OptionError(
                "nobody knows of this reader or writer, so it has no status: give it a group"
            )
        return self._attachment

    def _excuse(self, *, done: bool) -> None:
        """If all is done that there was to do, note that to let go of it now is to close it."""
        if done and self._attachment is not None:
            self._attachment.session.excuse(self._attachment)

    def _check(self) -> None:
        if self._attachment is not None:
            self._attachment.check()


class Growing(Presence):
    """A reader that may be told to look whether there is more for it to read."""

    _intake: Fetcher
    _stream: MessageStream

    @abstractmethod
    def _require_open(self) -> None:
        """Raise EndpointClosed, or what the gateway said against it."""

    def meet_new_partitions(self) -> tuple[int, ...]:
        """Read the partitions too that are this reader's and are new, and return them.

        They are read from their beginning. Members of dynamic groups take them with their shares.
        """
        attachment = self._attachment
        member = None if attachment is None else attachment.membership
        if member is not None and member.dynamic:
            return ()
        with self._intake.turn.urgently():
            self._require_open()
            present = self._intake.partitions
            came = tuple(
                p
                for p in range(self._stream.meet_new_partitions())
                if p not in present and (attachment is None or attachment.owns(p))
            )
            if came:
                self._intake.reassign(come={p: Position(offset=0) for p in came})
        return came


T = TypeVar("T")


class ChannelReader(Growing):
    """Reads a channel's records; made by `Channel.reader()`, or of a Connection alone.

    Iterating gives each record as a dict; `batches()` gives pyarrow.RecordBatches, `read()` a
    list. All three take from the same place, and may be mixed. The order within a partition is
    kept, partitions come as they come. With `until="finished"`, reading ends when the channel's
    writers have finished and all they wrote is read, with `until="now"` at the watermarks of the
    moment at which the reader was opened, with `until=None` never. Messages of older and of newer
    schemas than the reader's are read as records of its own.

    `position()` tells where the reader stands, valid to the record, and a reader that starts
    there reads exactly the rest. A reader with a group shares the channel with the group's other
    members; `commit()` keeps its positions with the gateway, where its successor goes on. Nothing
    is committed by itself. An error moves no position: the same call may be made again.

    Thread-safe: of threads that share a reader, each record goes to one. Each iterates by an
    iterator of its own (`for record in reader`); while one waits for records, the others wait for
    their turn, and any of them may commit, seek and close.
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
        attachment: EndpointHandle | None = None,
        writers: int = 1,
        on_lost_writer: OnLostWriter = "raise",
        share_connection: bool = False,
    ) -> None:
        """Open a reader.

        `until` may also give an end offset for each partition. `start` is "earliest", "latest",
        a datetime with a time zone (the first message not older), or a Position or offset for
        each partition (those left out start earliest). `on_corrupt="skip"` passes over messages
        that are none of the channel's and counts them. `timeout_s` bounds how long Kafka may be
        silent; `config` has further Kafka properties of a consumer. With `share_connection` it
        fetches by connections that it has in common with others of its process. `refresh` asks the
        gateway for the connection anew, for messages of a schema that came after it.

        `attachment` is what makes it an endpoint, whose partitions and committed positions it
        takes. With `until="finished"`, `writers` is how many have to come at least, and
        `on_lost_writer` says what becomes of those that failed or were lost: "raise" WriterFailed
        or WriterLost when all else is read and, for the channel's heartbeat timeout, none was
        started again in its place, "wait" until they are, "go_on" as if they had finished. Raises
        OptionError, OffsetOutOfRange, TopicGone, KafkaUnavailable.
        """
        config = MaskedProperties(config or {})
        if on_corrupt not in ("raise", "skip"):
            raise OptionError(f"on_corrupt is {on_corrupt!r}; it takes 'raise' or 'skip'")
        self.connection = connection
        self.schema = Schema.parse(connection.schema_definition)
        self._attachment = attachment
        grouped = attachment is not None and attachment.membership is not None
        if attachment is not None and grouped:
            chosen = attachment.attached.partitions
        else:
            chosen = offsets.chosen_partitions(partitions, connection.partitions)
        self._stream = opened(
            connection, config, timeout_s=timeout_s, grouped=grouped, shared=share_connection
        )
        self._commits = OffsetCommitter(attachment, topic_id=connection.topic_id)
        self._closed = False
        self._failure: SluicewayError | None = None
        try:
            # These are opened many at a time; a group's members commit with the topic's id.
            self._stream.verify(max_age_s=1.0 if grouped or share_connection else 0.0)
            committed = {} if attachment is None else attachment.attached.positions
            self._ending = self._made_ending(until, chosen, writers, on_lost_writer)
            self._intake = Fetcher(
                connection,
                decoder_for(connection, target=self.schema, refresh=refresh),
                self._stream,
                positions=self._begin(start, chosen, committed),
                ending=self._ending,
                skip_corrupt=on_corrupt == "skip",
                timeout_s=timeout_s,
            )
            if attachment is not None:
                attachment.movement.follow(self._intake.glance)
        except BaseException:
            self._stream.close()
            raise

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Give record after record; each counts as done when it is handed out."""
        while (records := self._next(self._intake.records)) is not None:
            yield from records

    def read(self, max_records: int, timeout: float | None = 1.0) -> list[dict[str, Any]]:
        """Return up to `max_records` records, fewer if no more came within `timeout` seconds.

        None waits for all of them. The list is short, or empty, at the end of what there is to
        read (`finished` tells), after `timeout`, and before an error, which the next call raises.
        """
        if type(max_records) is not int or max_records < 1:
            raise OptionError(f"max_records is {max_records!r}; it takes a number from 1")
        deadline_s = math.inf if timeout is None else time.monotonic() + timeout
        records: list[dict[str, Any]] = []
        self._require_open()
        self._intake.turn.acquire(deadline_s)
        if self._intake.lent:
            # The deadline has come while another thread waits for more, and has what came.
            self._intake.turn.release()
            return records
        try:
            while len(records) < max_records:
                try:
                    if not self._fetched(deadline_s, holding=bool(records)):
                        break
                    records += self._intake.take(max_records - len(records))
                except SluicewayError as error:
                    if not records:
                        raise
                    self._failure = error
                    break
        finally:
            self._intake.handed_over()
            self._intake.turn.release()
        return records

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Give the records as RecordBatches of `schema.arrow`, as large as they come.

        A batch counts as done when it is handed out.
        """
        while (batch := self._next(self._intake.batch)) is not None:
            yield batch

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are read here, in order."""
        return self._intake.partitions

    def commit(self, positions: Mapping[int, Position | int] | None = None) -> None:
        """Keep these positions with the gateway, all or none; without any, where it stands.

        When it returns, they are kept; who takes this reader's place goes on there. Raises
        CommitBeyondRead for what was not handed out yet, Conflict `goes_back` for what lies
        before a position that is kept, Fenced and StaleGeneration for a reader that was
        superseded, and GatewayUnavailable, which the next commit makes up for.
        """
        self._commits.commit(positions, self.position)

    def committed(self) -> dict[int, Position]:
        """Return the positions that are kept with the gateway, of this reader's partitions."""
        self._require_open()
        return self._commits.committed()

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
        with self._intake.turn.urgently():
            self._require_open()
            marks = self._stream.watermarks(self.partitions)
            self._move(offsets.positions_at(positions, marks))

    def seek_to_time(self, moment: datetime) -> None:
        """Go on reading from the first message that is not older, in each partition.

        Where there is none, reading goes on at the end. Raises OptionError.
        """
        self._require_open()
        with self._intake.turn.urgently():
            self._require_open()
            self._move(offsets.start_positions(moment, self.partitions, self._stream))

    def end_offsets(self) -> dict[int, int]:
        """Return the offset after the last message of each partition, as of now."""
        self._require_open()
        return self._stream.ends_at_once(self.partitions)

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
        """Let go of Kafka and leave the channel. May be repeated.

        Index 0 of a group waits until the others have left; SluicewayTimeout says which have not
        within the `close_timeout_s` of `Channel.reader`. Raises Fenced for a reader that was
        superseded, and GatewayUnavailable.
        """
        self._let_go()
        if self._attachment is not None:
            # After the threads that wait for their turn, which raise now: leaving may take long.
            with self._intake.turn:
                self._attachment.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an exception tell the gateway that it failed, and let the exception pass."""
        if error is None:
            self.close()
            return
        self._let_go()
        if self._attachment is not None:
            with self._intake.turn:
                self._attachment.fail(error)

    def _let_go(self) -> None:
        with self._intake.turn.urgently():
            if not self._closed:
                self._closed = True
                self._intake.hold_back()
                self._stream.close()

    def _begin(
        self, start: offsets.Start, partitions: Sequence[int], committed: Mapping[int, Position]
    ) -> dict[int, Position]:
        return offsets.start_positions(start, partitions, self._stream, committed)

    def _made_ending(
        self,
        until: offsets.Until,
        chosen: Sequence[int],
        writers: int,
        on_lost_writer: OnLostWriter,
    ) -> StopCondition:
        attachment = self._attachment
        if until != "finished" or attachment is None:
            return StopCondition(offsets.end_offsets(until, chosen, self._stream), attachment)
        partial = attachment.membership is None and len(chosen) < self.connection.partitions
        mine = set(chosen).__contains__ if partial else attachment.owns
        stream = self._stream
        return WhenFinished(
            attachment,
            watermarks=lambda: stream.ends([*filter(mine, range(stream.meet_new_partitions()))]),
            mine=mine,
            writers=writers,
            on_lost_writer=on_lost_writer,
        )

    def _next(self, take: Callable[[], T | None]) -> T | None:
        """Return what `take` gives of records that were fetched; None at the end."""
        self._require_open()
        with self._intake.turn:
            while self._fetched(math.inf):
                taken = take()
                if taken is not None:
                    return taken
            return None

    def _fetched(self, deadline_s: float, *, holding: bool = False) -> bool:
        """Whether there are records to take; to be called with the turn.

        `holding`: the caller has some that are not handed out.
        """
        self._require_open()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._attachment is not None:
            self._attachment.start(self._intake.handed_out)
        while not self._intake.fetch(deadline_s, holding=holding):
            if self._intake.finished:
                self._ending.confirm()
                self._excuse(done=self.finished)
                return False
            if time.monotonic() >= deadline_s:
                return False
            self._intake.turn.give_way(-math.inf if holding else deadline_s)
            self._require_open()
        return True

    def _move(self, positions: Mapping[int, Position]) -> None:
        self._failure = None
        self._commits.passing(self._intake.position())
        self._intake.seek(positions)

    def _require_open(self) -> None:
        if self._closed:
            raise EndpointClosed("this reader is closed; open a new one with channel.reader()")
        self._check()


__all__ = ["ChannelReader", "Growing", "Presence"]
