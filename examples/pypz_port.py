"""The pipeline of pypz's documentation, on a channel of a gateway.

Only the import and the address, which is the gateway's, differ. Needs pypz
(github.com/lazlowa/pypz-python, `pip install ./core`).

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/pypz_port.py
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pypz.core.specs.operator import Operator
from pypz.core.specs.pipeline import Pipeline
from pypz.executors.operator.executor import OperatorExecutor

from sluiceway.pypz.ports import KafkaChannelInputPort, KafkaChannelOutputPort

SCHEMA = """
{
    "type": "record",
    "name": "DemoRecord",
    "fields": [{"name": "demoText", "type": "string"}]
}
"""


class DemoWriterOperator(Operator):
    """Writes ten records, one at a time."""

    def __init__(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(name, *args, **kwargs)
        self.output_port = KafkaChannelOutputPort(schema=SCHEMA)
        self.count = 0

    def _on_init(self) -> bool:
        return True

    def _on_running(self) -> bool:
        self.output_port.send([{"demoText": f"HelloWorld_{self.count}"}])
        self.count += 1
        return self.count == 10

    def _on_shutdown(self) -> bool:
        return True

    def _on_interrupt(self, system_signal: int | None = None) -> None:
        pass

    def _on_error(self, source: Any, exception: Exception) -> None:
        pass


class DemoReaderOperator(Operator):
    """Prints all records."""

    def __init__(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(name, *args, **kwargs)
        self.input_port = KafkaChannelInputPort(schema=SCHEMA)

    def _on_init(self) -> bool:
        return True

    def _on_running(self) -> None:
        for record in self.input_port.retrieve():
            print(record["demoText"])

    def _on_shutdown(self) -> bool:
        return True

    def _on_interrupt(self, system_signal: int | None = None) -> None:
        pass

    def _on_error(self, source: Any, exception: Exception) -> None:
        pass


class DemoPipeline(Pipeline):
    """Connects the writer to the reader."""

    def __init__(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(name, *args, **kwargs)
        self.reader = DemoReaderOperator()
        self.writer = DemoWriterOperator()
        self.reader.input_port.connect(self.writer.output_port)


def main() -> None:
    pipeline = DemoPipeline("demo-pipeline")
    pipeline.set_parameter(
        "##channelLocation", os.environ.get("SLUICEWAY_URL", "http://127.0.0.1:8900")
    )
    with ThreadPoolExecutor() as threads:
        executors = [
            OperatorExecutor(each, handle_interrupts=False)
            for each in (pipeline.reader, pipeline.writer)
        ]
        ends = [threads.submit(each.execute) for each in executors]
    print(f"ended with {[each.result() for each in ends]}")


if __name__ == "__main__":
    main()
