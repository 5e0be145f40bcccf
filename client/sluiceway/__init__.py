"""Typed data channels on Kafka: the client.

Names are imported on first use: the gateway shares the client's schema rules without loading
pyarrow or Kafka.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluiceway.api.endpoints import Endpoint, Position
    from sluiceway.api.models import Connection, Heartbeat, Retention
    from sluiceway.api.status import StatusReport
    from sluiceway.channel import Channel
    from sluiceway.errors import SluicewayError
    from sluiceway.gateway import Gateway
    from sluiceway.kafka.keys import Deleted
    from sluiceway.ports import InputPort, OutputPort
    from sluiceway.reader import ChannelReader
    from sluiceway.schema import Schema
    from sluiceway.writer import ChannelWriter

_MODULES = {
    "Heartbeat": "api.models",
    "Channel": "channel",
    "ChannelReader": "reader",
    "ChannelWriter": "writer",
    "Connection": "api.models",
    "Deleted": "kafka.keys",
    "Endpoint": "api.endpoints",
    "Gateway": "gateway",
    "InputPort": "ports",
    "OutputPort": "ports",
    "Position": "api.endpoints",
    "Retention": "api.models",
    "Schema": "schema",
    "SluicewayError": "errors",
    "StatusReport": "api.status",
}

__all__ = [
    "Channel",
    "ChannelReader",
    "ChannelWriter",
    "Connection",
    "Deleted",
    "Endpoint",
    "Gateway",
    "Heartbeat",
    "InputPort",
    "OutputPort",
    "Position",
    "Retention",
    "Schema",
    "SluicewayError",
    "StatusReport",
    "__version__",
]

__version__ = "0.1.0"


def install_command(*extras: str) -> str:
    """Return the command that installs this version with some extras, for error messages."""
    target = f"'.[{','.join(extras)}]'" if extras else "."
    return f"`pip install {target}` in a checkout of sluiceway {__version__}"


if not TYPE_CHECKING:  # Type checkers see only the imports above.

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        attribute = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        # Later lookups find the attribute.
        globals()[name] = attribute
        return attribute

    def __dir__() -> list[str]:
        return sorted(__all__)
