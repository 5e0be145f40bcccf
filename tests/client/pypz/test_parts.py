"""Parts of pypz channels without a gateway: statuses, offsets, figures, names."""

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluiceway import Endpoint, Position
from sluiceway.endpoint.attached import EndpointMetrics
from sluiceway.errors import (
    ChannelNotFound,
    Fenced,
    Forbidden,
    GatewayUnavailable,
    KafkaUnavailable,
    SluicewayTimeout,
    Unauthenticated,
)
from sluiceway.pypz import ChannelStatus, ChannelStatusMonitor
from sluiceway.pypz.config import (
    ChannelLogger,
    channel_name,
    group_name,
    reader_settings,
    writer_properties,
)
from sluiceway.pypz.peers import Peers
from sluiceway.pypz.reader import OffsetHistory
from sluiceway.pypz.resources import Resources
from sluiceway.pypz.status import OwnChannelStatus as OurStatus
from sluiceway.pypz.status import StatusPayload, cycle_figures

LOGGER = ChannelLogger(logging.getLogger("parts"), "port", "channel")
WRITER = Endpoint(
    id="1" * 32, role="writer", group="w", index=0, size=1, state="opened", health="healthy"
)


def statuses(peers: Peers, endpoint: Endpoint) -> list[str]:
    return [message.status.name for message in peers.update([endpoint])]


def connected(monitors: list[ChannelStatusMonitor] | None = None) -> Peers:
    return Peers("channel", LOGGER, ([] if monitors is None else monitors).append)


def test_each_peer_receives_each_status_once_and_in_order() -> None:
    payloads, early = StatusPayload("pipeline.w", None), connected()
    opened = replace(WRITER, payload=payloads.add(OurStatus.Opened, None))
    assert statuses(early, opened) == ["Opened"]
    started = replace(opened, state="started", payload=payloads.add(OurStatus.Started, None))
    assert statuses(early, started) == ["Started"]
    assert statuses(early, started) == []
    late = connected()
    assert statuses(late, started) == ["Opened", "Started"]
    closed = replace(started, state="closed")
    assert statuses(early, closed) == statuses(late, closed) == ["Closed"]
    assert statuses(early, closed) == []


def test_another_instance_in_a_place_keeps_the_monitor() -> None:
    seen: list[ChannelStatusMonitor] = []
    there = connected(seen)
    first = StatusPayload("pipeline.w", None)
    statuses(there, replace(WRITER, payload=first.add(OurStatus.Opened, None), state="error"))
    (monitor,) = seen
    assert monitor.is_channel_error()
    assert not monitor.is_channel_healthy()
    again = replace(WRITER, id="2" * 32)
    reported = StatusPayload("pipeline.w", None).add(OurStatus.Opened, None)
    assert statuses(there, replace(again, payload=reported)) == ["Opened"]
    assert seen == [monitor]
    assert monitor.is_channel_opened()
    assert monitor.is_channel_healthy()


def test_only_opened_and_started_clear_an_error() -> None:
    seen: list[ChannelStatusMonitor] = []
    there, payloads = connected(seen), StatusPayload("pipeline.w", None)
    for status, error in (
        (OurStatus.Error, True),
        (OurStatus.Stopped, True),
        (OurStatus.HealthCheck, True),
        (OurStatus.Closed, True),
        (OurStatus.Started, False),
    ):
        statuses(there, replace(WRITER, payload=payloads.add(status, None)))
        assert seen[0].is_channel_error() == error, status


def test_a_failing_callback_of_a_monitor_loses_no_later_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[ChannelStatusMonitor] = []
    there, payloads = connected(seen), StatusPayload("pipeline.w", None)
    statuses(there, replace(WRITER, payload=payloads.add(OurStatus.Opened, None)))
    seen[0].on_status_update(lambda message: {}[message.status])
    payloads.add(OurStatus.Started, None)
    both = replace(WRITER, payload=payloads.add(OurStatus.Stopped, None))
    assert statuses(there, both) == ["Started", "Stopped"]
    assert seen[0].is_channel_stopped()
    assert caplog.text.count("Error at status message callback") == 2


def test_native_endpoints_are_received_by_their_states() -> None:
    there = connected()
    plain = replace(WRITER, group="loader", size=3, index=2)
    assert statuses(there, plain) == ["Opened"]
    assert statuses(there, replace(plain, state="started")) == ["Started"]
    (monitor,) = there.monitors
    assert monitor.get_channel_context_name() == "loader[2]"
    assert statuses(there, replace(plain, state="started", health="lost")) == []
    assert not monitor.is_channel_healthy()


@pytest.mark.parametrize(
    "payload",
    [
        {"pypz": 1},
        {"pypz": {"context": 1, "messages": []}},
        {"pypz": {"context": "w", "messages": 7}},
        {"pypz": {"context": "w", "messages": [["x"], [1, "Sung", None], 5], "health": "good"}},
        {"rows": 7},
    ],
)
def test_other_payloads_are_ignored(payload: dict[str, Any]) -> None:
    there = connected()
    reported = statuses(there, replace(WRITER, payload=payload))
    assert reported in ([], ["Opened"])
    assert there.monitors[0].is_channel_healthy()


def test_the_document_fits_into_a_payload() -> None:
    payloads = StatusPayload("pipeline.w", None)
    for number in range(20):
        document = payloads.add(OurStatus.Acknowledged, {"at": number})
    numbers = [number for number, _, _ in document["pypz"]["messages"]]
    assert numbers == list(range(13, 21))
    document = payloads.add(OurStatus.WaitingForSchema, "x" * 3500)
    assert [number for number, _, _ in document["pypz"]["messages"]][-1] == 21
    assert len(str(document)) < 4096
    assert payloads.set_health({"a": 1})
    assert payloads.set_health({"a": 1}) is None, "nothing new"


def test_an_offset_history_of_one_partition_has_every_count() -> None:
    history = OffsetHistory(100, {0: Position(offset=100)})
    history.add(1, {0: Position(offset=101)})
    size_bytes = len(pickle.dumps(history))
    for offset in range(102, 151):
        history.add(1, {0: Position(offset=offset)})
    assert len(pickle.dumps(history)) <= size_bytes + 10
    assert [history.at(count) for count in (100, 120, 150, 151)] == [
        {0: Position(offset=offset)} for offset in (100, 120, 150, 150)
    ]
    history.forget(120)
    assert history.at(130) == {0: Position(offset=130)}
    history.forget(150)
    assert len(pickle.dumps(history)) < size_bytes


def test_an_offset_history_with_gaps_rounds_down_to_ends_of_calls() -> None:
    history = OffsetHistory(0, {0: Position(offset=0), 1: Position(offset=0)})
    history.add(10, {0: Position(offset=6), 1: Position(offset=4)})
    # An offset without a record, and a message with several.
    history.add(5, {0: Position(offset=12), 1: Position(offset=4)})
    history.add(3, {0: Position(offset=12, records=3), 1: Position(offset=4)})
    history.add(0, {0: Position(offset=13), 1: Position(offset=4)})
    places = [history.at(count) for count in (9, 10, 14, 15, 17, 18)]
    assert places == [
        {0: Position(offset=0), 1: Position(offset=0)},
        {0: Position(offset=6), 1: Position(offset=4)},
        {0: Position(offset=6), 1: Position(offset=4)},
        {0: Position(offset=12), 1: Position(offset=4)},
        {0: Position(offset=12), 1: Position(offset=4)},
        {0: Position(offset=13), 1: Position(offset=4)},
    ]
    history.forget(15)
    assert history.at(16) == {0: Position(offset=12), 1: Position(offset=4)}


def test_a_history_of_many_calls_keeps_positions_from_its_first_to_its_last_record() -> None:
    at = {0: Position(offset=0), 1: Position(offset=0)}
    history = OffsetHistory(0, at)
    size_bytes = 0
    for number in range(50_001):
        at = {**at, number % 2: Position(offset=number // 2 + 1)}
        history.add(1, at)
        if number == 9_999:
            size_bytes = len(pickle.dumps(history))
    assert len(pickle.dumps(history)) < 1.1 * size_bytes
    for count in (1, 7, 10_000, 10_001, 30_000, 50_000):
        offsets = [position.offset for position in history.at(count).values()]
        assert count - 512 < sum(offsets) <= count
    assert history.at(50_001) == at


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("pipeline.reader.input_port", "pipeline.reader.input_port"),
        ("Pipeline.Reader_1", "Pipeline.Reader_1"),
        ("Pipe Line", "Pipe-Line-"),
        ("..", "pypz-"),
        ("sluiceway.own", "sluiceway-own-"),
        ("ÜÄ", "--"),
        ("_x", "_x"),
        ("a" * 300, "a" * 180 + "-"),
    ],
)
def test_valid_names_stay_and_others_get_a_hash(name: str, valid: str) -> None:
    made = channel_name(name)
    assert made == valid or (made.startswith(valid.lstrip("-")) and made != name)
    assert channel_name(made) == made, "what was made fits"
    assert group_name(group_name(name)) == group_name(name)
    assert channel_name("A b") != channel_name("A-b")
    assert group_name("team a/größe") == "team a/größe"
    assert group_name("a" * 300).startswith("a" * 180 + "-")


def test_properties_of_kafka_python_are_translated() -> None:
    reported: list[str] = []
    configuration = {
        "max_poll_records": 9,
        "fetch_max_wait_ms": 5,
        "linger_ms": 7,
        "compression_type": None,
        "sasl_plain_username": "u",
        "metricsEnabled": True,
    }
    reading, writing = (
        reader_settings(configuration, reported.append),
        writer_properties(configuration, reported.append),
    )
    assert (reading.max_poll_records, reading.on_lost_writer) == (9, "raise")
    assert dict(reading.kafka) == {"fetch.wait.max.ms": 5, "sasl.username": "u"}
    assert writing == {
        "linger.ms": 7,
        "compression.type": "none",
        "sasl.username": "u",
    }
    assert reported == []


def test_metrics_are_averages_of_the_last_calls() -> None:
    now = [0.0]
    metrics = EndpointMetrics("writer", cycles=2, monotonic=lambda: now[0])
    assert set(cycle_figures(metrics).values()) == {0}
    written = 0
    for records, seconds in ((1, 9.0), (10, 1.0), (30, 3.0), (5, 0.5)):
        metrics.record_cycle(written)
        written += records
        now[0] += seconds
    assert cycle_figures(metrics) == {
        "elapsedTimeSinceLastOutputCycleMs": 500,
        "averageTimePerOutputCycleMs": 2000,
        "averageTimePerOutputRecordMs": 100,
        "averageRecordPerOutputCycle": 20,
    }


def test_statuses_have_pypzs_members() -> None:
    assert [status.name for status in ChannelStatus] == [
        *("Opened", "Started", "Stopped", "Closed"),
        *("HealthCheck", "Error", "WaitingForSchema", "Acknowledged"),
    ]


def test_retriable_errors_are_logged_and_others_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    resources = Resources("channel", None, LOGGER, grace_s=60)

    def failing(error: Exception) -> Callable[[], bool]:
        def act() -> bool:
            raise error

        return act

    for error in (
        GatewayUnavailable("no response"),
        KafkaUnavailable("nobody"),
        SluicewayTimeout(),
    ):
        assert not resources.attempt(failing(error))
    assert "no response" in caplog.text
    assert not resources.attempt(failing(ChannelNotFound("there is none")))
    assert "there is none" not in caplog.text, "that is no news while ports wait for each other"
    with pytest.raises(Forbidden):
        resources.attempt(failing(Forbidden("not yours")))
    assert resources.attempt(lambda: True, opening=True)
    assert not resources.attempt(failing(Unauthenticated("not now")))
    assert "not now" in caplog.text
    with pytest.raises(Fenced):
        resources.attempt(failing(Fenced("replaced")))


RELOADING = """
import importlib.util, sys
import sluiceway.pypz.resources

for folder in sys.argv[1:]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "avro"]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    path = sluiceway.pypz.resources.__file__
    spec = importlib.util.spec_from_file_location("reloaded", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    print(*(f"{kind.__module__}.{kind.__name__}" for kind in module.SchemaParseException.__bases__))
"""


def test_a_schema_error_is_caught_as_the_installed_avro_packages_error(tmp_path: Path) -> None:
    """avro defines it in avro.schema up to 1.10, and in avro.errors from 1.11 on."""
    for layout in ("schema", "errors", "schema errors", ""):
        package = tmp_path / (layout or "none") / "avro"
        package.mkdir(parents=True)
        absent = "raise ImportError"
        (package / "__init__.py").write_text("" if layout else absent)
        for module in ("schema", "errors"):
            kind = "class SchemaParseException(Exception): pass"
            (package / f"{module}.py").write_text(kind if module in layout else "")
    folders = [str(tmp_path / name) for name in ("schema", "errors", "schema errors", "none")]
    done = subprocess.run(
        [sys.executable, "-c", RELOADING, *folders],
        capture_output=True,
        text=True,
        timeout=480,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "sluiceway.errors.InvalidSchema avro.schema.SchemaParseException",
        "sluiceway.errors.InvalidSchema avro.errors.SchemaParseException",
        "sluiceway.errors.InvalidSchema avro.schema.SchemaParseException",
        "sluiceway.errors.InvalidSchema builtins.Exception",
    ]
