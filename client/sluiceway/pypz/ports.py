"""pypz's own ports over channels of a gateway; needs pypz (`pypz-core`)."""

from typing import Any

from sluiceway.pypz.reader import KafkaChannelReader
from sluiceway.pypz.writer import KafkaChannelWriter

try:
    from pypz.abstracts.channel_ports import ChannelInputPort, ChannelOutputPort
except ImportError as error:
    raise ImportError(
        "the ports are pypz's own: install pypz-core (github.com/lazlowa/pypz-python); without it, "
        "sluiceway.InputPort and sluiceway.OutputPort do the same for plain programs"
    ) from error

__all__ = ["KafkaChannelInputPort", "KafkaChannelOutputPort"]


class KafkaChannelInputPort(ChannelInputPort):  # type: ignore[misc]
    """An input port whose channel is a gateway's; `channelLocation` is the gateway's address."""

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
    """An output port that writes to a gateway's channels, one for each port that it feeds."""

    def __init__(
        self, name: str | None = None, schema: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(name, schema, KafkaChannelWriter, *args, **kwargs)
