"""What a streaming query's checkpoint keeps of a channel. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluiceway.errors import CheckpointMismatch
from sluiceway.rest.models import Connection

_VERSION: Final = 1
_ADVICE: Final = (
    "Give the query a new checkpointLocation to begin anew (startingOffsets says where), or the "
    "checkpoint's own channel to go on"
)


@dataclass(frozen=True, kw_only=True)
class StreamOffset:
    """How far a query has come: the next offset of every partition that it knows.

    They mean something in one topic only, the channel's with this uid and topic id. `group` is
    what the query is seen as, where an option names it; Spark's progress tells of it, too.
    """

    channel: str
    uid: str
    topic_id: str
    next_offsets: Mapping[int, int]
    group: str | None = None

    @classmethod
    def at(
        cls, connection: Connection, next_offsets: Mapping[int, int], group: str | None = None
    ) -> "StreamOffset":
        """Return these offsets in the topic that `connection` leads to."""
        return cls(
            channel=connection.channel_name,
            uid=connection.channel_uid,
            topic_id=connection.topic_id or "",
            next_offsets=next_offsets,
            group=group,
        )

    @classmethod
    def parse(cls, stored: Any) -> "StreamOffset":
        """Read what `to_json` gave. Raises CheckpointMismatch for what it did not give."""
        try:
            version = stored["version"]
            if type(version) is not int or version > _VERSION:
                raise CheckpointMismatch(
                    f"the checkpoint has the version {version!r}, this client reads versions up "
                    f"to {_VERSION}: install the version of sluiceway that wrote it, or a later "
                    "one, on the driver"
                )
            return cls(
                channel=str(stored["channel"]),
                uid=str(stored["uid"]),
                topic_id=str(stored["topic_id"]),
                next_offsets={int(p): int(offset) for p, offset in stored["offsets"].items()},
                group=None if stored.get("group") is None else str(stored["group"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointMismatch(
                f"the checkpoint holds {stored!r}, which are no offsets of a channel. {_ADVICE}"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return plain data; the same offsets always give the same text."""
        return {
            "version": _VERSION,
            "channel": self.channel,
            "uid": self.uid,
            "topic_id": self.topic_id,
            "offsets": {str(p): self.next_offsets[p] for p in sorted(self.next_offsets)},
        } | ({} if self.group is None else {"group": self.group})

    def require_of(self, connection: Connection) -> None:
        """Raise CheckpointMismatch unless the offsets are those of the connection's topic."""
        if self.uid != connection.channel_uid:
            same = self.channel == connection.channel_name
            what = (
                f"the channel {self.channel!r} was deleted and made anew since the checkpoint "
                f"was written: it was {self.uid} and is {connection.channel_uid} now, with other "
                "records"
                if same
                else f"the checkpoint belongs to the channel {self.channel!r} ({self.uid}), not "
                f"to {connection.channel_name!r} ({connection.channel_uid})"
            )
            raise CheckpointMismatch(f"{what}. {_ADVICE}")
        if connection.topic_id is not None and self.topic_id != connection.topic_id:
            raise CheckpointMismatch(
                f"the topic of the channel {self.channel!r} was deleted and made anew since the "
                f"checkpoint was written: its id was {self.topic_id} and is "
                f"{connection.topic_id} now. {_ADVICE}"
            )
