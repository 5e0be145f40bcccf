"""The groups of readers at a channel: where they stand, and putting them elsewhere."""

from collections.abc import Mapping

from sluiceway.position import Position
from sluiceway.rest.endpoints import EndpointCalls

__all__ = ["Groups"]


class Groups:
    """The groups of one incarnation of a channel, asked for without being in one."""

    def __init__(
        self, calls: EndpointCalls, channel: str, uid: str, *, topic_id: str | None
    ) -> None:
        self._calls = calls
        self._channel = channel
        self._uid = uid
        self._topic_id = topic_id

    def committed(self, group: str, index: int | None) -> dict[int, Position]:
        """Return what a group has committed, or one member of a broadcast group."""
        return self._calls.committed(self._channel, group, index=index)

    def reset(
        self,
        group: str,
        positions: Mapping[int, Position | int] | None,
        *,
        reason: str,
        index: int | None,
        force: bool,
    ) -> None:
        """Put a group's positions elsewhere."""
        body: dict[str, object] = {
            "uid": self._uid,
            "topic_id": self._topic_id,
            "reason": reason,
            "force": force,
        }
        places = None
        if positions is not None:
            places = {
                partition: place if isinstance(place, Position) else Position(offset=place)
                for partition, place in positions.items()
            }
        if index is not None:
            body["index"] = index
        self._calls.reset(self._channel, group, body, places=places)
