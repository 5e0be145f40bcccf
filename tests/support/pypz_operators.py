"""Operators of pypz, in an importable module: pypz creates their replicas by name."""

from typing import Any

from pypz.abstracts.channel_ports import ChannelInputPort, ChannelOutputPort
from pypz.core.specs.misc import BlankOperator
from pypz.core.specs.pipeline import Pipeline
from pypz.executors.operator.states import StateOperationRunning

from pypz_rig import SCHEMA, PortSteps, QuickReader, QuickWriter, demo

RECEIVED: dict[str, list[dict[str, str]]] = {}


class SteppedInputPort(ChannelInputPort, PortSteps):  # type: ignore[misc]
    """pypz's input port, with its steps by public names."""

    def fail(self) -> None:
        self._on_error(StateOperationRunning, RuntimeError("on purpose"))


class SteppedOutputPort(ChannelOutputPort, PortSteps):  # type: ignore[misc]
    """pypz's output port, with its steps by public names."""

    def fail(self) -> None:
        self._on_error(StateOperationRunning, RuntimeError("on purpose"))


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
