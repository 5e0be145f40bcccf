"""pypz's Kafka channels on a gateway's channels: change the import and the address.

    from sluiceway.pypz import KafkaChannelReader, KafkaChannelWriter   # pypz's ports run them
    from sluiceway.pypz.ports import KafkaChannelInputPort, KafkaChannelOutputPort

The classes do not need pypz. If it is installed, they are registered as its ChannelReader and
ChannelWriter, and use its classes of statuses and messages.
"""

from sluiceway.pypz.peers import ChannelStatusMonitor
from sluiceway.pypz.reader import KafkaChannelReader
from sluiceway.pypz.resources import MissingLocation, SchemaParseException
from sluiceway.pypz.status import ChannelStatus, ChannelStatusMessage
from sluiceway.pypz.writer import InvalidRecordValue, KafkaChannelWriter, NoRecordList

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
