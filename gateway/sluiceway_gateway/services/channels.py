"""What can be done with channels. Each call is one transaction, committed before it returns."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from sluiceway_gateway.domain.change import UNSET, Change, changed, created, deleted
from sluiceway_gateway.domain.channel import Channel, Phase, SchemaVersion, sources
from sluiceway_gateway.domain.errors import (
    ChannelNotFound,
    ChannelNotReady,
    ConcurrentChange,
    InvalidRequest,
    KafkaUnavailable,
    ReplicationExceedsBrokers,
    UidMismatch,
    Violation,
)
from sluiceway_gateway.domain.etag import Precondition
from sluiceway_gateway.domain.request import Answer, Request
from sluiceway_gateway.domain.selector import Selector
from sluiceway_gateway.services.clock import Clock, system_clock
from sluiceway_gateway.services.ports import Cluster
from sluiceway_gateway.services.schemas import ParsedSchema
from sluiceway_gateway.store import channels, requests, schemas
from sluiceway_gateway.store.engine import Database, WriteTransaction

Render = Callable[[Channel, bool], Answer]
"""Makes the answer of a channel, given whether it was just created."""

_SETTLED = frozenset(Phase) - {Phase.DELETING}


@dataclass(frozen=True, kw_only=True)
class Page:
    """A part of a list; `following` is the name to go on after, None at the end."""

    channels: tuple[Channel, ...]
    following: str | None


class Channels:
    """The channels of one database."""

    def __init__(
        self,
        database: Database,
        cluster: Cluster,
        *,
        topic_prefix: str,
        kafka_timeout_s: float,
        wake: Callable[[], None],
        clock: Clock = system_clock,
    ) -> None:
        """`wake` is called after each commit that changed a channel."""
        self._database = database
        self._cluster = cluster
        self._topic_prefix = topic_prefix
        self._kafka_timeout_s = kafka_timeout_s
        self._wake = wake
        self._clock = clock

    def put(
        self,
        name: str,
        change: Change,
        *,
        schema: ParsedSchema | None,
        uid: str | None,
        precondition: Precondition,
        request: Request | None,
        render: Render,
    ) -> Answer:
        """Create the channel or change it; repeated, it changes nothing.

        With `uid` it is that incarnation or an error. A `request` that was
        answered before gets that answer. Raises the Conflict, PreconditionFailed,
        ChannelNotFound or InvalidRequest that stands against it.
        """
        self._check_replication(name, change, request)

        def act(tx: WriteTransaction) -> tuple[Channel, bool]:
            channel = channels.hold(tx, name)
            if channel is None and uid is None:
                precondition.check(None)
                channel = self._create(tx, name, change, schema)
                if channel is not None:
                    return channel, True
                # Somebody else took the name in this moment.
                channel = channels.hold(tx, name)
            channel = _incarnation(name, channel, uid)
            precondition.check(channel)
            return self._save(tx, channel, changed(channel, change)), False

        return self._once(request, act, render)

    def delete(
        self,
        name: str,
        *,
        uid: str,
        keep_topic: bool,
        precondition: Precondition,
        request: Request | None,
        render: Render,
    ) -> Answer:
        """Send this incarnation of the channel on its way out; repeated, it changes nothing."""

        def act(tx: WriteTransaction) -> tuple[Channel, bool]:
            channel = _incarnation(name, channels.hold(tx, name), uid)
            precondition.check(channel)
            following = deleted(channel, keep_topic=keep_topic, now=self._clock())
            return self._save(tx, channel, following), False

        return self._once(request, act, render)

    def get(self, name: str) -> Channel:
        """Return the channel; raises ChannelNotFound."""
        with self._database.read() as tx:
            return _incarnation(name, channels.find(tx, name), None)

    def ready(self, name: str) -> Channel:
        """Return the channel if it can be used now; raises ChannelNotReady saying why not."""
        channel = self.get(name)
        if channel.phase is not Phase.READY:
            condition = channel.condition("Ready")
            why = f": {condition.message}" if condition is not None else "."
            raise ChannelNotReady(f"The channel {name!r} is {channel.phase}{why}")
        return channel

    def versions(self, channel: Channel) -> tuple[SchemaVersion, ...]:
        """Return all schemas that the channel keeps, the oldest first."""
        with self._database.read() as tx:
            return schemas.versions(tx, channel.uid)

    def page(
        self, *, limit: int, after: str, selector: Selector | None, prefixes: tuple[str, ...]
    ) -> Page:
        """Return channels by name, those whose names begin with one of `prefixes`."""
        with self._database.read() as tx:
            found = channels.page(
                tx, limit=limit + 1, after=after, selector=selector, prefixes=prefixes
            )
        more = len(found) > limit
        return Page(
            channels=tuple(found[:limit]), following=found[limit - 1].name if more else None
        )

    def count_by_phase(self) -> dict[Phase, int]:
        """Return how many channels are in each phase."""
        with self._database.read() as tx:
            return channels.count_by_phase(tx)

    def _once(
        self,
        request: Request | None,
        act: Callable[[WriteTransaction], tuple[Channel, bool]],
        render: Render,
    ) -> Answer:
        """Act and keep the answer in one transaction, or give the answer that is kept."""
        with self._database.write() as tx:
            if request is not None:
                kept = requests.claim(tx, request, self._clock())
                if kept is not None:
                    return kept
            answer = render(*act(tx))
            if request is not None:
                requests.settle(tx, request, answer)
        self._wake()
        return answer

    def _create(
        self, tx: WriteTransaction, name: str, change: Change, schema: ParsedSchema | None
    ) -> Channel | None:
        """Add the channel; None if the name was taken meanwhile."""
        if schema is None:
            raise InvalidRequest(
                f"There is no channel {name!r}, and making one needs a schema: give spec.schema.",
                (Violation(pointer="/spec/schema", message="needed to make a channel"),),
            )
        now = self._clock()
        schema_id = schemas.register(
            tx, fingerprint=schema.fingerprint, definition=schema.canonical, now=now
        )
        channel = created(
            change,
            name=name,
            uid=uuid.uuid4().hex,
            schema=schema.canonical,
            schema_id=schema_id,
            prefix=self._topic_prefix,
            now=now,
        )
        if not channels.insert(tx, channel):
            return None
        first = SchemaVersion(id=schema_id, version=1, definition=schema.canonical, created_at=now)
        schemas.assign(tx, channel_uid=channel.uid, version=first)
        return channel

    def _save(self, tx: WriteTransaction, was: Channel, channel: Channel) -> Channel:
        if channel is was:
            return channel
        phases = sources(Phase.DELETING) if channel.phase is Phase.DELETING else _SETTLED
        if not channels.save(tx, channel, was=was, from_phases=phases):
            raise ConcurrentChange(
                f"The channel {was.name!r} was changed at the same time; send the request again."
            )
        return channel

    def _check_replication(self, name: str, change: Change, request: Request | None) -> None:
        """Refuse more replicas than there are brokers; without Kafka's answer, let it pass.

        Kafka has the last word when the topic is made; this spares people the wait.
        """
        if change.replication is UNSET or change.replication is None or change.replication == 1:
            return
        with self._database.read() as tx:
            settled = channels.find(tx, name) is not None or (
                request is not None and requests.known(tx, request)
            )
        if settled:
            return
        try:
            brokers = len(self._cluster.describe_cluster(self._kafka_timeout_s).brokers)
        except KafkaUnavailable:
            return
        if change.replication > brokers:
            raise ReplicationExceedsBrokers(
                f"{change.replication} replicas need as many brokers, and Kafka has {brokers}: "
                f"ask for at most {brokers}, or leave spec.replication out."
            )


def _incarnation(name: str, channel: Channel | None, uid: str | None) -> Channel:
    """Return the channel if it is there and is the one of this uid."""
    if channel is None:
        which = "" if uid is None else f" of the uid {uid}"
        raise ChannelNotFound(f"There is no channel {name!r}{which}.")
    if uid is not None and channel.uid != uid:
        raise UidMismatch(
            f"The channel {name!r} is now the one of the uid {channel.uid}, not {uid}: the one "
            "you mean was deleted, and this one made later. Open it again by its name."
        )
    return channel
