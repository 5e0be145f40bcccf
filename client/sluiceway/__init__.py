"""Typed data channels on Kafka: the client."""

from sluiceway._version import __version__
from sluiceway.channel import Channel
from sluiceway.endpoint import Endpoint
from sluiceway.errors import SluicewayError
from sluiceway.gateway import Gateway
from sluiceway.ports import InputPort, OutputPort
from sluiceway.position import Position
from sluiceway.protocol import Beat, Connection, Retention
from sluiceway.reader import ChannelReader
from sluiceway.reports import StatusReport
from sluiceway.schema import Schema
from sluiceway.writer import ChannelWriter

__all__ = [
    "Beat",
    "Channel",
    "ChannelReader",
    "ChannelWriter",
    "Connection",
    "Endpoint",
    "Gateway",
    "InputPort",
    "OutputPort",
    "Position",
    "Retention",
    "Schema",
    "SluicewayError",
    "StatusReport",
    "__version__",
]
