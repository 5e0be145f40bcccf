"""A channel as a client holds it."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from sluiceway import choice, extent
from sluiceway.control import Access, Control
from sluiceway.errors import ChannelNotFound, ChannelNotReady, Conflict, SluicewayTimeout
from sluiceway.kafka.masked import MaskedProperties
from sluiceway.partitioning import Key, Partitioner
from sluiceway.protocol import (
    ChannelResource,
    ChannelStatus,
    Connection,
    Retention,
    SchemaVersion,
)
from sluiceway.reader import ChannelReader
from sluiceway.schema import Schema
from sluiceway.writer import ChannelWriter

__all__ = ["Channel"]


class Channel:
    """One incarnation of a channel; made by `Gateway.channel` and `Gateway.channels`.

    Its properties are those of the last answer; `refresh()` asks again. When the channel was
    deleted, and also when another one has its name now, calls raise ChannelNotFound or Conflict.
    """

    def __init__(
        self, control: Control, resource: ChannelResource, schema: Schema | None = None
    ) -> None:
        """Hold the channel; `schema` is what writers and readers use, None the newest."""
        self._control = control
        self._resource = resource
        self._schema = schema

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

    @property
    def schema(self) -> Schema:
        """The schema that writers and readers use: the one given, else the channel's newest."""
        return self._schema or Schema.parse(self._resource.schema_definition)

    def schemas(self) -> tuple[SchemaVersion, ...]:
        """Ask for all schemas that the channel's records may have, the oldest first."""
        return self._control.schemas(self.name)

    def refresh(self) -> "Channel":
        """Ask the gateway again and return this channel."""
        self._take(self._control.channel(self.name))
        return self

    def connection(self, access: Access) -> Connection:
        """Return what `read` or `write` access takes; a value that other processes can use.

        Raises ChannelClosed for `write` where the channel is closed, SchemaMismatch where it was
        opened with a schema that does not go with it.
        """
        connection = self._connection(access)
        if self._schema is None:
            return connection
        used = choice.to_write if access == "write" else choice.to_read
        return used(connection, self._schema)

    def _connection(self, access: Access) -> Connection:
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
        config = MaskedProperties(config or {})
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
        config = MaskedProperties(config or {})
        return ChannelReader(
            self.connection("read"),
            until=until,
            start=start,
            partitions=partitions,
            on_corrupt=on_corrupt,
            timeout_s=timeout_s,
            config=config,
            refresh=lambda: self._connection("read"),
        )

    def update(
        self,
        *,
        schema: object = None,
        compatibility: str | None = None,
        partitions: int | None = None,
        pinned: bool | None = None,
        labels: Mapping[str, str] | None = None,
        retention: Retention | None = None,
        config: Mapping[str, str] | None = None,
        wait_s: float = 60.0,
    ) -> None:
        """Change what is given and wait until Kafka has it.

        `schema` becomes the channel's newest version, and what this object's writers and readers
        use; an older version's becomes the newest again. `labels` and `config` replace all that
        were there. Raises Conflict where the channel does not allow it (`schema_incompatible`
        lists each rule that is broken), and SluicewayTimeout, with the gateway's reason, when the
        change was taken but did not reach Kafka within `wait_s`.
        """
        wanted = None if schema is None else Schema.of(schema)
        given: dict[str, Any] = {
            "schema": None if wanted is None else wanted.definition,
            "compatibility": compatibility,
            "partitions": partitions,
            "pinned": pinned,
            "retention": None if retention is None else retention.to_json(),
            "config": None if config is None else dict(config),
        }
        spec = {field: value for field, value in given.items() if value is not None}
        self._take(self._control.update(self.name, uid=self.uid, spec=spec, labels=labels))
        self._schema = self._schema if wanted is None else wanted
        deadline_s = time.monotonic() + wait_s
        while self.status.observed_generation < self.generation:
            self._await_change(deadline_s, "the change is taken, but not in Kafka yet")

    def wait_until_ready(self, wait_s: float = 60.0) -> "Channel":
        """Wait until the channel can be used, a closed one for reading alone; return it.

        Raises ChannelNotReady for a channel that failed or is being deleted, SluicewayTimeout
        after `wait_s`; both say what the gateway gave as the reason.
        """
        deadline_s = time.monotonic() + wait_s
        while self.status.phase not in ("ready", "closed"):
            if self.status.phase != "provisioning":
                raise ChannelNotReady(
                    f"the channel {self.name!r} is {self.status.phase}: {self.status.explain()}",
                    retriable=False,
                )
            self._await_change(deadline_s, f"the channel {self.name!r} is not ready")
        return self

    def close(self) -> None:
        """Let nobody open a writer any more; the records stay readable. There is no way back.

        Raises Conflict for another incarnation of the channel, ChannelNotReady for one that has
        no topic.
        """
        self._take(self._control.close_channel(self.name, uid=self.uid))

    def delete(self, *, keep_topic: bool = False, wait_s: float = 60.0) -> None:
        """Delete the channel and, unless `keep_topic`, its topic with all records.

        A topic that was adopted always stays.

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
