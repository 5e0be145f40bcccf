"""A channel as a client holds it."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from sluiceway import extent
from sluiceway.control import Access, Control
from sluiceway.errors import ChannelNotFound, ChannelNotReady, Conflict, SluicewayTimeout
from sluiceway.partitioning import Key, Partitioner
from sluiceway.protocol import ChannelResource, ChannelStatus, Connection, Retention
from sluiceway.reader import ChannelReader
from sluiceway.schema import Schema
from sluiceway.writer import ChannelWriter

__all__ = ["Channel"]


class Channel:
    """One incarnation of a channel; made by `Gateway.channel` and `Gateway.channels`.

    Its properties are those of the last answer; `refresh()` asks again. When the channel was
    deleted, and also when another one has its name now, calls raise ChannelNotFound or Conflict.
    """

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
        """How records lie in messages: avro or arrow."""
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
    def config(self) -> Mapping[str, str]:
        """Further topic settings, by Kafka's names."""
        return self._resource.config

    @property
    def status(self) -> ChannelStatus:
        """Phase, conditions and topic."""
        return self._resource.status

    @cached_property
    def schema(self) -> Schema:
        """The channel's schema."""
        return Schema.parse(self._resource.schema_definition)

    def refresh(self) -> "Channel":
        """Ask the gateway again and return this channel."""
        self._take(self._control.channel(self.name))
        return self

    def connection(self, access: Access) -> Connection:
        """Return what `read` or `write` access takes; a value that other processes can use."""
        connection = self._control.connection(self.name, access)
        if connection.channel_uid != self.uid:
            raise self._replaced(connection.channel_uid)
        return connection

    def writer(
        self,
        *,
        key: Key | None = None,
        partitioner: Partitioner | None = None,
        partition: int | None = None,
        batch_records: int = 8192,
        delivery_timeout_s: float = 120.0,
        timeout_s: float = 30.0,
        config: Mapping[str, object] | None = None,
    ) -> ChannelWriter:
        """Open a writer; ChannelWriter says what the arguments mean."""
        return ChannelWriter(
            self.connection("write"),
            key=key,
            partitioner=partitioner,
            partition=partition,
            batch_records=batch_records,
            delivery_timeout_s=delivery_timeout_s,
            timeout_s=timeout_s,
            config=config,
        )

    def reader(
        self,
        *,
        until: extent.Until,
        start: extent.Start = "earliest",
        partitions: Sequence[int] | None = None,
        on_corrupt: Literal["raise", "skip"] = "raise",
        timeout_s: float = 30.0,
        config: Mapping[str, object] | None = None,
    ) -> ChannelReader:
        """Open a reader; ChannelReader says what the arguments mean."""
        return ChannelReader(
            self.connection("read"),
            until=until,
            start=start,
            partitions=partitions,
            on_corrupt=on_corrupt,
            timeout_s=timeout_s,
            config=config,
            refresh=lambda: self.connection("read"),
        )

    def update(
        self,
        *,
        partitions: int | None = None,
        labels: Mapping[str, str] | None = None,
        retention: Retention | None = None,
        config: Mapping[str, str] | None = None,
        wait_s: float = 60.0,
    ) -> None:
        """Change what is given and wait until Kafka has it.

        `labels` and `config` replace all that were there. Raises Conflict where the channel does
        not allow it, and SluicewayTimeout, with the gateway's reason, when the change was taken
        but did not reach Kafka within `wait_s`.
        """
        spec: dict[str, Any] = {}
        if partitions is not None:
            spec["partitions"] = partitions
        if retention is not None:
            spec["retention"] = retention.to_json()
        if config is not None:
            spec["config"] = dict(config)
        self._take(self._control.update(self.name, uid=self.uid, spec=spec, labels=labels))
        deadline_s = time.monotonic() + wait_s
        while self.status.observed_generation < self.generation:
            self._await_change(deadline_s, "the change is taken, but not in Kafka yet")

    def wait_until_ready(self, wait_s: float = 60.0) -> "Channel":
        """Wait until the channel can be written to and read from; return it.

        Raises ChannelNotReady for a channel that failed or is being deleted, SluicewayTimeout
        after `wait_s`; both say what the gateway gave as the reason.
        """
        deadline_s = time.monotonic() + wait_s
        while self.status.phase != "ready":
            if self.status.phase != "provisioning":
                raise ChannelNotReady(
                    f"the channel {self.name!r} is {self.status.phase}: {self.status.explain()}",
                    retriable=False,
                )
            self._await_change(deadline_s, f"the channel {self.name!r} is not ready")
        return self

    def delete(self, *, keep_topic: bool = False, wait_s: float = 60.0) -> None:
        """Delete the channel and, unless `keep_topic`, its topic with all records.

        Returns when it is gone. Raises SluicewayTimeout, with the gateway's reason, when that
        takes longer than `wait_s`; the gateway goes on with it.
        """
        deadline_s = time.monotonic() + wait_s
        try:
            self._take(self._control.delete(self.name, uid=self.uid, keep_topic=keep_topic))
        except ChannelNotFound:
            return
        self.wait_until_gone(deadline_s - time.monotonic())

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
