"""pypz's Kafka channels on a gateway's channels: another import, another address.

    from sluiceway.pypz import KafkaChannelReader, KafkaChannelWriter   # pypz's ports run them
    from sluiceway.pypz.ports import KafkaChannelInputPort, KafkaChannelOutputPort

The classes need no pypz. Where it is installed, they count as its ChannelReader and
ChannelWriter, and their statuses and messages are of its own classes.
"""

from sluiceway.pypz.errors import (
    InvalidRecordValue,
    MissingLocation,
    NoRecordList,
    SchemaParseException,
)
from sluiceway.pypz.peers import ChannelStatusMonitor
from sluiceway.pypz.reader import KafkaChannelReader
from sluiceway.pypz.status import ChannelStatus, ChannelStatusMessage
from sluiceway.pypz.writer import KafkaChannelWriter

try:
    from pypz.core.channels.io import ChannelReader, ChannelWriter
except ImportError:
    pass
else:
    ChannelReader.register(KafkaChannelReader)
    ChannelWriter.register(KafkaChannelWriter)

__all__ = [
    "ChannelStatus",
    "ChannelStatusMessage",
    "ChannelStatusMonitor",
    "InvalidRecordValue",
    "KafkaChannelReader",
    "KafkaChannelWriter",
    "MissingLocation",
    "NoRecordList",
    "SchemaParseException",
]
