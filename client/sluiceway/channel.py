"""Channel: a named, typed, partitioned stream of records."""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, Literal, Self, TypeVar

from sluiceway import offsets
from sluiceway.api.channels import (
    MIN_INTERVAL_S,
    Access,
    Control,
    watch_status,
)
from sluiceway.api.endpoints import Endpoint, OffsetsImport, Position, Role
from sluiceway.api.groups import Membership, Mode, membership
from sluiceway.api.ledger import CommitPage
from sluiceway.api.models import (
    ChannelResource,
    ChannelSpec,
    ChannelStatus,
    Connection,
    Heartbeat,
    Retention,
    SchemaVersion,
)
from sluiceway.api.schema_registry import SchemaRegistry
from sluiceway.api.status import StatusReport
from sluiceway.endpoint.attached import AttachedEndpoint
from sluiceway.endpoint.stop_condition import OnLostWriter
from sluiceway.endpoint.waiting import WaitedState, missing_endpoints, wait_for_endpoints
from sluiceway.errors import (
    ChannelNotFound,
    ChannelNotReady,
    Conflict,
    OptionError,
    SluicewayTimeout,
)
from sluiceway.group_reader import DynamicGroupReader, OnPartitions
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.partitioner import Key, Partitioner
from sluiceway.ledger.visibility import visibility_of
from sluiceway.reader import ChannelReader, R
from sluiceway.schema import Schema
from sluiceway.schema.compatibility import possible_renames
from sluiceway.writer import ChannelWriter

__all__ = ["Channel"]

T = TypeVar("T")

_MAX_WAIT_S = 20.0


class ResourceField(Generic[T]):
    """A read-only attribute: a field of the channel's resource, as of the last response."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, channel: "Channel | None", owner: type) -> T:
        if channel is None:
            return self  # type: ignore[return-value]
        value: T = getattr(channel._resource, self._name)  # noqa: SLF001
        return value

    def __set__(self, channel: object, value: object) -> None:
        raise AttributeError(f"{self._name} is read-only; use the channel's update()")


class Channel:
    """One incarnation of a channel; opened by `Gateway.channel` and `Gateway.channels`.

    Its properties are as of the last response; `refresh()` requests them again. After the channel
    was deleted, calls raise ChannelNotFound, or Conflict if another channel has its name now.
    """

    def __init__(
        self, control: Control, resource: ChannelResource, schema: Schema | None = None
    ) -> None:
        """Wrap a channel's resource; writers and readers use `schema`, by default the newest."""
        self._control = control
        self._resource = resource
        self._schema = schema

    name = ResourceField[str]("The channel's name.")
    uid = ResourceField[str]("The incarnation's uid, 32 hexadecimal digits.")
    generation = ResourceField[int]("The number of changes of spec and labels.")
    created_at = ResourceField[datetime]("When the channel was created.")
    labels = ResourceField[Mapping[str, str]]("The channel's labels.")
    format = ResourceField[str]("The format of messages: avro, arrow, json, protobuf or bytes.")
    partitions = ResourceField[int]("The desired partitions; the topic's are in `status`.")
    pinned = ResourceField[bool]("Whether the number of partitions may never change.")
    max_partitions = ResourceField[int | None](
        "The number up to which a group that attaches may grow it without manage; None: never."
    )
    replication = ResourceField[int | None]("The desired replication; None: the broker's default.")
    retention = ResourceField[Retention]("How long records are kept.")
    heartbeat = ResourceField[Heartbeat]("The heartbeat interval and timeout of endpoints.")
    mirrored = ResourceField[bool]("Whether positions are also written to Kafka's group offsets.")
    delivery = ResourceField[str]("The guarantee for records: at_least_once or exactly_once.")
    partitioner = ResourceField[str](
        "The rule for the partitions of keys: murmur2, consistent_random or fnv1a."
    )
    idle = ResourceField[timedelta | None](
        "The time without use after which it is closed, and then deleted; None: never."
    )
    config = ResourceField[Mapping[str, str]]("Further topic settings, by Kafka's names.")
    compatibility = ResourceField[str]("The rule for new schemas: none, backward, forward, full.")
    status = ResourceField[ChannelStatus]("Phase, conditions and topic.")

    @property
    def adopted(self) -> bool:
        """Whether the topic existed before the channel, and is never deleted or changed."""
        return self._resource.adopted_topic is not None

    @property
    def compacted(self) -> bool:
        """Whether Kafka keeps the last record of each key, so that keys can be deleted."""
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def schema(self) -> Schema:
        """The schema that writers and readers use: the given one, else the channel's newest."""
        return self._schema or Schema.parse(self._resource.schema_definition)

    def schemas(self) -> tuple[SchemaVersion, ...]:
        """Request all schemas that the channel's records may have, the oldest first."""
        return self._verified(self._control.schemas(self.name))

    def refresh(self) -> Self:
        """Request the channel's state again and return this channel."""
        self._update(self._control.channel(self.name))
        return self

    def report(self) -> StatusReport:
        """Request the channel's writers and readers, and each group's lag and progress.

        Does not attach to the channel. Raises Conflict for another incarnation of it.
        """
        return next(self.watch())

    def watch(self, *, every_s: float = MIN_INTERVAL_S) -> Iterator[StatusReport]:
        """Yield the current `report`, and each further one that differs, at most every `every_s`.

        Ends only with ChannelNotFound, when the channel is deleted. Does not attach to the
        channel. Raises Conflict for another incarnation of it, and GatewayUnavailable if the
        gateway does not answer in time; then call it again.
        """
        for report in watch_status(self._control, self.name, every_s=every_s, sleep=time.sleep):
            self._check_uid(report.uid)
            yield report

    def wait_until_ready(self, wait_s: float = 60.0) -> Self:
        """Wait until the channel is ready, or closing and thus readable; return it.

        Raises ChannelNotReady for a channel that failed or is being deleted, and SluicewayTimeout
        after `wait_s`; both have the gateway's reason.
        """

        def is_ready(resource: ChannelResource) -> bool:
            phase = resource.status.phase
            if phase not in ("provisioning", "ready", "closing", "closed"):
                raise ChannelNotReady(
                    f"the channel {resource.name!r} is {phase}: {resource.status.explain()}",
                    retriable=False,
                )
            return phase != "provisioning"

        self._wait_until(is_ready, wait_s, f"the channel {self.name!r} is not ready")
        return self

    def close(self, *, force: bool = False, wait_s: float | None = None) -> None:
        """Refuse new writers; records stay readable. A closed channel cannot be opened again.

        Attached writers are requested to finish, and readers continue: the channel is `closing`
        until every writer has ended or is lost, and every group has committed everything. Returns
        at once; with `wait_s` waits for the end, or raises SluicewayTimeout that names what is
        missing. `force` closes the channel regardless of attached endpoints.

        Raises Conflict for another incarnation, and ChannelNotReady for a channel without a topic.
        """
        self._update(self._control.close_channel(self.name, uid=self.uid, force=force))
        if wait_s is not None:
            self.wait_until_closed(wait_s)

    def delete(
        self, *, keep_topic: bool = False, force: bool = False, wait_s: float = 60.0
    ) -> None:
        """Delete the channel and, unless `keep_topic`, its topic with all records.

        An adopted topic always stays. Without `force`, raises Conflict `endpoints_live` while
        writers or readers are attached; if the topic is to be deleted, Conflict `unread_data`
        unless all groups have committed all of it, and GatewayUnavailable if Kafka does not
        answer. With `force`, attached endpoints get EndpointClosed or TopicGone.

        Returns when the channel is gone. Raises SluicewayTimeout, with the gateway's reason,
        after `wait_s`; the gateway continues to delete it.
        """
        deadline_s = time.monotonic() + wait_s
        try:
            self._update(
                self._control.delete(self.name, uid=self.uid, keep_topic=keep_topic, force=force)
            )
        except ChannelNotFound:
            return
        self.wait_until_gone(deadline_s - time.monotonic())

    def wait_until_closed(self, wait_s: float = 60.0) -> Self:
        """Wait until everything in a closing channel is written and read; return it.

        Raises SluicewayTimeout that names what is missing, and ChannelNotFound if it was deleted.
        """
        unfinished = f"the channel {self.name!r} is not closed yet"
        self._wait_until(lambda resource: resource.status.phase == "closed", wait_s, unfinished)
        return self

    def wait_until_gone(self, wait_s: float = 60.0) -> None:
        """Wait until a channel that is being deleted is gone. Raises SluicewayTimeout."""
        unfinished = f"the channel {self.name!r} still exists"
        try:
            self._wait_until(lambda _: False, wait_s, unfinished)
        except ChannelNotFound:
            return
        except Conflict as error:
            # With a mismatch, it is gone, and another channel has its name.
            if error.code != "uid_mismatch":
                raise

    def update(
        self,
        *,
        schema: object = None,
        compatibility: str | None = None,
        partitions: int | None = None,
        pinned: bool | None = None,
        labels: Mapping[str, str] | None = None,
        retention: Retention | None = None,
        heartbeat: Heartbeat | None = None,
        mirrored: bool | None = None,
        idle: timedelta | None = None,
        max_partitions: int | None = None,
        config: Mapping[str, str] | None = None,
        wait_s: float = 60.0,
    ) -> None:
        """Change the given fields and wait until Kafka has the change.

        `schema` becomes the channel's newest version, also if it was an older one, and the schema
        of this object's writers and readers. `labels` and `config` replace all previous ones.
        `idle=timedelta(0)` removes the idle TTL, `max_partitions=0` this limit. Raises Conflict if
        the channel does not allow the change (`schema_incompatible` lists each broken rule), and
        SluicewayTimeout, with the gateway's reason, if an accepted change did not reach Kafka
        within `wait_s`. Warns of a new field that may be a renamed one, with the alias to add.
        """
        wanted = None if schema is None else Schema.of(schema)
        spec = ChannelSpec(
            schema=wanted,
            compatibility=compatibility,
            partitions=partitions,
            pinned=pinned,
            retention=retention,
            heartbeat=heartbeat,
            mirrored=mirrored,
            idle=idle,
            max_partitions=max_partitions,
            config=config,
        )
        before = self._resource.schema_definition
        self._update(self._control.update(self.name, uid=self.uid, spec=spec, labels=labels))
        if wanted is not None:
            self._schema = wanted
            for rename in possible_renames(wanted, Schema.parse(before)):
                warnings.warn(f"the channel {self.name!r}: {rename}", stacklevel=2)
        self._wait_until(
            lambda resource: resource.status.observed_generation >= resource.generation,
            wait_s,
            "the change is accepted, but not in Kafka yet",
        )

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Request all writers and readers, the latest instance of each place."""
        return self._verified(self._control.endpoints.endpoints(self.name)[0] or ())

    def wait_for(
        self,
        *,
        writers: int = 0,
        readers: int = 0,
        state: WaitedState = "opened",
        timeout_s: float = 60.0,
    ) -> tuple[Endpoint, ...]:
        """Return the endpoints once these numbers of writers and readers have reached `state`.

        "opened" waits until they have attached, "started" until they have moved a record, "closed"
        until these and all others of their role have finished. Raises SluicewayTimeout that names
        the missing ones.
        """
        return self.wait_until(
            lambda present: [
                *missing_endpoints(present, "writer", writers, state),
                *missing_endpoints(present, "reader", readers, state),
            ],
            timeout_s=timeout_s,
        )

    def wait_until(
        self,
        missing: Callable[[Sequence[Endpoint]], list[str]],
        *,
        timeout_s: float = 60.0,
        every_s: float = 20.0,
    ) -> tuple[Endpoint, ...]:
        """Return the endpoints once `missing(endpoints)` returns no names.

        `missing` is called when an endpoint changes, and at least every `every_s` or 20 s. Raises
        SluicewayTimeout with the names.
        """
        calls = self._control.endpoints
        return self._verified(
            wait_for_endpoints(calls, self.name, missing, timeout_s=timeout_s, every_s=every_s)
        )

    def dismiss(self, *endpoint_ids: str) -> None:
        """Remove endpoints: they are ignored, and their requests are refused as fenced.

        Readers treat a dismissed writer as finished at the channel's current end offsets. They
        read its records, and raise no WriterFailed or WriterLost for it:
        `channel.dismiss(*error.endpoints)`. May be repeated. Needs the scope `manage`. Raises
        Conflict for an id of another channel, and GatewayUnavailable, also while Kafka does not
        return the channel's end offsets.
        """
        for endpoint_id in endpoint_ids:
            self._control.endpoints.remove(self.name, endpoint_id, uid=self.uid)

    def committed(self, group: str, index: int | None = None) -> dict[int, Position]:
        """Request a group's committed positions; with `index` those of a broadcast member."""
        return self._verified(self._control.endpoints.committed(self.name, group, index=index))

    def reset(
        self,
        group: str,
        positions: Mapping[int, Position | int] | None = None,
        *,
        reason: str,
        index: int | None = None,
        force: bool = False,
    ) -> None:
        """Set a group's committed positions, or delete them (None), and record `reason`.

        Raises Conflict `members_open` while the group has live members. With `force`, their
        further commits are refused instead.
        """
        wanted = None if positions is None else {p: Position.of(at) for p, at in positions.items()}
        self._control.endpoints.reset(
            self.name,
            group,
            uid=self.uid,
            topic_id=self.status.topic.id,
            index=index,
            positions=wanted,
            reason=reason,
            force=force,
        )

    def plan_import(self, group: str, *, kafka_group: str | None = None) -> OffsetsImport:
        """Request what `import_offsets` would do, or why it is refused; changes nothing.

        Raises Conflict `topic_changed` if Kafka has another topic of this name by now.
        """
        return self._control.endpoints.plan_import(self.name, group, kafka_group=kafka_group)

    def import_offsets(self, group: str, *, kafka_group: str | None = None) -> OffsetsImport:
        """Store the committed offsets of a consumer group of Kafka as positions of the group.

        `kafka_group` is its name in Kafka, by default the same. Positions never move back, and a
        repeat changes nothing. Raises Conflict: `members_open` while the group has members in Kafka
        or here, `group_not_found` if Kafka has no offset of it in the channel's topic,
        `topic_changed` if its offsets are of another topic.
        """
        return self._control.endpoints.import_offsets(
            self.name, group, uid=self.uid, kafka_group=kafka_group
        )

    def resize(self, group: str, size: int) -> None:
        """Change the size of a running group: its members are Fenced, its positions stay."""
        self._control.endpoints.resize(self.name, group, uid=self.uid, size=size)

    def commits(self, *, limit: int = 100, before: int | None = None) -> CommitPage:
        """Request the latest commits and aborts of an exactly-once channel, and its open batches.

        `before` continues a list after the event of that number. Raises Conflict.
        """
        return self._control.ledger.commits(self.name, uid=self.uid, limit=limit, before=before)

    def connection(self, access: Access) -> Connection:
        """Return the connection for `read` or `write` access, for use in other processes.

        Raises ChannelClosed for `write` to a closed channel, SchemaMismatch if the schema with
        which the channel was opened does not fit.
        """
        connection = self._connection(access)
        if self._schema is None:
            return connection
        if access == "write":
            return connection.for_writing(self._schema)
        return connection.for_reading(self._schema)

    def writer(
        self,
        *,
        group: str | None = None,
        index: int | None = None,
        size: int | None = None,
        key: Key | None = None,
        partitioner: Partitioner | None = None,
        partition: int | None = None,
        batch_records: int = 8192,
        delivery_timeout_s: float = 120.0,
        timeout_s: float = 30.0,
        close_timeout_s: float = 600.0,
        commit_every_s: float = 5.0,
        patience_s: float | None = None,
        config: Mapping[str, object] | None = None,
    ) -> ChannelWriter:
        """Open a writer; see ChannelWriter for the other arguments.

        With a group, the writer has the place `index` of `size` in it (by default 0 of 1), and
        fences an instance that is still attached there. A restartable job needs a group, because
        a writer without one cannot be replaced.

        `patience_s` is its own heartbeat timeout: from 0.3 s to the channel's, the default.
        """
        member = membership(group, index, size)
        times = {"timeout_s": timeout_s, "close_timeout_s": close_timeout_s}
        config = MaskedProperties(config or {})
        return ChannelWriter(
            self.connection("write"),
            key=key,
            partitioner=partitioner,
            partition=partition,
            batch_records=batch_records,
            delivery_timeout_s=delivery_timeout_s,
            timeout_s=timeout_s,
            commit_every_s=commit_every_s,
            config=config,
            attach=lambda: self._attach("writer", member, patience_s=patience_s, **times),
        )

    def reader(
        self,
        *,
        group: str | None = None,
        index: int | None = None,
        size: int | None = None,
        mode: Mode = "shared",
        dynamic: bool = False,
        until: offsets.Until = "finished",
        writers: int = 1,
        on_lost_writer: OnLostWriter = "raise",
        open_timeout_s: float | None = None,
        start: offsets.Start = "earliest",
        partitions: Sequence[int] | None = None,
        on_corrupt: Literal["raise", "skip"] = "raise",
        timeout_s: float = 30.0,
        close_timeout_s: float = 600.0,
        patience_s: float | None = None,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        share_connection: bool = False,
        snapshot: int | datetime | None = None,
        as_: type[R] | None = None,
        deletes: bool = False,
        key: str | None = None,
        schema_registry: "str | os.PathLike[str] | SchemaRegistry | None" = None,
        config: Mapping[str, object] | None = None,
    ) -> ChannelReader[R]:
        """Open a reader; see ChannelReader for the other arguments.

        With a group, the reader has the place `index` of `size` in it (by default 0 of 1), starts
        at its partitions' committed positions, else at `start`, and fences an instance that is
        still attached there. In `shared` mode partition p belongs to the member p mod size, and a
        channel with fewer partitions than members grows; in `broadcast` mode every member has all
        partitions. Index 0 closes last, and waits for the others for `close_timeout_s`. A
        `dynamic` group has changing members; see DynamicGroupReader, also for `on_assign` and
        `on_revoke`. Without a group and with until="now" or None, the reader is not attached.

        `patience_s` is its own heartbeat timeout, as for a writer; after it, the other members of
        a dynamic group get its partitions. `snapshot` reads an exactly-once channel as of one
        commit, given by its number (see `commits`) or a time. With `as_`, records are instances of
        a class instead of dicts. `schema_registry` is for adopted topics of the format avro whose
        messages have ids of another registry: its URL, or a file with a JSON object of schemas by
        id; see SchemaRegistry.
        """
        member = membership(group, index, size, mode, dynamic=dynamic)
        config = MaskedProperties(config or {})
        if until == "finished" and snapshot is None and self.adopted:
            raise OptionError(
                f"the topic of the channel {self.name!r} existed before it, so its writers are "
                "unknown: give until='now' or until=None (never)"
            )
        registry = None
        if schema_registry is not None:
            registry = SchemaRegistry.open(schema_registry)
            registry.require_usable(self.name, self.format, adopted=self.adopted)
        kind: type[ChannelReader[R]] = ChannelReader
        callbacks: dict[str, Any] = {}
        if member is not None and member.dynamic:
            kind = DynamicGroupReader
            callbacks = {"on_assign": on_assign, "on_revoke": on_revoke}
        elif on_assign is not None or on_revoke is not None:
            raise OptionError("on_assign and on_revoke need a dynamic group: give dynamic=True")
        if member is not None and partitions is not None:
            raise OptionError("partitions and group exclude each other: a group assigns them")
        if snapshot is not None:
            until = _until_of_snapshot(until, member)
        handle = None
        if until == "finished" or member is not None:
            times = {"timeout_s": timeout_s, "close_timeout_s": close_timeout_s}
            handle = self._attach("reader", member, patience_s=patience_s, **times)
        elif patience_s is not None:
            raise OptionError(
                "patience_s needs an attached reader: give a group or until='finished'"
            )
        connect = partial(self._connection, "read")
        try:
            connection = connect() if handle is None else handle.attached.connection
            visibility = visibility_of(
                self._control.ledger,
                connection,
                grace_s=self._control.grace_s,
                snapshot=snapshot,
                present=handle is None and until == "now",
            )
            if handle is None and visibility and visibility.partitions > connection.partitions:
                # The channel has grown meanwhile.
                connection = connect()
            if self._schema is not None:
                connection = connection.for_reading(self._schema)
            return kind(
                connection,
                until=until,
                start=start,
                partitions=partitions,
                on_corrupt=on_corrupt,
                timeout_s=timeout_s,
                config=config,
                refresh=connect,
                handle=handle,
                writers=writers,
                on_lost_writer=on_lost_writer,
                open_timeout_s=open_timeout_s,
                share_connection=share_connection,
                visibility=visibility,
                as_=as_,
                deletes=deletes,
                key=key,
                schema_registry=registry,
                **callbacks,
            )
        except BaseException as error:
            if handle is not None:
                handle.fail(error)
            raise

    def __repr__(self) -> str:
        return f"<Channel {self.name!r} {self.uid[:8]} {self.format} {self.status.phase}>"

    def _attach(
        self, role: Role, member: Membership | None, *, timeout_s: float, **times: Any
    ) -> AttachedEndpoint:
        return AttachedEndpoint(
            self._control, channel=self.name, uid=self.uid, role=role, membership=member, **times
        ).attach(timeout_s)

    def _update(self, resource: ChannelResource) -> None:
        self._check_uid(resource.uid)
        self._resource = resource

    def _wait_until(
        self, done: Callable[[ChannelResource], bool], wait_s: float, unfinished: str
    ) -> None:
        """Wait until `done`. Raises SluicewayTimeout, whose message starts with `unfinished`."""
        deadline_s = time.monotonic() + wait_s
        while not done(self._resource):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise SluicewayTimeout(f"{unfinished}: {self.status.explain()}")
            self._update(self._control.wait_for_change(self._resource, min(left_s, _MAX_WAIT_S)))

    def _check_uid(self, uid: str) -> None:
        """Raise Conflict `uid_mismatch` for another incarnation."""
        if uid != self.uid:
            raise Conflict(
                f"the channel {self.name!r} was deleted and created again: its uid was {self.uid}, "
                f"and is {uid} now. Open it again with gateway.channel({self.name!r})",
                code="uid_mismatch",
            )

    def _verified(self, response: T) -> T:
        """Return a response after a check that it is not one of another incarnation."""
        self.refresh()
        return response

    def _connection(self, access: Access) -> Connection:
        connection = self._control.connection(self.name, access)
        self._check_uid(connection.channel_uid)
        return connection


def _until_of_snapshot(until: offsets.Until, member: Membership | None) -> offsets.Until:
    """Return the stop condition of a reader of a snapshot: the snapshot's end."""
    if member is not None:
        raise OptionError(
            "snapshot and group exclude each other: a snapshot is read from its start to its end, "
            "a group continues at its committed positions"
        )
    if until not in ("finished", "now"):
        raise OptionError(f"until is {until!r}, but a snapshot has its own end: omit until")
    return "now"
