"""Ports around channels: stand-ins, and pypz's if it is installed."""

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from pypz_rig import SCHEMA, QuickReader, QuickWriter
from pypz_standins import StandinInputPort, StandinOutputPort


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Parameters of the ports of a pipeline: replicas of a reader, and of a writer."""

    name: str
    url: str
    readers: int = 2
    writers: int = 2
    group_mode: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)


Ports = tuple[list[Any], list[Any]]
MakePorts = Callable[[Wish], Ports]

_STANDIN = {
    "syncConnectionsOpen": "sync_connections_open",
    "sequentialModeEnabled": "sequential_mode_enabled",
}


def standins(wish: Wish) -> Ports:
    """Create stand-in ports."""

    def place(operator: str, port: str, index: int, size: int) -> dict[str, Any]:
        replica = f"{operator}_{index - 1}" if index else operator
        group = f"{wish.name}.{operator}.{port}" if size > 1 else None
        return {
            "name": f"{wish.name}.{replica}.{port}",
            "schema": SCHEMA,
            "group": group,
            "index": index,
            "size": size,
            "location": wish.url,
            "config": dict(wish.config),
        }

    inputs = [
        StandinInputPort(
            **place("reader", "input_port", index, wish.readers),
            writers=wish.writers,
            group_mode=wish.group_mode,
            channel_reader_type=QuickReader,
            **{_STANDIN[key]: value for key, value in wish.parameters.items()},
        )
        for index in range(wish.readers)
    ]
    outputs = [
        StandinOutputPort(
            **place("writer", "output_port", index, wish.writers),
            inputs=[f"{wish.name}.reader.input_port"],
            channel_writer_type=QuickWriter,
        )
        for index in range(wish.writers)
    ]
    return inputs, outputs


def of_pypz(wish: Wish) -> Ports:
    """Create a pipeline of pypz's operators, and return their ports."""
    pipeline = pipeline_of_pypz(wish)
    readers = [pipeline.reader, *pipeline.reader.get_replicas()]
    writers = [pipeline.writer, *pipeline.writer.get_replicas()]
    return [each.input_port for each in readers], [each.output_port for each in writers]


def pipeline_of_pypz(wish: Wish, kind: Any = None) -> Any:
    """Create a pipeline of two operators, with their replicas."""
    from pypz_operators import Pipe, PipeToAll

    pipeline = (kind or (PipeToAll if wish.group_mode else Pipe))(wish.name)
    pipeline.set_parameter("##channelLocation", wish.url)
    pipeline.set_parameter("##channelConfig", dict(wish.config))
    for key, value in wish.parameters.items():
        pipeline.reader.input_port.set_parameter(key, value)
    pipeline.reader.set_parameter("replicationFactor", wish.readers - 1)
    pipeline.writer.set_parameter("replicationFactor", wish.writers - 1)
    return pipeline


def without_pypzs_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip without pypz; else let its ports close without their sleep of five seconds."""
    try:
        from pypz.abstracts import channel_ports
    except ImportError:
        pytest.skip("pypz is not here, and on no package index: github.com/lazlowa/pypz-python")
    monkeypatch.setattr(channel_ports, "time", types.SimpleNamespace(sleep=lambda _s: None))
