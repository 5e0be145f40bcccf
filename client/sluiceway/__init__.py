"""Typed data channels on Kafka: the client.

Names are imported on first use: the gateway shares the schema rules with the client, but needs none
of the modules that transfer records.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from sluiceway._version import __version__

if TYPE_CHECKING:
    from sluiceway.channel import Channel
    from sluiceway.errors import SluicewayError
    from sluiceway.gateway import Gateway
    from sluiceway.ports import InputPort, OutputPort
    from sluiceway.reader import ChannelReader
    from sluiceway.rest.endpoint_models import Endpoint, Position
    from sluiceway.rest.models import Connection, Heartbeat, Retention
    from sluiceway.rest.status import StatusReport
    from sluiceway.schema import Schema
    from sluiceway.writer import ChannelWriter

_MODULES = {
    "Channel": "channel",
    "ChannelReader": "reader",
    "ChannelWriter": "writer",
    "Connection": "rest.models",
    "Endpoint": "rest.endpoint_models",
    "Gateway": "gateway",
    "Heartbeat": "rest.models",
    "InputPort": "ports",
    "OutputPort": "ports",
    "Position": "rest.endpoint_models",
    "Retention": "rest.models",
    "Schema": "schema",
    "SluicewayError": "errors",
    "StatusReport": "rest.status",
}

__all__ = [
    "Channel",
    "ChannelReader",
    "ChannelWriter",
    "Connection",
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


if not TYPE_CHECKING:  # Type checkers see only the imports above.

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted(__all__)
