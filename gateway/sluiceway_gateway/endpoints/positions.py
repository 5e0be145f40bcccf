"""Positions of groups in their topic. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sluiceway_gateway.core.errors import StaleGeneration, TopicChanged
from sluiceway_gateway.endpoints.groups.model import Group


@dataclass(frozen=True, kw_only=True)
class Position:
    """The next record to read: a message's offset, and the number of its records already read."""

    partition: int
    offset: int
    record: int = 0
    metadata: str | None = None
    """The client's text, stored with the position."""

    @property
    def order(self) -> tuple[int, int]:
        """Sort key of positions within a partition."""
        return (self.offset, self.record)


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A stored position, and the commit that stored it."""

    position: Position
    topic_id: str
    epoch: int = 0
    """The endpoint's epoch; 0 after a reset."""
    number: int = 0
    committed_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """Return topic id, partition, offset and record, and the metadata if there is any."""
        metadata = self.position.metadata
        return ({} if metadata is None else {"metadata": metadata}) | {
            "partition": self.position.partition,
            "offset": self.position.offset,
            "record": self.position.record,
            "topic_id": self.topic_id,
        }


def require_generation(group: Group, generation: int) -> None:
    """Raise StaleGeneration unless the group has this generation."""
    if generation != group.generation:
        raise StaleGeneration(
            f"The group {group.name!r} is at generation {group.generation}, not {generation}: it "
            "was resized or reset. Attach a new instance; it continues from the committed offsets."
        )


def require_topic(topic_id: str | None, position_topic: str) -> None:
    """Raise TopicChanged unless this is the channel's topic."""
    if position_topic != topic_id:
        raise TopicChanged(
            f"The channel's topic has the id {topic_id}, but the positions are of "
            f"{position_topic}. Attach again, or set the group's positions with offsets/reset."
        )
