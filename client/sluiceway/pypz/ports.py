"""pypz's ports on channels of a gateway; the only module that needs pypz."""

from typing import Any

from sluiceway.pypz.reader import KafkaChannelReader
from sluiceway.pypz.writer import KafkaChannelWriter

try:
    from pypz.abstracts.channel_ports import ChannelInputPort, ChannelOutputPort
except ImportError as error:
    raise ImportError(
        "sluiceway.pypz.ports needs pypz: install pypz-core (github.com/lazlowa/pypz-python). "
        "Programs without pypz use sluiceway.InputPort and sluiceway.OutputPort"
    ) from error

__all__ = ["KafkaChannelInputPort", "KafkaChannelOutputPort"]


class KafkaChannelInputPort(ChannelInputPort):  # type: ignore[misc]
    """An input port on a gateway's channel; `channelLocation` is the gateway's address."""

    def __init__(
        self,
        name: str | None = None,
        schema: Any = None,
        group_mode: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, schema, group_mode, KafkaChannelReader, *args, **kwargs)


class KafkaChannelOutputPort(ChannelOutputPort):  # type: ignore[misc]
    """An output port that writes to a gateway's channels, one for each connected port."""

    def __init__(
        self, name: str | None = None, schema: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(name, schema, KafkaChannelWriter, *args, **kwargs)
