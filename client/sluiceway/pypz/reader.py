"""A reader of one port's records from its channel, with the names of pypz's."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from sluiceway.errors import EndpointClosed
from sluiceway.pypz.channel import ChannelBase
from sluiceway.pypz.config import ReaderSettings, group_name, reader_settings
from sluiceway.pypz.errors import OperatorFailed
from sluiceway.pypz.heartbeats import Cycles, Link
from sluiceway.pypz.offsets import ChannelOffsets
from sluiceway.pypz.peers import ChannelStatusMonitor, Fates
from sluiceway.pypz.statuses import ChannelStatus
from sluiceway.reader import ChannelReader
from sluiceway.rest.endpoint_models import Endpoint
from sluiceway.rest.models import Heartbeat

__all__ = ["KafkaChannelReader"]

_MANY = 100
"""Of more partitions, an acknowledgement does not say how far it goes: it would not fit."""
_CLOSE_S = 60.0


class KafkaChannelReader(ChannelOffsets, ChannelBase):
    """Reads the channel of one input port; the port of the principal makes and deletes it.

    The replicas of a port are a group of the gateway's: replica i of n reads the partitions p with
    p mod n = i, in group mode all of them. Offsets count records; a channel with as many partitions
    as there are replicas has Kafka's own. Positions only go forward.
    """

    MetricsBufferLength = 10
    """How many calls averages are taken over."""
    InitialDataConsumerTimeoutInMs = 10_000
    """How long the first call waits for a record, in milliseconds."""
    DataConsumerTimeoutInMs = 5000
    """How long the later calls do."""

    def __init__(
        self, channel_name: str, context: Any, executor: Executor | None = None, **kwargs: Any
    ) -> None:
        ChannelBase.__init__(self, channel_name, context, executor, **kwargs)
        ChannelOffsets.__init__(self)
        self._fates: Fates | None = None
        self._settings = ReaderSettings()
        self._consumer_timeout_ms: int | None = None
        self._known_ends: Mapping[int, int] = {}
        self._cycles = Cycles("Read", self.MetricsBufferLength)

    def acknowledge_input(self) -> None:
        """Tell the writers that what was read so far is done with."""
        at: dict[str, int] = {}
        if self._reader is not None and len(self._reader.partitions) <= _MANY:
            at = {str(p): place.offset for p, place in self._reader.position().items()}
        self.invoke_sync_send_status_message(ChannelStatus.Acknowledged, {"at": at} if at else None)

    def has_records(self) -> bool:
        """Whether there is something to read, or to wait for.

        When all is read and a writer has failed or was lost, a successor in its place is waited
        for, for the channel's heartbeat timeout; then WriterFailed or WriterLost is raised, unless
        the writer wrote nothing. `onLostWriter` in the configuration waits without end ("wait"),
        or not at all ("go_on"), and raises neither.
        """
        reader = self._opened()
        # In this order: who has ended by now wrote nothing after the ends that are looked at next.
        fate = None if self._fates is None else self._fates.judge(self._heard())
        if any(reader.position()[p].offset < end for p, end in self._known_ends.items()):
            return True
        if self.get_consumer_lag() > 0:
            return True
        works = self.is_any_connected_channel_healthy_and_not_stopped_and_not_closed
        if not works() and self._discover_partitions(reader) and self.get_consumer_lag() > 0:
            return True
        if fate is not None and fate.fault is not None:
            raise fate.fault
        return fate is not None

    def get_consumer_lag(self) -> int:
        """Return how many messages lie between here and the ends of the partitions read here."""
        reader = self._opened()
        self._known_ends = reader.end_offsets()
        positions = reader.position()
        return sum(max(0, end - positions[p].offset) for p, end in self._known_ends.items())

    def can_close(self) -> bool:
        """Whether it may be closed: a principal when all its replicas have ended."""
        group = self._context.get_group_name()
        if not self._context.is_principal() or group is None:
            return True
        self.invoke_sync_status_update()
        if self.retrieve_all_connected_channel_count() == 0:
            return True

        def ended(each: ChannelStatusMonitor) -> bool:
            over = each.is_channel_stopped() or each.is_channel_closed()
            return each.get_channel_group_name() == group and (
                over or not each.is_channel_healthy()
            )

        ended_count = len(self.retrieve_connected_channel_unique_names(ended))
        return ended_count == int(self._context.get_group_size()) - 1

    def invoke_read_records(self) -> list[Any]:
        """Return up to `max_poll_records` records as soon as there are some; [] after the timeout.

        The timeout is InitialDataConsumerTimeoutInMs for the first call, then
        DataConsumerTimeoutInMs. [] does not mean the end: ask `has_records` and the states of the
        writers for that.

        Raises SchemaParseException, EndpointClosed, Fenced, CorruptMessage, SchemaMismatch,
        OffsetOutOfRange, TopicGone and KafkaUnavailable; none of them loses a record.
        """
        if self._reader is not None:
            self._know_offset()
        records = self._read_records()
        self._count(len(records))
        if records:
            self._health_check_payload["receivedRecordCount"] = self._read_record_count
        self._cycles.turn(len(records))
        return records

    def on_status_message_send(self) -> None:
        """Put the figures into the payload, with `metricsEnabled`."""
        if self._metrics_enabled:
            self._health_check_payload.update(self._cycles.figures())

    def _read_records(self) -> list[Any]:
        if self._reader is None:
            # What is wrong with the port is told before that it is not open.
            _ = self._resources.schema
        reader, most = self._opened(), self._settings.max_poll_records
        timeout_ms = self._consumer_timeout_ms
        if timeout_ms is None:
            timeout_ms = self.InitialDataConsumerTimeoutInMs
            self._consumer_timeout_ms = self.DataConsumerTimeoutInMs
        # News of writers ends no wait: records of theirs may be on the way.
        records = reader.read(1, timeout=timeout_ms / 1000)
        if records and most > 1:
            records += reader.read(most - 1, timeout=0)
        self._catch_up()
        return records

    def _create_resources(self) -> bool:
        heartbeat = Heartbeat(
            interval_ms=self.DefaultStatusThreadIntervalInMs,
            timeout_ms=ChannelStatusMonitor.ValidPatienceTimeInMs,
        )
        whole = self._context.is_in_group_mode()
        partitions = 1 if whole else int(self._context.get_group_size())
        return self._resources.attempt(lambda: self._resources.create(partitions, heartbeat))

    def _delete_resources(self) -> bool:
        unread = self._settings.delete_unread
        return self._resources.attempt(lambda: self._resources.delete(unread=unread))

    def _open_channel(self) -> bool:
        return self._resources.attempt(self._open, opening=True)

    def _open(self) -> bool:
        if self._reader is not None:
            return True
        if self._silent_mode:
            channel = self._channel = self._resources.to_watch()
            self._begin(channel.reader(until=None, config=self._settings.kafka))
            return True
        channel = self._resources.to_read()
        reader = channel.reader(
            group=self._group(),
            index=self._context.get_group_index(),
            size=self._context.get_group_size(),
            mode="broadcast" if self._context.is_in_group_mode() else "shared",
            until=None,
            close_timeout_s=_CLOSE_S,
            config=self._settings.kafka,
        )
        try:
            self._begin(reader)
            self._link = Link(reader)
        except BaseException as error:
            self._reader = None
            reader.__exit__(type(error), error, None)
            raise
        patience_s = channel.heartbeat.timeout_ms / 1000
        self._fates = Fates(channel.name, self._settings.on_lost_writer, patience_s=patience_s)
        self._channel, self._consumer_timeout_ms = channel, None
        return True

    def _may_leave(self) -> bool:
        """Whether no other member of the group is there still; the first one leaves last."""
        if self._silent_mode or not self._context.is_principal():
            return True
        return not any(each.lives for each in self._fellows())

    def _close_channel(self) -> bool:
        if self._reader is not None and self._failed:
            error = OperatorFailed(f"{self._context.get_full_name()} told of an error")
            self._reader.__exit__(OperatorFailed, error, None)
        elif self._reader is not None:
            self._reader.close()
        return True

    def _part(self) -> None:
        super()._part()
        self._reader = self._fates = self._trail = None
        self._known_ends = {}

    def _configure_channel(self, configuration: Mapping[str, Any]) -> None:
        self._settings = reader_settings(configuration, self._logger.warning)

    def _take(self, endpoints: Iterable[Endpoint]) -> None:
        present = list(endpoints)
        if self._fates is not None:
            self._fates.meet(present)
        super()._take(present)

    def _asked(self) -> Iterable[Endpoint]:
        if self._silent_mode:
            return self._present("writer")
        return self._fellows() if self._context.is_principal() else ()

    def _fellows(self) -> Sequence[Endpoint]:
        """Ask for the other members of the group; the beats tell of writers alone."""
        if self._reader is None or int(self._context.get_group_size()) <= 1:
            return ()
        mine, group = self._reader.endpoint_id, self._group()
        return [each for each in self._present("reader") if each.group == group and each.id != mine]

    def _group(self) -> str:
        return group_name(str(self._context.get_group_name() or self._context.get_full_name()))

    def _opened(self) -> ChannelReader:
        if self._reader is None:
            raise EndpointClosed(
                f"the channel {self._unique_name} is not open: call invoke_open_channel() until it "
                "is True"
            )
        return self._reader
