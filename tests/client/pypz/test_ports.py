"""pypz's ports and executors, which run the channel classes."""

import os
import subprocess
import sys
import types
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pypz.abstracts import channel_ports
from pypz.abstracts.channel_ports import ChannelInputPort, ChannelOutputPort
from pypz.core.specs.misc import BlankOperator
from pypz.core.specs.pipeline import Pipeline
from pypz.executors.operator.executor import OperatorExecutor
from pypz.executors.operator.states import StateOperationRunning

from pypz_rig import SCHEMA, QuickReader, QuickWriter, demo
from sluiceway import Gateway, Heartbeat
from sluiceway.errors import ChannelNotFound, WriterFailed
from sluiceway.pypz import KafkaChannelReader, KafkaChannelWriter
from waiting import until


@pytest.fixture(autouse=True)
def _without_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the sleep of five seconds before pypz's ports close."""
    # It has no parameter.
    monkeypatch.setattr(channel_ports, "time", types.SimpleNamespace(sleep=lambda _s: None))


RECEIVED: dict[str, list[dict[str, str]]] = {}


class Steps:
    """The steps of a port by public names; pypz's executor takes them through its hooks."""

    _pre_execution: Any
    _on_resource_creation: Any
    _on_port_open: Any
    _on_port_close: Any
    _on_resource_deletion: Any
    _on_error: Any

    def prepare(self) -> None:
        self._pre_execution()

    def create_resource(self) -> bool:
        return bool(self._on_resource_creation())

    def open(self) -> bool:
        return bool(self._on_port_open())

    def close(self) -> bool:
        return bool(self._on_port_close())

    def delete_resource(self) -> bool:
        return bool(self._on_resource_deletion())

    def fail(self) -> None:
        self._on_error(StateOperationRunning, RuntimeError("on purpose"))


class SteppedInputPort(ChannelInputPort, Steps):  # type: ignore[misc]
    """An input port of pypz."""


class SteppedOutputPort(ChannelOutputPort, Steps):  # type: ignore[misc]
    """An output port of pypz."""


class Reads(BlankOperator):  # type: ignore[misc]
    """An operator that reads until its port has no more records."""

    GROUP_MODE = False

    def __init__(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(name, *args, **kwargs)
        self.input_port = SteppedInputPort(
            schema=SCHEMA, group_mode=self.GROUP_MODE, channel_reader_type=QuickReader
        )

    def _on_running(self) -> bool | None:
        RECEIVED.setdefault(self.get_full_name(), []).extend(self.input_port.retrieve())
        return None


class ReadsAll(Reads):
    GROUP_MODE = True


class ReadsFew(Reads):
    """An operator that stops after the first record."""

    def _on_running(self) -> bool:
        if not self.input_port.retrieve():
            return False
        self.input_port.commit_current_read_offset()
        return True


class Writes(BlankOperator):  # type: ignore[misc]
    """An operator that writes a hundred records."""

    def __init__(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(name, *args, **kwargs)
        self.output_port = SteppedOutputPort(schema=SCHEMA, channel_writer_type=QuickWriter)

    def _on_running(self) -> bool:
        self.output_port.send(demo(100))
        return True


class Pipe(Pipeline):  # type: ignore[misc]
    """A writer connected to a reader."""

    READS = Reads

    def __init__(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(name, *args, **kwargs)
        self.reader = self.READS("reader")
        self.writer = Writes("writer")
        self.reader.input_port.connect(self.writer.output_port)


class PipeToAll(Pipe):
    READS = ReadsAll


class PipeOfFew(Pipe):
    READS = ReadsFew


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Parameters of a pipeline's ports, with the numbers of replicas."""

    name: str
    url: str
    readers: int = 2
    writers: int = 2
    group_mode: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)


def replicas_of(operator: Any) -> list[Any]:
    """Return an operator and its replicas; those of pypz 0.10 are materialized by its executor."""
    replicas = operator.get_replicas()
    return [
        operator,
        *(
            replica.materialize() if hasattr(replica, "materialize") else replica
            for replica in replicas
        ),
    ]


def pipeline_of(wish: Wish, kind: Any = None) -> Any:
    """Create a pipeline of two operators, with their replicas."""
    pipeline = (kind or (PipeToAll if wish.group_mode else Pipe))(wish.name)
    pipeline.set_parameter("##channelLocation", wish.url)
    pipeline.set_parameter("##channelConfig", dict(wish.config))
    for key, value in wish.parameters.items():
        pipeline.reader.input_port.set_parameter(key, value)
    pipeline.reader.set_parameter("replicationFactor", wish.readers - 1)
    pipeline.writer.set_parameter("replicationFactor", wish.writers - 1)
    return pipeline


class Pipelines:
    """Creates ports, and closes them at the end of the test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = f"pipeline-{uuid.uuid4().hex[:8]}"
        self.made: list[Any] = []

    def __call__(self, **wishes: Any) -> tuple[list[Any], list[Any]]:
        pipeline = pipeline_of(Wish(name=self.name, url=self.url, **wishes))
        inputs = [operator.input_port for operator in replicas_of(pipeline.reader)]
        outputs = [operator.output_port for operator in replicas_of(pipeline.writer)]
        self.made += [*reversed(outputs), *reversed(inputs)]
        for port in (*inputs, *outputs):
            port.prepare()
        return inputs, outputs

    def end(self) -> None:
        for port in self.made:
            with suppress(Exception):
                port.close()


@pytest.fixture
def pipelines(gateway_url: str) -> Iterator[Pipelines]:
    made = Pipelines(gateway_url)
    yield made
    made.end()


def opened(*ports: Any) -> None:
    for port in ports:
        assert port.create_resource()
    until(lambda: all([port.open() for port in ports]))  # noqa: C419 - all have a turn


def finished(*ports: Any) -> None:
    until(lambda: all([port.close() for port in ports]))  # noqa: C419


def all_of(port: Any, records: list[dict[str, str]] | None = None) -> list[dict[str, str]]:
    """Read like an operator, with a commit after each call."""
    records = [] if records is None else records
    while True:
        records += port.retrieve()
        port.commit_current_read_offset()
        if not port.can_retrieve():
            return records


def taken(port: Any, count: int) -> list[dict[str, str]]:
    records: list[dict[str, str]] = []
    while len(records) < count:
        records += port.retrieve()
    return records


@pytest.mark.long
def test_a_pipeline_runs_from_its_first_resource_to_its_last(pipelines: Pipelines) -> None:
    (reader, reader_0), (writer, writer_0) = pipelines()
    for port in (reader_0, writer, writer_0):
        assert port.create_resource()
    for port in (writer, writer_0, reader_0):
        assert not port.open(), "the principal input port has not made it yet"
    assert reader.create_resource()
    assert not reader.open(), "no output port has come yet"
    until(writer.open)
    for port in (reader, reader_0, writer_0):
        until(port.open)
    for port in (writer, writer_0):
        port.send(demo(1))
        port.send(demo(1, 1))
    # The records of an output port go round robin over the input ports, from the first one.
    assert taken(reader, 2) == demo(1) * 2
    assert taken(reader_0, 2) == demo(1, 1) * 2
    for port in (reader, reader_0):
        port.commit_current_read_offset()
        assert port.can_retrieve(), "it waits for writers"
    assert not reader.close(), "its replica is open"
    finished(writer_0, writer)
    for port in (reader, reader_0):
        until(lambda port=port: not port.can_retrieve())  # type: ignore[misc]
    assert not reader.close(), "its replica is open still"
    finished(reader_0)
    finished(reader)
    for port in (writer_0, writer, reader_0):
        assert port.delete_resource()
    with Gateway(pipelines.url) as gateway:
        name = f"{pipelines.name}.reader.input_port"
        assert gateway.channel(name).partitions == 2
        until(reader.delete_resource)
        with pytest.raises(ChannelNotFound):
            gateway.channel(name)


@pytest.mark.long
def test_sync_connections_open_waits_for_all_writers(pipelines: Pipelines) -> None:
    (reader,), (writer, writer_0) = pipelines(readers=1, parameters={"syncConnectionsOpen": True})
    assert reader.create_resource()
    assert not reader.open()
    until(writer.open)
    assert not reader.open()
    until(writer_0.open)
    until(reader.open)


def test_a_sequential_input_port_waits_until_all_have_finished(pipelines: Pipelines) -> None:
    (reader,), (writer, writer_0) = pipelines(
        readers=1, parameters={"sequentialModeEnabled": True}, config={"max_poll_records": 50}
    )
    assert reader.create_resource()
    for port in (writer, writer_0):
        until(port.open)
        port.send(demo(30))
    assert not reader.open()
    finished(writer)
    assert not reader.open()
    finished(writer_0)
    until(reader.open)
    assert sorted(record["demoText"] for record in all_of(reader)) == sorted(
        record["demoText"] for record in demo(30) * 2
    )


@pytest.mark.long
def test_the_ports_of_group_mode_read_everything(pipelines: Pipelines) -> None:
    inputs, outputs = pipelines(group_mode=True, config={"max_poll_records": 50})
    opened(*inputs, *outputs)
    outputs[0].send(demo(3))
    finished(*reversed(outputs))
    assert [all_of(port) for port in inputs] == [demo(3), demo(3)]


@pytest.mark.long
def test_a_restart_after_an_error_continues_at_the_last_commit(pipelines: Pipelines) -> None:
    (reader,), (writer,) = pipelines(readers=1, writers=1, config={"max_poll_records": 3})
    with Gateway(pipelines.url) as gateway:
        # The reader waits for successors of failed writers as long as a heartbeat may be missing
        # when it opens; later, a busy machine may delay heartbeats for longer.
        heartbeat = Heartbeat(interval_ms=100, timeout_ms=1500)
        name = f"{pipelines.name}.reader.input_port"
        channel = gateway.channel(name, SCHEMA, heartbeat=heartbeat)
        opened(reader, writer)
        channel.update(heartbeat=replace(heartbeat, timeout_ms=60_000))
    writer.send(demo(5))
    first: list[dict[str, str]] = []
    while not first:
        first = reader.retrieve()
    reader.commit_current_read_offset()
    writer.fail()
    finished(writer)
    rest: list[dict[str, str]] = []
    with pytest.raises(WriterFailed):
        all_of(reader, rest)
    assert first + rest == demo(5), "all that it wrote is there"
    reader.fail()
    finished(reader)
    (again,), (writing,) = pipelines(readers=1, writers=1, config={"max_poll_records": 50})
    opened(again, writing)
    writing.send(demo(2, 5))
    finished(writing)
    assert all_of(again) == demo(2, 5)
    finished(again)
    assert again.delete_resource()


@pytest.mark.long
def test_the_executors_of_pypz_run_a_pipeline_to_its_end(gateway_url: str) -> None:
    wish = Wish(
        name=f"pipeline-{uuid.uuid4().hex[:8]}", url=gateway_url, config={"max_poll_records": 50}
    )
    pipeline = pipeline_of(wish)
    operators = [
        *(pipeline.reader, *pipeline.reader.get_replicas()),
        *(pipeline.writer, *pipeline.writer.get_replicas()),
    ]
    with ThreadPoolExecutor() as threads:
        executors = [OperatorExecutor(operator, handle_interrupts=False) for operator in operators]
        ends = [threads.submit(executor.execute) for executor in executors]
        assert [end.result(120) for end in ends] == [0, 0, 0, 0]
    received = {name: got for name, got in RECEIVED.items() if name.startswith(wish.name)}
    assert {name: len(got) for name, got in received.items()} == {
        f"{wish.name}.reader": 100,
        f"{wish.name}.reader_0": 100,
    }
    with Gateway(gateway_url) as gateway, pytest.raises(ChannelNotFound):
        gateway.channel(f"{wish.name}.reader.input_port")


def test_an_operator_that_stops_early_succeeds_and_keeps_its_channel(gateway_url: str) -> None:
    wish = Wish(name=f"pipeline-{uuid.uuid4().hex[:8]}", url=gateway_url, readers=1, writers=1)
    pipeline = pipeline_of(wish, PipeOfFew)
    with ThreadPoolExecutor() as threads:
        executors = [
            OperatorExecutor(operator, handle_interrupts=False)
            for operator in (pipeline.reader, pipeline.writer)
        ]
        ends = [threads.submit(executor.execute) for executor in executors]
        assert [end.result(120) for end in ends] == [0, 0]
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(f"{wish.name}.reader.input_port")
        group = f"{wish.name}.reader.input_port"
        assert channel.committed(group)[0].offset == 1
        with channel.reader(until="now") as kept:
            assert list(kept) == demo(100)
        channel.delete(force=True)


def test_pypzs_classes_accept_sluiceways() -> None:
    from pypz.core.channels.io import ChannelReader, ChannelWriter
    from pypz.core.channels.status import ChannelStatus as TheirStatus

    from sluiceway.pypz import ChannelStatus
    from sluiceway.pypz.ports import KafkaChannelInputPort, KafkaChannelOutputPort

    assert issubclass(KafkaChannelReader, ChannelReader)
    assert issubclass(KafkaChannelWriter, ChannelWriter)
    assert ChannelStatus is TheirStatus
    assert KafkaChannelInputPort("inlet").channel_reader_type is KafkaChannelReader
    assert KafkaChannelOutputPort("outlet").channel_writer_type is KafkaChannelWriter


def test_without_pypz_its_ports_name_the_missing_package(tmp_path: Path) -> None:
    # Another package of this name comes first.
    (tmp_path / "pypz.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", "import sluiceway.pypz\nimport sluiceway.pypz.ports"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert "install pypz-core (github.com/lazlowa/pypz-python)" in done.stderr
    assert "line 2, in <module>" in done.stderr, "the channels themselves need no pypz"
