"""pypz's channel classes on a real gateway and broker: lifecycle, records, offsets."""

import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from faults import AS_SIGNALS, at_call, failing_call, interrupted_at_call, lose
from pypz_rig import SCHEMA, Bench, QuickReader, QuickWriter, StandinPort, demo, take
from relay import Relay
from sluiceway import ChannelWriter, Gateway
from sluiceway.api.endpoints import Position
from sluiceway.endpoint.attached import AttachedEndpoint
from sluiceway.errors import (
    CommitBeyondRead,
    Conflict,
    CorruptMessage,
    EndpointClosed,
    Fenced,
    OptionError,
)
from sluiceway.kafka.consumer import MessageStream
from sluiceway.pypz import (
    InvalidRecordValue,
    KafkaChannelReader,
    KafkaChannelWriter,
    MissingLocation,
    NoRecordList,
    SchemaParseException,
)
from topics import Topics
from waiting import until


def test_a_channel_is_created_written_read_and_deleted(bench: Bench) -> None:
    reader, writer = bench.reader(), bench.writer()
    assert reader.get_channel_name() == bench.name
    assert reader.get_unique_name() == f"{bench.name}@{bench.name}"
    assert writer.get_unique_name() == f"{bench.name}@pipeline.writer.output_port"
    assert reader.get_location() == bench.url
    assert reader.get_logger().get_context_stack() == [bench.name, bench.name]
    assert reader.get_context().get_full_name() == bench.name
    assert not writer.invoke_open_channel(), "nobody has made the channel yet"
    assert writer.invoke_resource_creation()
    assert not writer.invoke_open_channel(), "a writer makes none"
    assert not reader.is_resource_created()
    assert reader.invoke_resource_creation()
    assert reader.is_resource_created()
    for channel in (reader, writer):
        assert not channel.is_channel_open()
        assert channel.invoke_open_channel()
        assert channel.is_channel_open()
        assert not channel.is_channel_started()
        channel.start_channel()
        assert channel.is_channel_started()
        assert not channel.is_channel_stopped()
    writer.invoke_write_records(demo(10))
    assert writer.get_written_record_count() == 10
    assert take(reader, 10) == demo(10)
    assert reader.get_read_record_count() == reader.get_read_record_offset() == 10
    assert not reader.has_records()
    reader.invoke_commit_current_read_offset()
    for channel in (writer, reader):
        channel.stop_channel()
        assert channel.is_channel_stopped()
        assert not channel.is_channel_started()
        assert channel.can_close()
        assert channel.invoke_close_channel()
        assert not channel.is_channel_open()
        assert channel.invoke_close_channel(), "closed twice is closed"
    assert writer.invoke_resource_deletion()
    assert reader.invoke_resource_deletion()
    assert reader.is_resource_deleted()
    assert not bench.writer().invoke_open_channel()


@pytest.mark.long
def test_round_robin_starts_at_the_first_partition_and_replicas_share_them(bench: Bench) -> None:
    group = {"group": bench.name, "size": 3}
    readers = [bench.reader(index=index, **group) for index in range(3)]
    assert readers[0].invoke_resource_creation()
    for reader in readers:
        until(reader.invoke_open_channel)
    writer = bench.writer()
    until(writer.invoke_open_channel)
    writer.invoke_write_records(demo(4))
    writer.invoke_write_records(demo(4, 4))
    writer.stop_channel()
    for index, reader in enumerate(readers):
        wanted = [f"record_{number}" for number in range(8) if number % 3 == index]
        assert [record["demoText"] for record in take(reader, len(wanted))] == wanted


def test_in_group_mode_every_replica_reads_everything(bench: Bench) -> None:
    group = {"group": bench.name, "size": 2, "group_mode": True}
    readers = [bench.reader(index=index, **group) for index in range(2)]
    assert readers[0].invoke_resource_creation()
    writer = bench.writer()
    for channel in (*readers, writer):
        until(channel.invoke_open_channel)
    assert bench.channel().partitions == 1
    writer.invoke_write_records(demo(5))
    assert [take(port, 5) for port in readers] == [demo(5), demo(5)]
    readers[1].invoke_commit_current_read_offset()
    readers[0].set_initial_record_offset_auto()
    assert readers[0].get_read_record_offset() == 0, "each has positions of its own"


@pytest.mark.long
def test_a_call_returns_one_record_unless_more_are_configured(bench: Bench) -> None:
    reader, writer = bench.pair(max_poll_records=1)
    writer.invoke_write_records(demo(3))
    turns: list[list[dict[str, str]]] = []
    while sum(map(len, turns)) < 3:
        turns.append(reader.invoke_read_records())
    assert [turn for turn in turns if turn] == [demo(1, number) for number in range(3)]
    reader.invoke_configure_channel({"max_poll_records": 7})
    assert reader.get_configuration()["max_poll_records"] == 7


@pytest.mark.long
def test_an_interrupted_call_loses_no_records(bench: Bench) -> None:
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(5))

    def interrupt(_: MessageStream, _limit: int, wait_s: float) -> None:
        if not wait_s:
            # The reader has records, and only looks for more.
            raise KeyboardInterrupt

    with at_call(MessageStream, "poll", interrupt), pytest.raises(KeyboardInterrupt):
        take(reader, 6)
    assert reader.get_read_record_count() == 0
    assert take(reader, 5) == demo(5)


@pytest.mark.parametrize("role", ["reader", "writer"])
def test_an_interrupted_opening_can_be_repeated(bench: Bench, role: str) -> None:
    channel = bench.create_channel()
    reader, writer = bench.reader(), bench.writer()
    opening, other = (reader, writer) if role == "reader" else (writer, reader)
    with failing_call(AttachedEndpoint, "subscribe", KeyboardInterrupt(), arrives=False):
        opening.invoke_open_channel()
    assert [endpoint.state for endpoint in channel.endpoints()] == ["error"]
    until(other.invoke_open_channel)
    until(opening.invoke_open_channel)
    until(opening.retrieve_all_connected_channel_count)
    writer.invoke_write_records(demo(3))
    assert take(reader, 3) == demo(3)


class PatientReader(KafkaChannelReader):
    """A reader that waits long for records, and updates statuses by heartbeats only."""

    DefaultStatusThreadIntervalInMs = 60_000
    InitialDataConsumerTimeoutInMs = DataConsumerTimeoutInMs = 30_000


@pytest.mark.long
def test_a_callback_commits_no_records_that_its_call_has_not_returned(bench: Bench) -> None:
    channel = bench.create_channel()
    reader, writer = bench.reader(PatientReader), bench.writer()
    for port in (reader, writer):
        until(port.invoke_open_channel)
    returned, commits = 0, list[tuple[int, int]]()

    def commit(_: object) -> None:
        reader.invoke_commit_current_read_offset()
        commits.append((channel.committed(bench.name)[0].offset, returned))

    reader.on_status_message_received(commit)
    # The callback runs in the first call after a heartbeat has reported the writer.
    while not commits:
        writer.invoke_write_records(demo(5))
        records = reader.invoke_read_records()
        assert records
        returned += len(records)
    assert commits[0][0] == commits[0][1]


@pytest.mark.long
def test_an_interrupt_of_any_call_of_a_read_loses_no_record(bench: Bench) -> None:
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(400))
    writer.stop_channel()
    reader.invoke_configure_channel({"max_poll_records": 2, "metricsEnabled": True})
    reader.set_initial_record_offset(0)
    records: list[Any] = []

    def came_at(step: int) -> bool:
        """Read with an interrupt; return whether the call has so many steps."""
        taken: list[Any] = []

        def read() -> None:
            nonlocal taken
            taken = reader.invoke_read_records()

        interrupted = interrupted_at_call(step, read, AS_SIGNALS)
        records.extend(taken)
        # The next call goes back first.
        records.extend(reader.invoke_read_records())
        reader.invoke_commit_offset(len(records) - 1)
        return interrupted

    assert not all(map(came_at, itertools.count(1, 3)))
    assert records == demo(len(records))
    assert reader.get_read_record_offset() == len(records)
    committed = bench.channel().committed(bench.name)
    assert {at.offset for at in committed.values()} == {len(records) - 1}


def test_an_interrupt_as_the_gateway_is_released_leaves_a_port_that_can_be_opened(
    bench: Bench,
) -> None:
    writer = bench.writer()
    with failing_call(Gateway, "close", KeyboardInterrupt(), arrives=True):
        # The channel does not exist yet.
        writer.invoke_open_channel()
    bench.create_channel()
    until(writer.invoke_open_channel)


def test_an_interrupted_closing_is_not_done(bench: Bench) -> None:
    channel = bench.create_channel()
    writer = bench.writer()
    until(writer.invoke_open_channel)
    writer.invoke_write_records(demo(3))
    with failing_call(ChannelWriter, "close", KeyboardInterrupt(), arrives=False):
        writer.invoke_close_channel()
    assert writer.is_channel_open()
    until(writer.invoke_close_channel)
    with channel.reader(until="now") as reader:
        assert list(reader) == demo(3)
    assert [endpoint.state for endpoint in channel.endpoints()] == ["closed"]


def test_an_interrupted_status_callback_loses_no_record(bench: Bench) -> None:
    bench.create_channel()
    reader, writer = bench.reader(PatientReader), bench.writer()
    for port in (reader, writer):
        until(port.invoke_open_channel)
    interrupted, written, records = list[object](), 0, list[Any]()

    def interrupt(messages: object) -> None:
        if not interrupted:
            interrupted.append(messages)
            raise KeyboardInterrupt

    reader.on_status_message_received(interrupt)
    # The callback runs in the first call after a heartbeat has reported the writer.
    while not interrupted:
        writer.invoke_write_records(demo(5, written))
        written += 5
        with suppress(KeyboardInterrupt):
            records += reader.invoke_read_records()
    assert len(records) < written
    records += take(reader, written - len(records))
    assert records == demo(written)


@pytest.mark.parametrize("metrics", [False, True], ids=["plain", "metricsEnabled"])
def test_changes_of_writers_do_not_end_the_wait_for_records(bench: Bench, metrics: bool) -> None:
    """A status of a writer says nothing about records, so no call returns [] for it."""
    bench.create_channel()
    config = {"metricsEnabled": metrics}
    reader = bench.reader(PatientReader, config=config)
    until(reader.invoke_open_channel)
    reader.set_initial_record_offset_auto()
    reading = ThreadPoolExecutor(1)

    def hears_of(writers: int, *, closed: int = 0) -> None:
        names = reader.retrieve_connected_channel_unique_names

        def heard() -> bool:
            reader.invoke_sync_status_update()
            return (len(names()), len(names(lambda m: m.is_channel_closed()))) == (writers, closed)

        until(heard)

    writer = bench.writer(config=config)
    until(writer.invoke_open_channel)
    writer.start_channel()
    # Both a status before the call and one during the wait may be new to it.
    first = reading.submit(reader.invoke_read_records)
    hears_of(1)
    other = bench.writer("pipeline.other.output_port", config=config)
    until(other.invoke_open_channel)
    hears_of(2)
    other.invoke_close_channel()
    hears_of(2, closed=1)
    assert not first.done()
    writer.invoke_write_records(demo(1))
    assert first.result(60) == demo(1)
    second = reading.submit(reader.invoke_read_records)
    late = bench.writer("pipeline.late.output_port", config=config)
    until(late.invoke_open_channel)
    writer.invoke_close_channel()
    hears_of(3, closed=2)
    assert not second.done()
    late.invoke_write_records(demo(1, 1))
    assert second.result(60) == demo(1, 1)
    assert not reader.is_any_connected_channels_unhealthy()
    assert reader.retrieve_all_connected_channel_count() == 3


@pytest.mark.long
def test_an_error_loses_no_record_that_was_read_before_it(bench: Bench, topics: Topics) -> None:
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(2))
    until(lambda: reader.get_consumer_lag() == 2)
    # One fetch gets all three.
    topics.produce(bench.channel().status.topic.name, 0, [b"no record"])
    until(lambda: reader.get_consumer_lag() == 3)
    assert take(reader, 2) == demo(2)
    with pytest.raises(CorruptMessage):
        until(lambda: reader.invoke_read_records() and False)
    assert reader.get_read_record_count() == reader.get_read_record_offset() == 2
    reader.set_initial_record_offset(3)
    writer.invoke_write_records(demo(1, 2))
    assert take(reader, 1) == demo(1, 2)


@pytest.mark.long
def test_a_call_without_records_returns_after_its_timeout(bench: Bench) -> None:
    class Waiting(QuickReader):
        InitialDataConsumerTimeoutInMs = 800
        DataConsumerTimeoutInMs = 300

    reader = bench.reader(Waiting)
    assert reader.invoke_resource_creation()
    until(reader.invoke_open_channel)
    reader.set_initial_record_offset_auto()
    writer = bench.writer()
    until(writer.invoke_open_channel)
    writer.invoke_close_channel()
    took_s: list[float] = []
    for _ in range(2):
        began_s = time.monotonic()
        assert reader.invoke_read_records() == []
        took_s.append(time.monotonic() - began_s)
    assert took_s[0] >= 0.8
    assert took_s[1] >= 0.3


@pytest.mark.long
def test_a_restart_continues_at_the_last_commit_or_at_the_beginning(bench: Bench) -> None:
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(10))
    assert reader.get_read_record_offset() == reader.NotInitialized
    reader.set_initial_record_offset_auto()
    assert len(take(reader, 10)) == 10
    assert reader.invoke_close_channel()
    again = bench.reader()
    assert again.invoke_resource_creation(), "what is there stays as it is"
    assert again.invoke_open_channel()
    assert take(again, 10) == demo(10)
    again.invoke_commit_offset(5)
    assert again.invoke_close_channel()
    third = bench.reader()
    assert third.invoke_open_channel()
    third.set_initial_record_offset_auto()
    assert third.get_read_record_offset() == 5
    assert take(third, 5) == demo(5, 5)
    assert (third.get_read_record_count(), third.get_read_record_offset()) == (5, 10)
    third.invoke_commit_offset(3)
    assert bench.channel().committed(bench.name)[0].offset == 8
    third.invoke_commit_offset(9, compensate_with_initial_offset=False)
    assert bench.channel().committed(bench.name)[0].offset == 9


def test_commits_past_the_read_records_or_backwards_are_refused(bench: Bench) -> None:
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(10))
    assert len(take(reader, 10)) == 10
    with pytest.raises(ValueError, match="Offset is out of range: 11"):
        reader.invoke_commit_offset(11)
    with pytest.raises(CommitBeyondRead):
        reader.invoke_commit_offset(11, compensate_with_initial_offset=False)
    reader.invoke_commit_offset(6)
    with pytest.raises(Conflict, match="lower than the last committed") as raised:
        reader.invoke_commit_offset(2)
    assert raised.value.code == "goes_back"
    assert bench.channel().committed(bench.name)[0].offset == 6
    # With an initial offset before the commit, it reads again from there; the commit stays.
    reader.set_initial_record_offset(2)
    assert take(reader, 8) == demo(8, 2)
    with pytest.raises(Conflict):
        reader.invoke_commit_offset(1)
    reader.invoke_commit_current_read_offset()
    assert bench.channel().committed(bench.name)[0].offset == 10


class HookedReader(QuickReader):
    """A reader that overrides each hook of pypz that has a call; pypz documents them as such."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: list[str] = []

    def _create_resources(self) -> bool:
        self.calls.append("create")
        return super()._create_resources()

    def _delete_resources(self) -> bool:
        self.calls.append("delete")
        return super()._delete_resources()

    def _configure_channel(self, channel_configuration: Any) -> None:
        self.calls.append("configure")
        super()._configure_channel(channel_configuration)

    def _open_channel(self) -> bool:
        self.calls.append("open")
        return super()._open_channel()

    def _close_channel(self) -> bool:
        self.calls.append("close")
        return super()._close_channel()

    def _load_input_record_offset(self) -> int:
        return 2

    def _read_records(self) -> list[Any]:
        return [record | {"hooked": True} for record in super()._read_records()]

    def _commit_offset(self, offset: int) -> None:
        self.calls.append(f"commit {offset}")
        super()._commit_offset(offset)


class HookedWriter(QuickWriter):
    """A writer that writes each record twice."""

    def _write_records(self, records: list[Any]) -> None:
        super()._write_records([record for record in records for _ in range(2)])


@pytest.mark.long
def test_overridden_hooks_are_called(bench: Bench) -> None:
    reader, writer = bench.reader(HookedReader), bench.writer(kind=HookedWriter)
    assert isinstance(reader, HookedReader)
    assert reader.invoke_resource_creation()
    until(reader.invoke_open_channel)
    until(writer.invoke_open_channel)
    writer.invoke_write_records(demo(2))
    writer.invoke_close_channel()
    reader.set_initial_record_offset_auto()
    assert take(reader, 2) == [{"demoText": "record_1", "hooked": True}] * 2
    reader.invoke_commit_offset(1)
    reader.invoke_commit_current_read_offset()
    assert bench.channel().committed(bench.name) == {0: Position(offset=4)}
    reader.invoke_close_channel()
    assert reader.invoke_resource_deletion()
    calls = list(dict.fromkeys(reader.calls))
    assert calls == ["configure", "create", "open", "commit 3", "commit 4", "close", "delete"]


@pytest.mark.parametrize("hook", ["_send_status_message", "_retrieve_status_messages"])
@pytest.mark.parametrize("base", [KafkaChannelReader, KafkaChannelWriter])
def test_a_subclass_with_a_hook_that_is_never_called_is_refused(base: type, hook: str) -> None:
    with pytest.raises(TypeError, match=f"Mine overrides {hook}, which would never be called"):
        type("Mine", (base,), {hook: lambda *_: None})


def test_lag_and_has_records_are_of_the_partitions_read_here(bench: Bench) -> None:
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(4))
    writer.stop_channel()
    assert reader.get_consumer_lag() == 4
    assert reader.has_records()
    take(reader, 4)
    assert reader.get_consumer_lag() == 0
    assert not reader.has_records()


def test_a_larger_group_grows_the_channel_and_a_smaller_one_reads_all_of_it(bench: Bench) -> None:
    bench.create_channel()
    writer = bench.writer()
    until(writer.invoke_open_channel)
    writer.invoke_write_records(demo(10))
    writer.stop_channel()
    large = bench.reader(group=bench.name, size=4)
    assert large.invoke_resource_creation()
    channel = bench.channel()
    assert channel.partitions == 4
    assert sum(partition.end or 0 for partition in channel.report().partitions) in (0, 10)
    later = bench.writer("pipeline.later.output_port")
    until(later.invoke_open_channel)
    later.invoke_write_records(demo(8))
    later.stop_channel()
    alone = bench.reader()
    assert alone.invoke_resource_creation()
    assert bench.channel().partitions == 4
    until(alone.invoke_open_channel)
    got: list[dict[str, str]] = []
    while len(got) < 18:
        got += alone.invoke_read_records()
    assert sorted(record["demoText"] for record in got) == sorted(
        record["demoText"] for record in demo(10) + demo(8)
    )
    # One number is ambiguous in four partitions: the commit covers whole calls only.
    alone.invoke_commit_offset(17)
    committed = sum(place.offset for place in bench.channel().committed(bench.name).values())
    assert committed < 18
    with pytest.raises(OptionError, match="ambiguous in 4 partitions"):
        alone.set_initial_record_offset(3)
    alone.invoke_commit_current_read_offset()
    kept = bench.channel().committed(bench.name)
    assert sum(place.offset for place in kept.values()) == 18


@pytest.mark.long
def test_new_partitions_are_read_before_the_end(bench: Bench) -> None:
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(2))
    assert take(reader, 2) == demo(2)
    bench.channel().update(partitions=3)
    later = bench.writer("pipeline.later.output_port")
    until(later.invoke_open_channel)
    later.invoke_write_records(demo(9, 2))
    for channel in (writer, later):
        channel.invoke_close_channel()
    reader.invoke_sync_status_update()
    got: list[dict[str, str]] = []
    while reader.has_records():
        got += reader.invoke_read_records()
    assert sorted(record["demoText"] for record in got) == sorted(
        record["demoText"] for record in demo(9, 2)
    )
    reader.invoke_commit_current_read_offset()
    assert reader.get_read_record_offset() == 11
    assert sum(at.offset for at in bench.channel().committed(bench.name).values()) == 11
    reader.invoke_close_channel()
    assert reader.invoke_resource_deletion()


def test_a_channel_in_use_is_not_deleted(bench: Bench) -> None:
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(3))
    take(reader, 3)
    reader.invoke_close_channel()
    assert not reader.invoke_resource_deletion(), "somebody writes"
    reader.invoke_configure_channel({"deleteUnread": True})
    assert not reader.invoke_resource_deletion(), "somebody writes still"


@pytest.mark.long
def test_an_unread_channel_is_kept_and_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(3))
    writer.invoke_close_channel()
    take(reader, 3)
    reader.invoke_commit_offset(1)
    reader.invoke_close_channel()
    assert reader.invoke_resource_deletion(), "to have enough is no error"
    assert reader.is_resource_deleted()
    (reported,) = (text for record in caplog.records if "is kept" in (text := record.getMessage()))
    assert f"the channel {bench.name!r} is kept" in reported
    assert "has not committed 2 messages of partition 0" in reported
    assert "deleteUnread=True" in reported
    assert f"sluiceway channels delete --force {bench.name}" in reported
    # A later run begins at the first unread record.
    again = bench.reader()
    until(again.invoke_open_channel)
    again.set_initial_record_offset_auto()
    assert take(again, 2) == demo(2, 1)
    again.invoke_close_channel()
    again.invoke_configure_channel({"deleteUnread": True})
    assert again.invoke_resource_deletion()
    assert not bench.writer().invoke_open_channel(), "it is gone"


def test_the_location_may_come_from_the_environment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICEWAY_URL", raising=False)
    for channel in (
        KafkaChannelReader(bench.name, StandinPort("reader", SCHEMA)),
        KafkaChannelWriter(bench.name, StandinPort("writer", SCHEMA)),
    ):
        with pytest.raises(AttributeError, match="Missing channel location parameter"):
            channel.invoke_resource_creation()
        with pytest.raises(MissingLocation, match="SLUICEWAY_URL"):
            channel.invoke_open_channel()
    monkeypatch.setenv("SLUICEWAY_URL", bench.url)
    assert bench.reader(location="").invoke_resource_creation()


def test_kafkas_address_is_refused_as_location(bench: Bench) -> None:
    reader = bench.reader(location="localhost:9092")
    with pytest.raises(OptionError, match="http"):
        reader.invoke_resource_creation()


@pytest.mark.parametrize("schema", [None, "", "{", '{"type": "recrod", "name": "R"}'])
def test_a_port_without_a_schema_raises(bench: Bench, schema: str | None) -> None:
    reader, writer = bench.reader(schema=schema), bench.writer(schema=schema)
    for call in (
        reader.invoke_resource_creation,
        reader.invoke_read_records,
        lambda: writer.invoke_write_records(demo(1)),
    ):
        with pytest.raises(SchemaParseException):
            call()


def test_a_union_of_several_types_is_carried(bench: Bench) -> None:
    point = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": ["null", "int"]}]}
    field = {"name": "value", "type": ["null", "int", "string", point]}
    schema = json.dumps({"type": "record", "name": "Mixed", "fields": [field]})
    reader, writer = bench.reader(schema=schema), bench.writer(schema=schema)
    assert reader.invoke_resource_creation()
    for channel in (reader, writer):
        until(channel.invoke_open_channel)
    with pytest.raises(ValueError, match="the union's branches int, string, Point; it is float"):
        writer.invoke_write_records([{"value": 1}, {"value": 1.5}])
    writer.invoke_write_records([{"value": 1}, {"value": "a"}, {"value": None}])
    # As in pypz's encoder: missing nullable fields, and True for 1.
    writer.invoke_write_records([{}, {"value": True}, {"value": {}}])
    records = take(reader, 6)
    assert [record["value"] for record in records] == [1, "a", None, None, 1, {"x": None}]
    assert type(records[4]["value"]) is int


@pytest.mark.parametrize(
    ("schema", "records"),
    [
        ('"string"', ["a", "b", ""]),
        ({"type": "map", "values": "long"}, [{"a": 1}, {}, {"b": 2, "c": 3}]),
        (
            {
                "type": "record",
                "name": "Node",
                "fields": [
                    {"name": "next", "type": ["null", "Node"]},
                    {"name": "nothing", "type": "null"},
                ],
            },
            [{"next": {"next": None, "nothing": None}, "nothing": None}] * 3,
        ),
    ],
    ids=["strings", "maps", "recursive records"],
)
def test_a_schema_of_any_avro_type_is_carried(bench: Bench, schema: Any, records: Any) -> None:
    reader, writer = bench.reader(schema=schema), bench.writer(schema=schema)
    assert reader.invoke_resource_creation()
    for channel in (reader, writer):
        until(channel.invoke_open_channel)
    with pytest.raises(InvalidRecordValue, match="record 1"):
        writer.invoke_write_records([records[0], 5])
    writer.invoke_write_records(records)
    assert take(reader, 3) == records
    reader.invoke_commit_offset(2)
    assert reader.get_read_record_count() == 3


def test_an_invalid_record_rejects_the_whole_list(bench: Bench) -> None:
    reader, writer = bench.pair()
    with pytest.raises(ValueError, match="record 1, field 'demoText'") as raised:
        writer.invoke_write_records([*demo(1), {"demoText": 5}, *demo(1)])
    assert isinstance(raised.value, InvalidRecordValue)
    with pytest.raises(ValueError, match="unknown"):
        writer.invoke_write_records([{"demoText": "x", "unknown": 1}])
    with pytest.raises(TypeError, match="List of records"):
        writer.invoke_write_records({"demoText": "x"})  # type: ignore[arg-type]
    with pytest.raises(NoRecordList):
        writer.invoke_write_records(iter(demo(1)))  # type: ignore[arg-type]
    assert writer.get_written_record_count() == 0
    writer.invoke_write_records(demo(1))
    writer.stop_channel()
    assert take(reader, 1) == demo(1)


def test_a_missing_nullable_field_is_null_and_true_is_one(bench: Bench) -> None:
    fields = [
        {"name": "count", "type": "int"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "kind", "type": ["null", "string"], "default": None},
        {"name": "parts", "type": {"type": "array", "items": ["long", "null"]}},
        {
            "name": "more",
            "type": {
                "type": "record",
                "name": "More",
                "fields": [{"name": "share", "type": ["double", "null"]}],
            },
        },
    ]
    schema = {"type": "record", "name": "Loose", "fields": fields}
    reader, writer = bench.reader(schema=schema), bench.writer(schema=schema)
    assert reader.invoke_resource_creation()
    for channel in (reader, writer):
        until(channel.invoke_open_channel)
    record = {"count": True, "parts": [False, None], "more": {}}
    writer.invoke_write_records([record])
    writer.invoke_write_records([record] * 20)
    assert record == {"count": True, "parts": [False, None], "more": {}}
    with pytest.raises(InvalidRecordValue, match="record 1, field 'count': it is missing"):
        writer.invoke_write_records([record, {"parts": [], "more": {}}])
    with pytest.raises(InvalidRecordValue, match="unknown"):
        writer.invoke_write_records([record | {"unknown": 1}])
    assert writer.get_written_record_count() == 21
    writer.stop_channel()
    taken = {"count": 1, "note": None, "kind": None, "parts": [0, None], "more": {"share": None}}
    records = take(reader, 21)
    assert records == [taken] * 21
    assert type(records[0]["count"]) is int


def test_a_writer_with_another_schema_registers_it_or_is_refused(bench: Bench) -> None:
    reader, writer = bench.pair()
    longer = SCHEMA.replace(
        '"string"}', '"string"}, {"name": "note", "type": ["null", "string"], "default": null}'
    )
    newer = bench.writer("pipeline.newer.output_port", schema=longer)
    assert newer.invoke_open_channel()
    writer.invoke_write_records(demo(1))
    writer.stop_channel()
    newer.invoke_write_records([{"demoText": "new", "note": "read by the old"}])
    newer.stop_channel()
    assert [record["demoText"] for record in take(reader, 2)] == ["record_0", "new"]
    other = bench.writer("pipeline.other.output_port", schema=SCHEMA.replace('"string"', '"long"'))
    with pytest.raises(Conflict) as raised:
        other.invoke_open_channel()
    assert raised.value.code == "schema_incompatible"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_poll_records": 0}, "max_poll_records is 0"),
        ({"session_timeout_ms": "soon"}, "session_timeout_ms is 'soon'"),
        ({"onLostWriter": "cry"}, "onLostWriter is 'cry'"),
        ({"deleteUnread": "yes"}, "deleteUnread is 'yes'"),
        ({"metricsEnabled": 1}, "metricsEnabled is 1"),
        ({"logLevel": "DEBUGG"}, "did you mean 'DEBUG'"),
    ],
)
def test_invalid_settings_are_refused_and_not_kept(
    bench: Bench, config: dict[str, object], message: str
) -> None:
    reader = bench.reader()
    with pytest.raises(OptionError, match=message):
        reader.invoke_configure_channel(config)
    assert config.keys().isdisjoint(reader.get_configuration().keys() - {"max_poll_records"})


def test_session_timeout_is_the_readers_patience_within_the_channels(bench: Bench) -> None:
    for asked_ms, has_ms in ((6000, 6000), (500_000, 120_000)):
        reader = bench.reader(config={"session_timeout_ms": asked_ms})
        assert reader.invoke_resource_creation()
        until(reader.invoke_open_channel)
        live = [endpoint for endpoint in bench.channel().endpoints() if endpoint.lives]
        assert [endpoint.patience_ms for endpoint in live] == [has_ms]


def test_settings_without_effect_are_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.writer(config={"acks": 0, "linger_ms": 5, "compresion_type": "gzip"})
    assert "'acks' has no effect" in caplog.text
    assert "'compresion_type' is unknown" in caplog.text
    assert "did you mean 'compression_type'" in caplog.text
    assert "linger_ms" not in caplog.text


def test_a_channel_that_is_not_open_raises(bench: Bench) -> None:
    reader, writer = bench.reader(), bench.writer()
    for call in (
        reader.invoke_read_records,
        reader.has_records,
        reader.get_consumer_lag,
        lambda: reader.invoke_commit_offset(0),
        reader.invoke_commit_current_read_offset,
        lambda: writer.invoke_write_records(demo(1)),
    ):
        with pytest.raises(EndpointClosed, match="call invoke_open_channel"):
            call()


@pytest.mark.parametrize("kind", [KafkaChannelReader, KafkaChannelWriter])
def test_a_channel_needs_a_name_and_a_context(kind: type) -> None:
    with pytest.raises(ValueError, match="Channel name"):
        kind(None, StandinPort("port"))
    with pytest.raises(ValueError, match="Context"):
        kind("channel", None)


@pytest.mark.long
def test_a_restarted_port_fences_its_predecessor(bench: Bench) -> None:
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(4))
    assert len(take(reader, 4)) == 4
    again = bench.reader()
    assert again.invoke_open_channel()
    with pytest.raises(Fenced):
        reader.invoke_commit_current_read_offset()
    with pytest.raises(Fenced):
        reader.invoke_close_channel()
    assert not reader.is_channel_open()
    assert reader.invoke_close_channel()
    assert take(again, 4) == demo(4)
    again.invoke_commit_current_read_offset()


@pytest.mark.long
def test_invalid_names_get_a_hash(bench: Bench) -> None:
    bench.name = bench.name.replace("pipeline", "Pipe Line")
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(2))
    assert take(reader, 2) == demo(2)
    assert reader.get_channel_name() == bench.name


@pytest.mark.long
def test_a_pair_recovers_from_a_pause_beyond_the_heartbeat_timeout(
    relay: Relay, bench: Bench
) -> None:
    channel = bench.create_channel()
    bench.url = relay.url
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(4))
    assert len(take(reader, 4)) == 4
    # No heartbeat arrives, as from a paused process.
    with relay.stalled():
        lose(channel, bench.endpoint_id("reader"))
        # They are in one session.
        assert {endpoint.health for endpoint in channel.endpoints()} == {"lost"}
    reader.invoke_commit_current_read_offset()
    writer.invoke_write_records(demo(2, 4))
    assert take(reader, 2) == demo(2, 4)
    reader.invoke_commit_current_read_offset()
    until(writer.invoke_close_channel)
    until(reader.invoke_close_channel)
    (committed,) = channel.committed(bench.name).values()
    assert committed.offset == 6


@pytest.mark.long
def test_a_reader_of_the_next_run_waits_for_its_own_writers(bench: Bench) -> None:
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(5))
    writer.stop_channel()
    assert writer.invoke_close_channel()
    assert take(reader, 5) == demo(5)
    reader.invoke_commit_current_read_offset()
    until(lambda: not reader.has_records() and reader.retrieve_connected_channel_unique_names())
    reader.invoke_sync_status_update()
    assert not reader.has_records()
    assert reader.invoke_close_channel()
    again = bench.reader()
    assert again.invoke_open_channel()
    again.invoke_sync_status_update()
    assert again.retrieve_all_connected_channel_count() == 0, "the writer is of the first run"
    later = bench.writer()
    until(later.invoke_open_channel)
    again.invoke_sync_status_update()
    assert again.retrieve_healthy_connected_channel_count() == 1
    later.invoke_write_records(demo(5, 5))
    assert take(again, 5) == demo(5, 5)
