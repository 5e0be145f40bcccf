"""Whether a channel is the one that is meant, and whether it can be used."""

from sluiceway_gateway.channels.model import Channel, Phase
from sluiceway_gateway.domain.errors import (
    ChannelClosed,
    ChannelNotFound,
    ChannelNotReady,
    UidMismatch,
)


def incarnation(name: str, channel: Channel | None, uid: str | None) -> Channel:
    """Return the channel if it is there and is the one of this uid.

    Raises ChannelNotFound and UidMismatch.
    """
    if channel is None:
        which = "" if uid is None else f" of the uid {uid}"
        raise ChannelNotFound(f"There is no channel {name!r}{which}.")
    if uid is not None and channel.uid != uid:
        raise UidMismatch(
            f"The channel {name!r} is now the one of the uid {channel.uid}, not {uid}: the one "
            "you mean was deleted, and this one made later. Open it again by its name."
        )
    return channel


def require_usable(channel: Channel, *, writes: bool) -> None:
    """Raise ChannelNotReady saying why not, ChannelClosed for a writer of one that is closed."""
    ends = channel.phase in (Phase.CLOSING, Phase.CLOSED)
    if ends and writes:
        raise ChannelClosed(
            f"The channel {channel.name!r} is {channel.phase}: its records can be read, and nobody "
            "writes to it any more. Write to another channel, or delete this one and make it anew."
        )
    condition = channel.condition("Ready")
    readable = ends and condition and condition.status == "True"
    if channel.phase is not Phase.READY and not readable:
        why = f": {condition.message}" if condition is not None else "."
        raise ChannelNotReady(f"The channel {channel.name!r} is {channel.phase}{why}")
