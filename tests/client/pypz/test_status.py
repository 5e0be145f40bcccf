"""Status exchange of pypz channels through a gateway, and failed writers."""

import queue
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from faults import lose
from gateways import all_responses
from pypz_rig import SCHEMA, Bench, QuickReader, QuickWriter, StandinPort, demo, take
from relay import Relay
from sluiceway.errors import DeliveryFailed, WriterFailed, WriterLost
from sluiceway.pypz import (
    ChannelStatus,
    ChannelStatusMessage,
    ChannelStatusMonitor,
    InvalidRecordValue,
    KafkaChannelReader,
    KafkaChannelWriter,
)
from topics import Topics
from waiting import until

WRITER = "pipeline.writer.output_port"


class ElsewhereWriter(QuickWriter):
    """A writer with another gateway timeout, and so with its own heartbeat session."""

    ControlLoopExceptionTimeoutInMs = 50_000


def impatient_reader(bench: Bench) -> KafkaChannelReader:
    """Return an open reader that waits a second for successors of failed writers.

    It takes the time from the channel when it opens. Afterwards the channel's heartbeat timeout
    is long again, so that nothing is lost which only a busy machine delays.
    """
    channel = bench.create_channel()
    usual = channel.heartbeat
    channel.update(heartbeat=replace(usual, timeout_ms=1000))
    reader = bench.reader()
    until(reader.invoke_open_channel)
    channel.update(heartbeat=usual)
    return reader


def test_both_sides_receive_each_others_states_in_order(bench: Bench) -> None:
    reader, writer = bench.reader(), bench.writer(group="pipeline.writer.output_port")
    received: queue.Queue[ChannelStatusMessage] = queue.Queue()

    def note(messages: list[ChannelStatusMessage]) -> None:
        for message in messages:
            received.put(message)

    reader.on_status_message_received(note)
    assert reader.invoke_resource_creation()
    until(reader.invoke_open_channel)
    assert reader.retrieve_all_connected_channel_count() == 0
    assert not reader.is_any_connected_channels_healthy()
    until(writer.invoke_open_channel)
    writer.start_channel()
    until(lambda: reader.is_any_connected_channels_healthy())

    def states() -> list[str]:
        return [message.status.name for message in list(received.queue)]

    until(lambda: "Started" in states())
    assert reader.retrieve_connected_channel_unique_names() == {f"{bench.name}@{WRITER}"}
    assert reader.retrieve_healthy_connected_channel_count() == 1
    assert reader.is_any_connected_channel_healthy_and_not_stopped()
    assert reader.is_any_connected_channel_healthy_and_not_closed()
    assert reader.is_any_connected_channel_healthy_and_not_stopped_and_not_closed()
    writer.stop_channel()
    until(lambda: "Stopped" in states())
    assert not reader.is_any_connected_channel_healthy_and_not_stopped()
    assert reader.is_any_connected_channel_healthy_and_not_closed()
    assert not reader.is_any_connected_channel_healthy_and_not_stopped_and_not_closed()
    until(lambda: writer.retrieve_all_connected_channel_count() == 1)
    assert writer.invoke_close_channel()
    reader.invoke_sync_status_update()
    assert not reader.is_any_connected_channel_healthy_and_not_closed()
    assert not reader.is_any_connected_channels_unhealthy()
    order = [name for name in states() if name != "HealthCheck"]
    assert order[-4:] == ["Opened", "Started", "Stopped", "Closed"]
    last = received.queue[-1]
    assert (last.channel_name, last.channel_context_name) == (bench.name, WRITER)
    assert last.channel_group_name == "pipeline.writer.output_port"
    assert last.get_channel_unique_name() == f"{bench.name}@{WRITER}"


def test_a_filter_selects_monitors(bench: Bench) -> None:
    reader, writer = bench.pair()
    seen: list[ChannelStatusMonitor] = []

    class Watching(KafkaChannelReader):
        def on_new_channel_status_monitor(self, status_monitor: ChannelStatusMonitor) -> None:
            seen.append(status_monitor)

    watching = bench.reader(Watching, silent=True)
    until(watching.invoke_open_channel)
    (monitor,) = seen
    assert not monitor.is_channel_not_initialised()
    named = watching.retrieve_connected_channel_unique_names
    assert named(lambda monitor: monitor.is_channel_opened())
    assert not named(lambda monitor: monitor.is_channel_closed() or monitor.is_channel_error())
    assert named(lambda monitor: monitor.get_channel_context_name() == WRITER)
    assert named(lambda monitor: monitor.get_channel_group_name() is None)
    messages: list[ChannelStatusMessage] = []
    monitor.on_status_update(messages.append)
    writer.start_channel()

    def started() -> bool:
        watching.invoke_sync_status_update()
        return monitor.is_channel_started()

    until(started)
    assert messages[-1].status == ChannelStatus.Started
    with pytest.raises(AttributeError, match="does not belong to"):
        monitor.update(ChannelStatusMessage("other", "port", status="Opened"))
    assert reader.is_channel_open()


def test_a_silent_channel_receives_and_leaves_no_trace(bench: Bench) -> None:
    reader, writer = bench.pair()
    sniffing, listening = bench.reader(silent=True), bench.writer("sniffer", silent=True)
    for silent in (sniffing, listening):
        assert silent.invoke_open_channel()
        silent.start_channel()
        silent.invoke_sync_status_update()
    assert sniffing.retrieve_connected_channel_unique_names() == {f"{bench.name}@{WRITER}"}
    assert listening.retrieve_all_connected_channel_count() == 1
    assert len(bench.channel().endpoints()) == 2
    assert writer.retrieve_all_connected_channel_count() == 1
    writer.invoke_write_records(demo(3))
    writer.stop_channel()
    assert take(sniffing, 3) == demo(3)
    assert reader.get_consumer_lag() == 3
    with pytest.raises(Exception, match="silent and writes nothing"):
        listening.invoke_write_records(demo(1))
    assert sniffing.invoke_close_channel()
    assert listening.invoke_close_channel()


@pytest.mark.long
def test_heartbeats_carry_payloads_and_metrics(bench: Bench) -> None:
    class Telling(QuickReader):
        def on_status_message_send(self) -> None:
            super().on_status_message_send()
            self._health_check_payload["step"] = "warming up"

    reader = bench.reader(Telling, config={"metricsEnabled": True})
    writer = bench.writer()
    assert reader.invoke_resource_creation()
    received: queue.Queue[ChannelStatusMessage] = queue.Queue()
    writer.on_status_message_received(
        lambda reported: [received.put(message) for message in reported] and None
    )
    until(reader.invoke_open_channel)
    until(writer.invoke_open_channel)
    writer.invoke_write_records(demo(5))
    writer.stop_channel()
    assert len(take(reader, 5)) == 5

    def reported() -> dict[str, Any]:
        message = received.get(timeout=30)
        while message.status != ChannelStatus.HealthCheck:
            message = received.get(timeout=30)
        return dict(message.payload)

    payload = reported()
    while payload.get("receivedRecordCount") != 5:
        payload = reported()
    assert payload["step"] == "warming up"
    assert payload.keys() >= {
        "elapsedTimeSinceLastReadCycleMs",
        "averageTimePerReadCycleMs",
        "averageTimePerReadRecordMs",
        "averageRecordPerReadCycle",
    }
    reader.invoke_sync_send_status_message(ChannelStatus.WaitingForSchema, {"of": "you"})
    message = received.get(timeout=30)
    while message.status != ChannelStatus.WaitingForSchema:
        message = received.get(timeout=30)
    assert message.payload == {"of": "you"}


@pytest.mark.long
def test_health_checks_have_the_record_counts_without_metrics(bench: Bench) -> None:
    reader, writer = bench.reader(), bench.writer()
    assert reader.invoke_resource_creation()
    received: dict[str, queue.Queue[ChannelStatusMessage]] = {}
    for channel in (reader, writer):
        reported = received[channel.get_unique_name()] = queue.Queue()
        channel.on_status_message_received(
            lambda messages, reported=reported: [reported.put(one) for one in messages] and None
        )
        until(channel.invoke_open_channel)
    writer.invoke_write_records(demo(5))
    assert len(take(reader, 5)) == 5
    wanted = {
        reader.get_unique_name(): {"sentRecordCount": 5},
        writer.get_unique_name(): {"receivedRecordCount": 5},
    }
    for name, payload in wanted.items():
        message = received[name].get(timeout=30)
        while message.status != ChannelStatus.HealthCheck or message.payload != payload:
            message = received[name].get(timeout=30)


def test_a_failing_callback_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    reader = bench.reader()
    received: queue.Queue[int] = queue.Queue()

    def broken(messages: list[ChannelStatusMessage]) -> None:
        received.put(len(messages))
        raise RuntimeError("no use for them")

    reader.on_status_message_received(broken)
    assert reader.invoke_resource_creation()
    until(reader.invoke_open_channel)
    for _ in range(3):
        received.get(timeout=30)
    assert "no use for them" in caplog.text


@pytest.mark.long
def test_the_callback_of_a_monitor_may_request_an_update(bench: Bench) -> None:
    updates: list[ChannelStatusMessage] = []

    class Updating(QuickReader):
        def on_new_channel_status_monitor(self, status_monitor: ChannelStatusMonitor) -> None:
            def update(message: ChannelStatusMessage) -> None:
                self.invoke_sync_status_update()
                updates.append(message)

            status_monitor.on_status_update(update)

    reader, writer = bench.reader(Updating), bench.writer()
    assert reader.invoke_resource_creation()
    for port in (reader, writer):
        until(port.invoke_open_channel)
    names = reader.retrieve_connected_channel_unique_names
    writer.start_channel()
    until(lambda: names(lambda monitor: monitor.is_channel_started()))
    writer.stop_channel()
    until(lambda: names(lambda monitor: monitor.is_channel_stopped()))
    # A monitor knows the state before its callback has returned.
    until(lambda: ChannelStatus.Started in [message.status for message in updates])


@pytest.mark.long
def test_an_acknowledgement_covers_only_records_read_before_it(bench: Bench) -> None:
    reader, writer = bench.pair()
    until(lambda: writer.is_any_connected_channels_healthy())
    writer.invoke_write_records(demo(5))
    assert not writer.is_all_connected_input_channels_acknowledged()
    assert len(take(reader, 5)) == 5
    reader.acknowledge_input()
    until(writer.is_all_connected_input_channels_acknowledged)
    writer.invoke_write_records(demo(5, 5))
    assert not writer.is_all_connected_input_channels_acknowledged()
    # It arrives after the records were written, but its reader had not read them.
    reader.acknowledge_input()
    names = writer.retrieve_connected_channel_unique_names
    until(lambda: names(lambda monitor: ChannelStatus.Acknowledged in monitor.status_update_map))
    assert not writer.is_all_connected_input_channels_acknowledged()
    assert len(take(reader, 5)) == 5
    reader.acknowledge_input()
    until(writer.is_all_connected_input_channels_acknowledged)


def test_a_principal_closes_after_its_replicas(bench: Bench) -> None:
    group = {"group": bench.name, "size": 2}
    principal, replica = (bench.reader(index=index, **group) for index in range(2))
    assert principal.invoke_resource_creation()
    for channel in (principal, replica):
        until(channel.invoke_open_channel)
    until(lambda: not principal.can_close() and principal.retrieve_all_connected_channel_count())
    assert replica.can_close()
    assert not principal.invoke_close_channel()
    assert principal.is_channel_open()
    assert replica.invoke_close_channel()
    until(principal.can_close)
    until(principal.invoke_close_channel)


@pytest.mark.long
def test_a_principal_closes_in_a_group_that_has_shrunk(bench: Bench) -> None:
    for size in (3, 2):
        group = {"group": bench.name, "size": size}
        principal, *replicas = (bench.reader(index=index, **group) for index in range(size))
        assert principal.invoke_resource_creation()
        for reader in (principal, *replicas):
            until(reader.invoke_open_channel)
        assert not principal.can_close()
        for replica in replicas:
            assert replica.invoke_close_channel()
        until(principal.can_close)
        until(principal.invoke_close_channel)


@pytest.mark.long
def test_the_last_figures_are_sent_before_a_channel_closes(bench: Bench) -> None:
    class RareWriter(KafkaChannelWriter):
        """A writer whose status loop has no turn within the test."""

        DefaultStatusThreadIntervalInMs = 3_600_000

    reader, writer = bench.pair(kind=RareWriter)
    figures: list[Any] = []

    def note(messages: list[ChannelStatusMessage]) -> None:
        figures.extend(m.payload for m in messages if m.status == ChannelStatus.HealthCheck)

    reader.on_status_message_received(note)
    writer.start_channel()
    writer.invoke_write_records(demo(25))
    assert writer.invoke_close_channel()
    until(lambda: reader.retrieve_connected_channel_unique_names(lambda m: m.is_channel_closed()))
    assert figures[-1] == {"sentRecordCount": 25}


@pytest.mark.long
def test_heartbeats_that_arrive_after_the_close_are_no_warning(
    relay: Relay, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    class BriefWriter(QuickWriter):
        """A writer that waits a second for the gateway."""

        ControlLoopExceptionTimeoutInMs = 1000

    bench.create_channel()
    _, writer = bench.pair(kind=BriefWriter, writer_location=relay.url)
    # Only the request at the end has this word. Its response is lost, and while the writer waits,
    # more heartbeats are sent.
    relay.drop_at(b'"closed"', forward=True)
    assert not writer.invoke_close_channel()
    assert not relay.drop_pending
    assert writer.invoke_close_channel()
    assert [record.message for record in caplog.records if "refused" in record.message] == []


@pytest.mark.long
def test_a_writer_that_sent_error_has_not_finished(bench: Bench) -> None:
    reader, writer = impatient_reader(bench), bench.writer()
    until(writer.invoke_open_channel)
    writer.start_channel()
    writer.invoke_write_records(demo(2))
    writer.invoke_sync_send_status_message(ChannelStatus.Error)
    reader.invoke_sync_status_update()
    errors = reader.retrieve_connected_channel_unique_names
    until(lambda: errors(lambda monitor: monitor.is_channel_error()))
    assert writer.invoke_close_channel()
    reader.invoke_sync_status_update()
    assert errors(lambda monitor: monitor.is_channel_error() and not monitor.is_channel_healthy())
    assert reader.is_any_connected_channels_unhealthy()
    assert reader.has_records()
    assert take(reader, 2) == demo(2), "all that it wrote is read"
    with pytest.raises(WriterFailed, match=r"sent the status Error.*onLostWriter='go_on'"):
        until(lambda: not reader.has_records())
    # Restarted in its place, it is live.
    again = bench.writer()
    until(again.invoke_open_channel)
    reader.invoke_sync_status_update()
    until(lambda: not reader.is_any_connected_channels_unhealthy())
    assert not reader.has_records()
    again.invoke_write_records(demo(1, 2))
    again.invoke_close_channel()
    reader.invoke_sync_status_update()
    assert reader.has_records()
    assert take(reader, 1) == demo(1, 2)
    assert not reader.has_records()


@pytest.mark.long
@pytest.mark.parametrize("written", [25, 0])
def test_a_writer_that_is_restarted_in_time_is_read_to_the_end(bench: Bench, written: int) -> None:
    reader, writer = bench.pair()
    writer.start_channel()
    if written:
        writer.invoke_write_records(demo(written))
        assert take(reader, written) == demo(written)
    writer.invoke_sync_send_status_message(ChannelStatus.Error)
    assert writer.invoke_close_channel()
    until(reader.is_any_connected_channels_unhealthy)
    assert reader.has_records(), "its successor is waited for"
    again = bench.writer()
    until(again.invoke_open_channel)
    again.invoke_write_records(demo(40 - written, written))
    assert again.invoke_close_channel()
    assert take(reader, 40 - written) == demo(40 - written, written)
    until(lambda: not reader.has_records())


def test_a_writer_that_failed_before_writing_ends_a_reader_without_an_error(bench: Bench) -> None:
    reader, writer = impatient_reader(bench), bench.writer()
    until(writer.invoke_open_channel)
    writer.invoke_sync_send_status_message(ChannelStatus.Error)
    assert writer.invoke_close_channel()
    until(reader.is_any_connected_channels_unhealthy)
    until(lambda: not reader.has_records())


@pytest.mark.long
@pytest.mark.parametrize("choice", ["raise", "wait", "go_on"])
def test_the_gateway_finds_a_dead_writer(relay: Relay, bench: Bench, choice: str) -> None:
    channel = bench.create_channel()
    reader, _ = bench.pair(ElsewhereWriter, writer_location=relay.url, onLostWriter=choice)
    until(reader.is_any_connected_channels_healthy)
    assert not reader.has_records()
    writing = bench.endpoint_id("writer")
    # Its heartbeats end, as if its process had died.
    relay.cut()
    lose(channel, writing)
    until(reader.is_any_connected_channels_unhealthy)
    if choice == "raise":
        with pytest.raises(WriterLost, match="is lost"):
            reader.has_records()
    else:
        assert reader.has_records() == (choice == "wait")
    # For its end.
    relay.restore()


@pytest.mark.long
def test_a_writer_that_failed_before_may_be_restarted_with_its_reader(
    bench: Bench,
) -> None:
    bench.create_channel()
    reader, writer = bench.pair()
    writer.invoke_write_records(demo(2))
    until(lambda: reader.get_consumer_lag() == 2)
    writer.invoke_sync_send_status_message(ChannelStatus.Error)
    writer.invoke_close_channel()
    reader.invoke_close_channel()
    patient = bench.reader()
    until(patient.invoke_open_channel)
    until(patient.is_any_connected_channels_unhealthy)
    assert len(take(patient, 2)) == 2
    assert patient.has_records(), "it is waited for, for the channel's heartbeat timeout"
    assert patient.invoke_close_channel()
    later = impatient_reader(bench)
    until(later.is_any_connected_channels_unhealthy)
    assert len(take(later, 2)) == 2
    with pytest.raises(WriterFailed):
        until(lambda: not later.has_records())


def test_a_delivery_failure_is_raised_and_fails_the_writer(bench: Bench, topics: Topics) -> None:
    reader, writer = impatient_reader(bench), bench.writer()
    until(writer.invoke_open_channel)
    writer.start_channel()
    topics.limit_messages(bench.channel().status.topic.name)
    writer.invoke_write_records([{"demoText": random.Random(1).randbytes(4000).hex()}])  # noqa: S311
    with pytest.raises(DeliveryFailed):
        writer.invoke_close_channel()
    assert not writer.is_channel_open()
    until(
        lambda: [
            endpoint.state for endpoint in bench.channel().endpoints() if endpoint.role == "writer"
        ]
    )
    (writing,) = (endpoint for endpoint in bench.channel().endpoints() if endpoint.role == "writer")
    assert writing.state == "error"
    assert "MSG_SIZE_TOO_LARGE" in (writing.cause or "")
    until(reader.is_any_connected_channels_unhealthy)
    with pytest.raises(WriterFailed):
        until(lambda: not reader.has_records())


@pytest.mark.long
def test_causes_contain_no_values_of_records(bench: Bench) -> None:
    secret = "SENTINEL-4711"
    reader, writer = bench.pair()
    writer.invoke_write_records([{"demoText": secret}])
    assert take(reader, 1) == [{"demoText": secret}]
    with pytest.raises(InvalidRecordValue, match=secret) as raised:
        writer.invoke_write_records([{"demoText": [secret]}])
    reported = "record 0, field 'demoText': it must be a str without lone surrogates; it is list"
    assert raised.value.summary == reported
    for channel in (writer, reader):
        # As pypz's executor does after an operator's exception.
        channel.invoke_sync_send_status_message(ChannelStatus.Error)
        channel.invoke_close_channel()
    failed = [endpoint for endpoint in bench.channel().endpoints() if endpoint.state == "error"]
    assert sorted(endpoint.role for endpoint in failed) == ["reader", "writer"]
    for endpoint in failed:
        assert str(endpoint.cause).startswith("OperatorFailed: ")
        assert str(endpoint.cause).endswith("sent the status Error")
    assert secret not in all_responses(bench.url, bench.name)


def test_a_message_is_json_and_back() -> None:
    message = ChannelStatusMessage("channel", "port", "group", 1, "Started", {"a": 1}, 5)
    again = ChannelStatusMessage.create_from_json(str(message))
    assert vars(again) == vars(message)
    assert again.status is ChannelStatus.Started
    assert ChannelStatusMessage.create_from_json({**vars(message)}).timestamp == 5
    with pytest.raises(TypeError):
        ChannelStatusMessage.create_from_json(7)


def test_a_given_executor_runs_the_statuses_and_is_not_shut_down(bench: Bench) -> None:
    with ThreadPoolExecutor(2) as executor:
        reader = QuickReader(bench.name, StandinPort(bench.name, SCHEMA), executor)
        reader.set_location(bench.url)
        turns: queue.Queue[int] = queue.Queue()
        reader.on_status_message_received(lambda reported: turns.put(len(reported)))
        assert reader.invoke_resource_creation()
        assert reader.invoke_open_channel()
        for _ in range(3):
            turns.get(timeout=30)
        assert reader.invoke_close_channel()
        assert executor.submit(lambda: 5).result() == 5
