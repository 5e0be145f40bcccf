"""Waits for changes of channels."""

from collections.abc import Callable, Mapping

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.store import Tag
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.longpoll import Poller
from sluiceway_gateway.core.passes import OnPass, PassRecord, unobserved

_ALL_CHANNELS = ""
"""The key of all channels together; no channel has this name."""


class Watch(Poller[str, Tag]):
    """Waits for changes of channels, their endpoints and their status."""

    def __init__(
        self, database: Database, *, limit: int, poll_s: float, on_pass: OnPass = unobserved
    ) -> None:
        passes = PassRecord("watch", on_pass=on_pass)
        super().__init__(self._tags, passes=passes, limit=limit, poll_s=poll_s, immediate=True)
        self._database = database
        self._at_close: list[Callable[[], None]] = []

    async def changed(self, channel: Channel, *, timeout_s: float) -> bool:
        """Wait until the channel differs from this one; see `Poller.wait`."""
        seen = (channel.uid, channel.generation, channel.revision)

        def differs(tag: Tag | None) -> bool:
            return tag is None or (tag.uid, tag.generation, tag.revision) != seen

        return await self.wait(channel.name, differs, timeout_s=timeout_s)

    async def endpoints_changed(self, state: tuple[Channel, int], *, timeout_s: float) -> bool:
        """Wait until the channel's endpoints have another revision than this one."""
        channel, revision = state
        seen = (channel.uid, revision)

        def differs(tag: Tag | None) -> bool:
            return tag is None or (tag.uid, tag.endpoints_revision) != seen

        return await self.wait(channel.name, differs, timeout_s=timeout_s)

    async def status_changed(
        self, name: str, seen: Tag, *, timeout_s: float, has_slot: bool = False
    ) -> bool:
        """Wait until anything of the channel differs."""
        return await self.wait(
            name, lambda tag: tag != seen, timeout_s=timeout_s, has_slot=has_slot
        )

    async def anything_changed(
        self, seen: Tag, *, timeout_s: float, has_slot: bool = False
    ) -> bool:
        """Wait until anything of any channel differs."""
        return await self.status_changed(
            _ALL_CHANNELS, seen, timeout_s=timeout_s, has_slot=has_slot
        )

    def at_close(self, call: Callable[[], None]) -> None:
        """Register a callback for `close`."""
        self._at_close.append(call)

    def close(self) -> None:
        """End all waits, and allow no more. May be called from any thread."""
        super().close()
        # Streams that a callback wakes end only if the watch is closed.
        for call in self._at_close:
            call()

    def _tags(self, names: tuple[str, ...]) -> Mapping[str, Tag]:
        with self._database.read() as tx:
            tags = dict(channels_store.tags(tx, names))
            if _ALL_CHANNELS in names:
                tags[_ALL_CHANNELS] = channels_store.overall(tx)
            return tags
