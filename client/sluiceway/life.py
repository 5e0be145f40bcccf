"""How a channel comes to its end: closed when all is read, and deleted."""

import time
from typing import Self

from sluiceway.channel_state import ChannelFacts
from sluiceway.errors import ChannelNotFound, Conflict

__all__ = ["ChannelLife"]


class ChannelLife(ChannelFacts):
    """A channel that can be closed and deleted."""

    def close(self, *, force: bool = False, wait_s: float | None = None) -> None:
        """Let nobody open a writer any more; the records stay readable. There is no way back.

        Writers that are open are asked to finish, and readers go on: the channel is `closing`
        until every writer has ended, or is lost, and every group has committed all there is. It
        returns at once, or with `wait_s` when that is done, else raises SluicewayTimeout, which
        says who is waited for. `force` waits for nobody.

        Raises Conflict for another incarnation of the channel, ChannelNotReady for one that has
        no topic.
        """
        self._take(self._control.close_channel(self.name, uid=self.uid, force=force))
        if wait_s is not None:
            self.wait_until_closed(wait_s)

    def delete(
        self, *, keep_topic: bool = False, force: bool = False, wait_s: float = 60.0
    ) -> None:
        """Delete the channel and, unless `keep_topic`, its topic with all records.

        A topic that was adopted always stays. Raises Conflict `endpoints_live` while somebody
        writes or reads, and where the topic goes `unread_data` if a group has not committed all of
        it, and GatewayUnavailable if Kafka does not tell; not with `force`. Those who are at work
        then get EndpointClosed or TopicGone.

        Returns when it is gone. Raises SluicewayTimeout, with the gateway's reason, when that
        takes longer than `wait_s`; the gateway goes on with it.
        """
        deadline_s = time.monotonic() + wait_s
        try:
            self._take(
                self._control.delete(self.name, uid=self.uid, keep_topic=keep_topic, force=force)
            )
        except ChannelNotFound:
            return
        self.wait_until_gone(deadline_s - time.monotonic())

    def wait_until_closed(self, wait_s: float = 60.0) -> Self:
        """Wait until all is written and read of a channel that is closing; return it.

        Raises SluicewayTimeout, which says who is waited for, and ChannelNotFound for one that was
        deleted meanwhile.
        """
        deadline_s = time.monotonic() + wait_s
        while self.status.phase != "closed":
            self._await_change(deadline_s, f"the channel {self.name!r} is not closed yet")
        return self

    def wait_until_gone(self, wait_s: float = 60.0) -> None:
        """Wait until a channel that is being deleted is gone. Raises SluicewayTimeout."""
        deadline_s = time.monotonic() + wait_s
        try:
            while True:
                self._await_change(deadline_s, f"the channel {self.name!r} is still there")
        except ChannelNotFound:
            return
        except Conflict as error:
            # Gone, and its name is taken again.
            if error.code != "uid_mismatch":
                raise
