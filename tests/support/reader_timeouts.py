"""Timeouts of readers that are open."""

from sluiceway import ChannelReader
from sluiceway.kafka.consumer import MessageStream

__all__ = ["set_timeout"]


def set_timeout(reader: ChannelReader, timeout_s: float) -> None:
    """Change the `timeout_s` of an open reader: a busy machine may take longer to open it."""
    if isinstance(reader._stream, MessageStream):
        reader._stream._timeout_s = timeout_s
    reader._fetcher._idle_timeout._timeout_s = timeout_s
    reader._fetcher._idle_timeout.reset()
