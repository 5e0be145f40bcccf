"""Use cases of channels, one transaction per call."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sluiceway.schema import Schema
from sluiceway_gateway.channels import schema_store
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.audited_fields import fields_of, non_default_fields
from sluiceway_gateway.channels.change import changed, etag, require_changeable
from sluiceway_gateway.channels.create import Preflight, create
from sluiceway_gateway.channels.labels import Selector
from sluiceway_gateway.channels.model import (
    Channel,
    Delivery,
    KeyPartitioner,
    Phase,
    Spec,
    sources,
)
from sluiceway_gateway.channels.store import record_use
from sluiceway_gateway.channels.usage import UsageRecorder
from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction, AuditEntry
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db import idempotency
from sluiceway_gateway.core.db.engine import Database, ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.idempotency import Request, StoredResponse
from sluiceway_gateway.core.errors import (
    ChannelClosed,
    ChannelNotFound,
    ChannelNotReady,
    ClientOutdated,
    ConcurrentChange,
    NotFound,
    UidMismatch,
)
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.preconditions import Precondition
from sluiceway_gateway.schemas import store as schemas_store
from sluiceway_gateway.schemas.model import SchemaVersion
from sluiceway_gateway.schemas.service import schema_for, version_of

#: Feature of a client that commits batches and reads committed records only.
EXACTLY_ONCE = "exactly-once"
#: Feature of a client that hashes keys by the channel's partitioner.
PARTITIONERS = "partitioners"


def require_channel(name: str, channel: Channel | None, uid: str | None) -> Channel:
    """Return the channel; raises ChannelNotFound, and UidMismatch for another uid."""
    if channel is None:
        which = "" if uid is None else f" of the uid {uid}"
        raise ChannelNotFound(f"There is no channel {name!r}{which}.")
    if uid is not None and channel.uid != uid:
        raise UidMismatch(
            f"The channel {name!r} now has the uid {channel.uid}, not {uid}: it was deleted and "
            "recreated. Open it again by its name."
        )
    return channel


def find_channel(tx: ReadTransaction, name: str, uid: str | None = None) -> Channel:
    """Return the channel; raises ChannelNotFound, and UidMismatch for another uid."""
    return require_channel(name, channels_store.find(tx, name), uid)


def hold_channel(tx: WriteTransaction, name: str, uid: str) -> Channel:
    """Return the channel, locked until `tx` ends; raises ChannelNotFound and UidMismatch."""
    return require_channel(name, channels_store.hold(tx, name), uid)


def require_usable(channel: Channel, *, writes: bool) -> None:
    """Raise ChannelNotReady with the reason, or ChannelClosed for a writer."""
    ends = channel.phase in (Phase.CLOSING, Phase.CLOSED)
    if ends and writes:
        raise ChannelClosed(
            f"The channel {channel.name!r} is {channel.phase}: its records can be read, but new "
            "writers are refused. Write to another channel, or delete and recreate this one."
        )
    if channel.phase is Phase.DELETING:
        how = "without its topic" if channel.keep_topic else "with its topic"
        raise ChannelNotReady(
            f"The channel {channel.name!r} is being deleted, {how}: use another one, or create it "
            "again once it is gone."
        )
    condition = channel.condition("Ready")
    readable = ends and condition and condition.status == "True"
    if channel.phase is not Phase.READY and not readable:
        why = f": {condition.message}" if condition is not None else "."
        raise ChannelNotReady(f"The channel {channel.name!r} is {channel.phase}{why}")


def require_known(channel: Channel, features: Collection[str], *, writes: bool) -> None:
    """Raise ClientOutdated for a client that does not support the channel's delivery.

    Of a client that `writes`, also for its partitioner.
    """
    if channel.spec.delivery is Delivery.EXACTLY_ONCE and EXACTLY_ONCE not in features:
        raise ClientOutdated(
            f"The channel {channel.name!r} has the delivery exactly_once, which this client does "
            "not support: it would read uncommitted records, and its own records would stay "
            "invisible. Upgrade sluiceway in this program to this gateway's version."
        )
    partitioner = channel.spec.partitioner
    if writes and partitioner is not KeyPartitioner.MURMUR2 and PARTITIONERS not in features:
        raise ClientOutdated(
            f"The channel {channel.name!r} has the partitioner {partitioner}, which this client "
            "does not support: it would write keys to other partitions than other writers. Upgrade "
            "sluiceway in this program to this gateway's version."
        )


Render = Callable[[Channel, bool], StoredResponse]
"""Renders the response for a channel and whether it was just created."""


@dataclass(frozen=True, kw_only=True)
class ChangeContext:
    """Principal and precondition of a change, and the rendering of its response.

    A repeated `request` gets the stored response. With `dry_run` the response is the same, but
    nothing is stored.
    """

    by: Principal
    precondition: Precondition
    request: Request | None
    render: Render
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of channels; `following` is the last name, None on the last page."""

    channels: tuple[Channel, ...]
    following: str | None


class Channels:
    """The channels of one database."""

    def __init__(
        self,
        database: Database,
        kafka: KafkaAdmin,
        *,
        topic_prefix: str,
        kafka_timeout_s: float,
        wake: Callable[[], None],
        clock: Clock = system_clock,
    ) -> None:
        """`wake` is called after each commit that may have changed a channel."""
        self._database = database
        self._kafka = kafka
        self._preflight = Preflight(database, kafka, timeout_s=kafka_timeout_s)
        self._usage = UsageRecorder(database, clock=clock)
        self._topic_prefix = topic_prefix
        self._wake = wake
        self._clock = clock

    def put(
        self,
        name: str,
        request: Spec,
        context: ChangeContext,
        *,
        labels: Mapping[str, str] | None,
        schema: Schema | None,
        uid: str | None,
    ) -> StoredResponse:
        """Create the channel, or change the fields that the request has; idempotent.

        With `uid` only the channel of that uid is changed. Raises Conflict, PreconditionFailed,
        ChannelNotFound and InvalidRequest.
        """
        observed = self._preflight.run(name, request, context.request)

        def act(tx: WriteTransaction) -> tuple[Channel, bool]:
            channel = channels_store.hold(tx, name)
            if channel is None and uid is None:
                context.precondition.check(None)
                channel = create(
                    tx,
                    name,
                    request,
                    labels,
                    schema=schema,
                    observed=observed,
                    prefix=self._topic_prefix,
                    now=self._clock(),
                )
                if channel is not None:
                    audit_store.add(
                        tx,
                        channel,
                        AuditedAction.CREATE,
                        by=context.by,
                        at=channel.created_at,
                        new=non_default_fields(channel),
                    )
                    return channel, True
                # The name or the topic was taken concurrently.
                channel = channels_store.hold(tx, name)
                if channel is None:
                    raise ConcurrentChange(
                        f"Another channel took the topic of {name!r} at the same time; send the "
                        "request again."
                    )
            channel = require_channel(name, channel, uid)
            context.precondition.check(etag(channel))
            require_changeable(channel)
            version = None if schema is None else self._version(tx, channel, request, schema)
            following = changed(channel, request, labels, version)
            if following is not channel:
                record_use(tx, channel.uid, self._clock())
            return self.save(tx, channel, following, AuditedAction.UPDATE, by=context.by), False

        return self.once(context, act)

    def get(self, name: str) -> Channel:
        """Return the channel; raises ChannelNotFound."""
        with self._database.read() as tx:
            return find_channel(tx, name)

    def connected(self, name: str, *, writes: bool) -> tuple[Channel, tuple[SchemaVersion, ...]]:
        """Return a usable channel and all schemas of its records.

        Raises ChannelNotReady with the reason, or ChannelClosed for a writer.
        """
        with self._database.read() as tx:
            channel = find_channel(tx, name)
            versions = schemas_store.versions(tx, channel.uid)
        require_usable(channel, writes=writes)
        self._usage.record(channel)
        return channel, versions

    def versions(self, name: str) -> tuple[SchemaVersion, ...]:
        """Return all kept schemas, the oldest first; raises ChannelNotFound."""
        with self._database.read() as tx:
            channel = find_channel(tx, name)
            return schemas_store.versions(tx, channel.uid)

    def schema(self, schema_id: int, principal: Principal) -> str:
        """Return a schema of a channel visible to the principal; raises NotFound."""
        everything = principal.may(Action.ADMIN)
        prefixes = None if everything else principal.prefixes(Action.VIEW)
        with self._database.read() as tx:
            definition = schema_store.find(tx, schema_id, prefixes=prefixes)
        if definition is None:
            raise NotFound(f"No channel that this token may see has a schema {schema_id}.")
        return definition

    def page(
        self, *, limit: int, after: str, selector: Selector | None, prefixes: tuple[str, ...]
    ) -> Page:
        """Return channels whose names start with one of `prefixes`, ordered by name."""
        with self._database.read() as tx:
            channels = channels_store.page(
                tx, limit=limit + 1, after=after, selector=selector, prefixes=prefixes
            )
        more = len(channels) > limit
        return Page(
            channels=tuple(channels[:limit]), following=channels[limit - 1].name if more else None
        )

    def name_of_topic(self, topic: str) -> str | None:
        """Return the name of the channel that owns this topic."""
        with self._database.read() as tx:
            return channels_store.name_of_topic(tx, topic)

    def changes(
        self, name: str, *, before: int | None, limit: int
    ) -> tuple[list[AuditEntry], bool]:
        """Return the audit entries of channels of this name, newest first, and whether more follow.

        Deleted channels have entries too. Raises ChannelNotFound if there never was one.
        """
        with self._database.read() as tx:
            entries = audit_store.page(tx, name, before=before, limit=limit + 1)
            if not entries and before is None and channels_store.find(tx, name) is None:
                raise ChannelNotFound(
                    f"There is no channel {name!r}, and there are no changes of one."
                )
        return entries[:limit], len(entries) > limit

    def once(
        self, context: ChangeContext, act: Callable[[WriteTransaction], tuple[Channel, bool]]
    ) -> StoredResponse:
        """Act and store the response in one transaction, or return the stored response."""
        if context.dry_run:
            with self._database.rehearse() as tx:
                return context.render(*act(tx))
        with self._database.write() as tx:
            response = idempotency.once(
                tx, context.request, self._clock(), lambda: context.render(*act(tx))
            )
        self._wake()
        return response

    def _version(
        self, tx: WriteTransaction, channel: Channel, request: Spec, schema: Schema
    ) -> SchemaVersion | None:
        """Return the new version after storing it; None for the current one."""
        if channel.schema == schema.text:
            return None
        schema_for(schema, channel.spec.format)
        kept = schemas_store.versions(tx, channel.uid)
        rule = channel.spec.merged(request).compatibility
        version = version_of(
            tx, schema, kept=kept, format_=channel.spec.format, rule=rule, now=self._clock()
        )
        if version not in kept:
            schemas_store.assign(tx, channel_uid=channel.uid, version=version)
        return version

    def save(
        self,
        tx: WriteTransaction,
        was: Channel,
        channel: Channel,
        action: AuditedAction,
        *,
        by: Principal,
    ) -> Channel:
        """Store the channel `was` as changed, with its audit entry. Raises ConcurrentChange."""
        if channel is was:
            return channel
        moves = channel.phase is not was.phase
        phases = sources(channel.phase) if moves else {was.phase}
        if not channels_store.save(tx, channel, was=was, from_phases=phases):
            raise ConcurrentChange(
                f"The channel {was.name!r} was changed at the same time; send the request again."
            )
        audit_store.add(
            tx, channel, action, by=by, at=self._clock(), old=fields_of(was), new=fields_of(channel)
        )
        return channel
