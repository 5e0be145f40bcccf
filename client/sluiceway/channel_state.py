"""The state of a channel as of the gateway's last answer, and waiting for the next one."""

import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Self

from sluiceway.errors import ChannelNotReady, Conflict, SluicewayTimeout
from sluiceway.rest.channels import MIN_INTERVAL_S, Control, watch_status
from sluiceway.rest.models import ChannelResource, ChannelStatus, Heartbeat, Retention
from sluiceway.rest.status import StatusReport

__all__ = ["ChannelFacts"]


class ChannelFacts:
    """A channel as it was when the gateway was asked last."""

    def __init__(self, control: Control, resource: ChannelResource) -> None:
        self._control = control
        self._resource = resource

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._resource.name

    @property
    def uid(self) -> str:
        """The incarnation's uid, 32 hexadecimal digits."""
        return self._resource.uid

    @property
    def generation(self) -> int:
        """Counts the changes of spec and labels."""
        return self._resource.generation

    @property
    def created_at(self) -> datetime:
        """When the channel was made."""
        return self._resource.created_at

    @property
    def labels(self) -> Mapping[str, str]:
        """The channel's labels."""
        return self._resource.labels

    @property
    def format(self) -> str:
        """How records lie in messages: avro, arrow or bytes."""
        return self._resource.format

    @property
    def partitions(self) -> int:
        """The number of partitions that is wanted; the topic's own is in `status`."""
        return self._resource.partitions

    @property
    def pinned(self) -> bool:
        """Whether the number of partitions may never change."""
        return self._resource.pinned

    @property
    def replication(self) -> int | None:
        """The replication factor that is wanted; None: the broker's default."""
        return self._resource.replication

    @property
    def retention(self) -> Retention:
        """How long records are kept."""
        return self._resource.retention

    @property
    def heartbeat(self) -> Heartbeat:
        """Heartbeat interval of writers and readers, and the timeout after which one is lost."""
        return self._resource.heartbeat

    @property
    def mirrored(self) -> bool:
        """Whether its groups' positions are written to Kafka's own group offsets too."""
        return self._resource.mirrored

    @property
    def idle(self) -> timedelta | None:
        """How long nobody may use it before it is closed, and then removed; None: for ever."""
        return self._resource.idle

    @property
    def config(self) -> Mapping[str, str]:
        """Further topic settings, by Kafka's names."""
        return self._resource.config

    @property
    def compatibility(self) -> str:
        """The rule for new versions of the schema: none, backward, forward or full."""
        return self._resource.compatibility

    @property
    def adopted(self) -> bool:
        """Whether the topic was there before the channel, and is never deleted or changed."""
        return self._resource.adopted_topic is not None

    @property
    def status(self) -> ChannelStatus:
        """Phase, conditions and topic."""
        return self._resource.status

    def refresh(self) -> Self:
        """Ask the gateway again and return this channel."""
        self._take(self._control.channel(self.name))
        return self

    def report(self) -> StatusReport:
        """Ask who writes and reads the channel, how far each group is, and how it gets on.

        Who looks leaves no trace. Raises Conflict for another incarnation of the channel.
        """
        found = self._control.status(self.name)
        assert found is not None  # noqa: S101 - no state was named that it could be in still
        if found.uid != self.uid:
            raise self._replaced(found.uid)
        return found

    def watch(self, *, every_s: float = MIN_INTERVAL_S) -> Iterator[StatusReport]:
        """Give what `report` gives: now, and whenever it is another, at most every `every_s`.

        There is no end to it but ChannelNotFound, when the channel is gone; who watches leaves no
        trace, and stops by leaving the loop. Raises Conflict for another incarnation of the
        channel, GatewayUnavailable when the gateway does not answer in time: watch again then.
        """
        for found in watch_status(self._control, self.name, every_s=every_s, sleep=time.sleep):
            if found.uid != self.uid:
                raise self._replaced(found.uid)
            yield found

    def wait_until_ready(self, wait_s: float = 60.0) -> Self:
        """Wait until the channel can be used, if it closes for reading alone; return it.

        Raises ChannelNotReady for a channel that failed or is being deleted, SluicewayTimeout
        after `wait_s`; both say what the gateway gave as the reason.
        """
        deadline_s = time.monotonic() + wait_s
        while self.status.phase not in ("ready", "closing", "closed"):
            if self.status.phase != "provisioning":
                raise ChannelNotReady(
                    f"the channel {self.name!r} is {self.status.phase}: {self.status.explain()}",
                    retriable=False,
                )
            self._await_change(deadline_s, f"the channel {self.name!r} is not ready")
        return self

    def __repr__(self) -> str:
        return f"<Channel {self.name!r} {self.uid[:8]} {self.format} {self.status.phase}>"

    def _await_change(self, deadline_s: float, what: str) -> None:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise SluicewayTimeout(f"{what}: {self.status.explain()}")
        self._take(self._control.wait_for_change(self._resource, min(left_s, 20.0)))

    def _take(self, resource: ChannelResource) -> None:
        if resource.uid != self.uid:
            raise self._replaced(resource.uid)
        self._resource = resource

    def _replaced(self, uid: str) -> Conflict:
        return Conflict(
            f"the channel {self.name!r} was deleted and made anew: this one was {self.uid}, that "
            f"name is {uid} now. Open it again with gateway.channel({self.name!r})",
            code="uid_mismatch",
        )
