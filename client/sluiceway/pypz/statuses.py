"""The classes of statuses that the user's code meets: pypz's own, where it is installed.

Code that compares with its members, or asks for its classes, goes on to be right.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluiceway.pypz.status import ChannelStatus, ChannelStatusMessage
else:
    try:
        from pypz.core.channels.status import ChannelStatus, ChannelStatusMessage
    except ImportError:
        from sluiceway.pypz.status import ChannelStatus, ChannelStatusMessage

__all__ = ["ChannelStatus", "ChannelStatusMessage"]
