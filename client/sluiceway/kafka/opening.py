"""Which stream a reader reads from."""

from collections.abc import Mapping

from sluiceway.errors import OptionError
from sluiceway.kafka.consumer import MessageStream
from sluiceway.kafka.masked import MaskedProperties
from sluiceway.kafka.own import OwnStream
from sluiceway.kafka.shared_stream import SharedStream
from sluiceway.rest.models import Connection

__all__ = ["opened"]


def opened(
    connection: Connection,
    config: Mapping[str, object] | None,
    *,
    timeout_s: float,
    grouped: bool,
    shared: bool,
) -> MessageStream:
    """Return a stream for a reader; `shared`: by a consumer of several. Raises OptionError."""
    if not isinstance(timeout_s, int | float) or not 1 <= timeout_s <= 86_400:
        raise OptionError(f"timeout_s is {timeout_s!r}; it takes seconds from 1 to 86400")
    if shared:
        return SharedStream(connection, config, timeout_s=timeout_s)
    # A thousand members that wait ask their broker twice a second, and not ten times.
    patience = MaskedProperties({"fetch.wait.max.ms": 500} if grouped else {})
    return OwnStream(connection, patience.over(config or {}), timeout_s=timeout_s)
