"""Channel: a named, typed, partitioned stream of records."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Self

from sluiceway import offsets
from sluiceway.channel_state import ChannelFacts
from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.endpoint.heartbeat import HeartbeatSession
from sluiceway.endpoint.stop_condition import OnLostWriter
from sluiceway.endpoint.waiting import Meeting, WaitedState
from sluiceway.errors import ChannelNotFound, Conflict, OptionError
from sluiceway.group_reader import OnPartitions, maker
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.partitioner import Key, Partitioner
from sluiceway.reader import ChannelReader
from sluiceway.rest.channels import Access, Control
from sluiceway.rest.endpoint_models import Endpoint, Membership, Mode, Position, Role, membership
from sluiceway.rest.endpoints import EndpointCalls
from sluiceway.rest.models import ChannelResource, Connection, Heartbeat, Retention, SchemaVersion
from sluiceway.schema import Schema
from sluiceway.writer import ChannelWriter


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


class ChannelCompany(ChannelLife):
    """A channel with its writers and readers."""

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Ask for all writers and readers, the latest instance of each place."""
        return self._meeting().endpoints()

    def wait_for(
        self,
        *,
        writers: int = 0,
        readers: int = 0,
        state: WaitedState = "opened",
        timeout_s: float = 60.0,
    ) -> tuple[Endpoint, ...]:
        """Return the endpoints once so many writers and readers have come to `state`.

        "opened" waits until they have come at all, "started" until they work, "closed" until
        they, and all others of their role, have finished. Raises SluicewayTimeout, which says who
        is missing.
        """
        return self._meeting().wait_for(
            writers=writers, readers=readers, state=state, timeout_s=timeout_s
        )

    def wait_until(
        self,
        absent: Callable[[Sequence[Endpoint]], list[str]],
        *,
        timeout_s: float = 60.0,
        every_s: float = 20.0,
    ) -> tuple[Endpoint, ...]:
        """Return the endpoints once `absent`, which is given them, names nobody any more.

        `absent` is called when an endpoint changes, and every `every_s`, 20 s at most. Raises
        SluicewayTimeout with the names.
        """
        return self._meeting().wait_until(absent, timeout_s=timeout_s, every_s=every_s)

    def dismiss(self, *endpoint_ids: str) -> None:
        """Take endpoints away: they count no more, and what they ask is refused as fenced.

        Readers take a writer that failed, or was lost, for one that finished, with all that is in
        the channel now; so they read what it wrote, and raise no WriterFailed or WriterLost for
        it: `channel.dismiss(*error.endpoints)`. Repeated, it changes nothing. Needs the scope
        `manage`. Raises Conflict for an id that is none of the channel's, and GatewayUnavailable,
        also while Kafka does not tell where the writer's records end.
        """
        for each in endpoint_ids:
            self._control.endpoints.remove(self.name, each, uid=self.uid)

    def _meeting(self) -> Meeting:
        return Meeting(self._control.endpoints, self.name)


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
        self._calls.reset(self._channel, group, body, positions=places)


_SHORTEST, _LONGEST = timedelta(minutes=1), timedelta(days=3650)


def checked_idle(idle: timedelta) -> timedelta | None:
    """Return what a channel has that may be idle for so long: None for 0. Raises OptionError."""
    if not isinstance(idle, timedelta) or not (
        idle == timedelta(0) or _SHORTEST <= idle <= _LONGEST
    ):
        raise OptionError(
            f"idle is {idle!r}; it takes a timedelta from a minute to ten years, or 0 for never"
        )
    return idle or None


def idle_ms(idle: timedelta | None) -> int | None:
    """Return it in milliseconds, None for never. Raises OptionError."""
    checked = None if idle is None else checked_idle(idle)
    return None if checked is None else checked // timedelta(milliseconds=1)


class Channel(ChannelCompany):
    """One incarnation of a channel; made by `Gateway.channel` and `Gateway.channels`.

    Its properties are those of the last answer; `refresh()` asks again. When the channel was
    deleted, and also when another one has its name now, calls raise ChannelNotFound or Conflict.
    """

    def __init__(
        self, control: Control, resource: ChannelResource, schema: Schema | None = None
    ) -> None:
        """Hold the channel; `schema` is what writers and readers use, None the newest."""
        super().__init__(control, resource)
        self._schema = schema

    @property
    def schema(self) -> Schema:
        """The schema that writers and readers use: the one given, else the channel's newest."""
        return self._schema or Schema.parse(self._resource.schema_definition)

    def schemas(self) -> tuple[SchemaVersion, ...]:
        """Ask for all schemas that the channel's records may have, the oldest first."""
        return self._control.schemas(self.name)

    def connection(self, access: Access) -> Connection:
        """Return what `read` or `write` access takes; a value that other processes can use.

        Raises ChannelClosed for `write` where the channel is closed, SchemaMismatch where it was
        opened with a schema that does not go with it.
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
        config: Mapping[str, object] | None = None,
    ) -> ChannelWriter:
        """Open a writer; ChannelWriter says what the other arguments mean.

        With a group, the writer has the place `index` of `size` in it (0 of 1 where both are left
        out), and an instance that is still there is superseded. A job that may be started again
        needs that, as nobody takes the place of a writer without a group.
        """
        member = membership(group, index, size)
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
            attach=lambda: self._attach("writer", member, timeout_s, close_timeout_s),
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
        start: offsets.Start = "earliest",
        partitions: Sequence[int] | None = None,
        on_corrupt: Literal["raise", "skip"] = "raise",
        timeout_s: float = 30.0,
        close_timeout_s: float = 600.0,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        share_connection: bool = False,
        config: Mapping[str, object] | None = None,
    ) -> ChannelReader:
        """Open a reader; ChannelReader says what the other arguments mean.

        With a group, the reader has the place `index` of `size` in it (0 of 1 where both are left
        out), begins where its partitions were committed last, else at `start`, and supersedes an
        instance that is still there. In `shared` mode partition p belongs to the member
        p mod size, and a channel with fewer partitions than members gets more; in `broadcast`
        mode every member has all. Index 0 is closed last, and waits for it over `close_timeout_s`.
        With `dynamic` members come and go: SharingReader says how, and what `on_assign` and
        `on_revoke` are. Without a group and until="now" or None, it leaves no trace.
        """
        member = membership(group, index, size, mode, dynamic=dynamic)
        made = maker(dynamic=dynamic, on_assign=on_assign, on_revoke=on_revoke)
        config = MaskedProperties(config or {})
        if member is not None and partitions is not None:
            raise OptionError("partitions and group exclude each other: a group assigns them")
        if until == "finished" and self.adopted:
            raise OptionError(
                f"the topic of the channel {self.name!r} was there before it, so nobody knows all "
                "who write to it: give until='now' or until=None (never)"
            )
        seen = until == "finished" or member is not None
        attachment = self._attach("reader", member, timeout_s, close_timeout_s) if seen else None
        try:
            return made(
                self._readable(attachment),
                until=until,
                start=start,
                partitions=partitions,
                on_corrupt=on_corrupt,
                timeout_s=timeout_s,
                config=config,
                refresh=lambda: self._connection("read"),
                attachment=attachment,
                writers=writers,
                on_lost_writer=on_lost_writer,
                share_connection=share_connection,
            )
        except BaseException as error:
            if attachment is not None:
                attachment.fail(error)
            raise

    def committed(self, group: str, index: int | None = None) -> dict[int, Position]:
        """Ask for a group's committed positions; a broadcast group's are those of one member."""
        return self._groups().committed(group, index)

    def reset(
        self,
        group: str,
        positions: Mapping[int, Position | int] | None = None,
        *,
        reason: str,
        index: int | None = None,
        force: bool = False,
    ) -> None:
        """Put a group's committed positions elsewhere, or forget them, which is written down.

        Raises Conflict `members_open` while members live, unless `force`, which ends their commits.
        """
        self._groups().reset(group, positions, reason=reason, index=index, force=force)

    def resize(self, group: str, size: int) -> None:
        """Give a running group another size: its members are Fenced, its positions stay."""
        self._control.endpoints.resize(self.name, group, uid=self.uid, size=size)

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
        config: Mapping[str, str] | None = None,
        wait_s: float = 60.0,
    ) -> None:
        """Change what is given and wait until Kafka has it.

        `schema` becomes the channel's newest version, and what this object's writers and readers
        use; an older version's becomes the newest again. `labels` and `config` replace all that
        were there. `idle=timedelta(0)` lets the channel stay, used or not. Raises Conflict where
        the channel does not allow it (`schema_incompatible` lists each rule that is broken), and
        SluicewayTimeout, with the gateway's reason, when the change was taken but did not reach
        Kafka within `wait_s`.
        """
        wanted = None if schema is None else Schema.of(schema)
        given: dict[str, Any] = {
            "schema": None if wanted is None else wanted.definition,
            "compatibility": compatibility,
            "partitions": partitions,
            "pinned": pinned,
            "retention": None if retention is None else retention.to_json(),
            "heartbeat": None if heartbeat is None else heartbeat.to_json(),
            "mirrored": mirrored,
            "config": None if config is None else dict(config),
        }
        spec = {field: value for field, value in given.items() if value is not None}
        if idle is not None:
            spec["idle_ms"] = idle_ms(idle)
        self._take(self._control.update(self.name, uid=self.uid, spec=spec, labels=labels))
        self._schema = self._schema if wanted is None else wanted
        deadline_s = time.monotonic() + wait_s
        while self.status.observed_generation < self.generation:
            self._await_change(deadline_s, "the change is taken, but not in Kafka yet")

    def _readable(self, attachment: EndpointHandle | None) -> Connection:
        if attachment is None:
            return self.connection("read")
        connection = attachment.attached.connection
        return connection if self._schema is None else connection.for_reading(self._schema)

    def _attach(
        self, role: Role, member: Membership | None, timeout_s: float, close_timeout_s: float
    ) -> EndpointHandle:
        return EndpointHandle.open(
            HeartbeatSession.of(self._control.endpoints, grace_s=self._control.grace_s),
            channel=self.name,
            uid=self.uid,
            role=role,
            membership=member,
            timeout_s=timeout_s,
            close_timeout_s=close_timeout_s,
        )

    def _groups(self) -> Groups:
        topic = self.status.topic
        return Groups(self._control.endpoints, self.name, self.uid, topic_id=topic.id)

    def _connection(self, access: Access) -> Connection:
        connection = self._control.connection(self.name, access)
        if connection.channel_uid != self.uid:
            raise self._replaced(connection.channel_uid)
        return connection


__all__ = ["Channel", "ChannelCompany", "ChannelLife", "Groups", "checked_idle", "idle_ms"]
