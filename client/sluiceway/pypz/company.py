"""Questions about the channels on the other side."""

from collections.abc import Callable

from sluiceway.pypz.peers import ChannelStatusMonitor, Connected

__all__ = ["ChannelCompany", "Filter"]

Filter = Callable[[ChannelStatusMonitor], bool]


class ChannelCompany:
    """What a channel knows of those that it is connected to, by the last update."""

    _connected: Connected

    def retrieve_all_connected_channel_count(self) -> int:
        """Return how many were seen so far."""
        return len(self._connected.monitors)

    def retrieve_connected_channel_unique_names(
        self, filter_function: Filter | None = None
    ) -> set[str]:
        """Return the unique names of those that the filter takes; without one, of all."""
        return {
            each.get_channel_unique_name()
            for each in self._connected.monitors
            if filter_function is None or filter_function(each)
        }

    def retrieve_healthy_connected_channel_count(self) -> int:
        """Return how many of them are healthy."""
        return sum(each.is_channel_healthy() for each in self._connected.monitors)

    def is_any_connected_channel_healthy_and_not_stopped(self) -> bool:
        """Whether somebody is healthy and has not stopped."""
        return self._any(lambda each: not each.is_channel_stopped())

    def is_any_connected_channel_healthy_and_not_closed(self) -> bool:
        """Whether somebody is healthy and has not closed."""
        return self._any(lambda each: not each.is_channel_closed())

    def is_any_connected_channel_healthy_and_not_stopped_and_not_closed(self) -> bool:
        """Whether somebody is healthy and still at work."""
        return self._any(lambda each: not (each.is_channel_stopped() or each.is_channel_closed()))

    def is_any_connected_channels_unhealthy(self) -> bool:
        """Whether somebody was lost, or failed."""
        return any(not each.is_channel_healthy() for each in self._connected.monitors)

    def is_any_connected_channels_healthy(self) -> bool:
        """Whether somebody is healthy."""
        return self._any(lambda _each: True)

    def _any(self, also: Filter) -> bool:
        return any(each.is_channel_healthy() and also(each) for each in self._connected.monitors)
