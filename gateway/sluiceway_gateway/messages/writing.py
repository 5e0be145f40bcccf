"""Writes of a few messages by hand."""

import secrets
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import structlog
from pydantic import Field

from sluiceway_gateway.api.models import RequestModel, Uid
from sluiceway_gateway.channels.model import Channel, Delivery
from sluiceway_gateway.channels.service import Channels, require_channel
from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.auth.model import Principal
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.failures import reason_of
from sluiceway_gateway.core.errors import DatabaseUnavailable, InvalidRequest, SluicewayGatewayError
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Interval, NewMessage, Rejection
from sluiceway_gateway.core.names import MAX_PARTITIONS
from sluiceway_gateway.ledger import batch_store
from sluiceway_gateway.ledger.batches import BatchText, CommitRequest, OpenRequest
from sluiceway_gateway.ledger.model import Batch, BatchState, digest_of, merge_runs
from sluiceway_gateway.ledger.service import Ledgers
from sluiceway_gateway.messages.model import no_partition
from sluiceway_gateway.messages.reading import require_same_topic
from sluiceway_gateway.schemas.model import SchemaVersion

_log = structlog.get_logger(__name__)

OWNER = "sluiceway.messages"
"""Owner of the batches of hand-written messages; a label's own has the label behind it."""
MAX_WRITTEN = 100
"""Records in a request."""
_FRAMING_BYTES = 128
"""Kafka's overhead of a message."""


class WriteRequest(RequestModel):
    """The body of `POST …/messages`."""

    uid: Uid | None = Field(
        default=None, description="Of the channel; a later channel of the name is refused"
    )
    records: list[dict[str, Any]] = Field(
        min_length=1,
        max_length=MAX_WRITTEN,
        description="In the JSON forms of GET; fields with a default may be left out",
    )
    partition: int | None = Field(
        default=None, ge=0, lt=MAX_PARTITIONS, description="Default: by `key`, else in turn"
    )
    key: Annotated[str, Field(max_length=10_000)] | int | None = Field(
        default=None,
        description="Of each message: a text in UTF-8, or a number as 8 bytes, big endian",
    )
    batch_key: BatchText | None = Field(
        default=None,
        description="On exactly-once channels: a repeat with the same key writes nothing",
    )

    def key_bytes(self) -> bytes | None:
        """Return the key of the messages. Raises InvalidRequest for a number above 64 bits."""
        key = self.key
        if key is None or isinstance(key, str):
            return None if key is None else key.encode()
        if not -(2**63) <= key < 2**63:
            raise InvalidRequest.at("/key", "a number of at most 64 bits, or a text")
        return key.to_bytes(8, "big", signed=True)


@dataclass(frozen=True, kw_only=True)
class WrittenMessage:
    """The offset of a message."""

    partition: int
    offset: int
    records: int


@dataclass(frozen=True, kw_only=True)
class WrittenMessages:
    """The written messages.

    `batch` is their committed batch. `replayed`: its key was committed before, and nothing was
    written.
    """

    messages: tuple[WrittenMessage, ...] = ()
    batch: Batch | None = None
    replayed: bool = False


@dataclass(eq=False, repr=False)
class MessageWrites:
    """Writes of messages to one database's channels."""

    database: Database
    kafka: KafkaAdmin
    channels: Channels
    ledgers: Ledgers
    clock: Clock = system_clock

    def write(self, name: str, request: WriteRequest, principal: Principal) -> WrittenMessages:
        """Write records, on exactly-once channels as one committed batch.

        There, a repeat with the same `batch_key` writes nothing. Each write is in the audit trail.
        Raises what `Channels.connected`, `Ledgers.open` and `Ledgers.commit` raise,
        KafkaUnavailable, and InvalidRequest for records that do not fit the schema, and for
        messages that Kafka refuses.
        """
        key = request.key_bytes()
        channel, versions = self.channels.connected(name, writes=True)
        require_channel(name, channel, request.uid)
        exact = channel.spec.delivery is Delivery.EXACTLY_ONCE
        if request.batch_key is not None and not exact:
            raise InvalidRequest.at(
                "/batch_key", "only channels with the delivery exactly_once have it"
            )
        messages = self._encoded(channel, versions, request, key)
        require_same_topic(self.kafka, channel)
        if exact:
            written = self._committed(channel, messages, request, principal)
        else:
            written = self._produced(channel, messages)
        if not written.replayed:
            self._record(channel, written, principal)
        return written

    def _record(self, channel: Channel, written: WrittenMessages, principal: Principal) -> None:
        by_partition: defaultdict[int, list[int]] = defaultdict(list)
        for message in written.messages:
            by_partition[message.partition].append(message.offset)
        try:
            with self.database.write() as tx:
                audit_store.add(
                    tx,
                    channel,
                    AuditedAction.WRITE_MESSAGES,
                    by=principal,
                    at=self.clock(),
                    target=None if written.batch is None else written.batch.key,
                    new={
                        f"partition {partition}": f"offset {offsets[0]}"
                        if len(offsets) == 1
                        else f"offsets {offsets[0]} to {offsets[-1]}"
                        for partition, offsets in sorted(by_partition.items())
                    },
                )
        except DatabaseUnavailable as error:
            # The messages are in Kafka: a repeat would write them again.
            _log.warning(
                "a write is not in the audit trail", channel=channel.name, **reason_of(error)
            )

    def _encoded(
        self,
        channel: Channel,
        versions: Sequence[SchemaVersion],
        request: WriteRequest,
        key: bytes | None,
    ) -> list[tuple[NewMessage, int]]:
        """Return the messages to write, each with its number of records."""
        from sluiceway_gateway.messages.records import encode, partition_of

        partitions = channel.topic.partitions or 1
        if request.partition is not None and request.partition >= partitions:
            raise no_partition("/partition", request.partition, partitions)
        (version,) = (version for version in versions if version.id == channel.schema_id)
        limit_bytes = channel.max_message_bytes - _FRAMING_BYTES - len(key or b"")
        encoded = encode(
            request.records, channel.spec.format, version, limit_bytes=max(1, limit_bytes)
        )
        first, step = request.partition, 0
        if first is None and key is not None:
            first = partition_of(key, partitions, channel.spec.partitioner)
        if first is None:
            first, step = secrets.randbelow(partitions), 1
        return [
            (
                NewMessage(
                    partition=(first + step * index) % partitions,
                    key=key,
                    value=message.value,
                ),
                message.records,
            )
            for index, message in enumerate(encoded)
        ]

    def _produced(
        self, channel: Channel, messages: Sequence[tuple[NewMessage, int]]
    ) -> WrittenMessages:
        offsets = self.kafka.produce(
            channel.topic.name,
            [message for message, _ in messages],
            max_message_bytes=channel.max_message_bytes,
        )
        if isinstance(offsets, Rejection):
            raise InvalidRequest.at(
                "/records", f"{offsets.message}; other messages of the request may be written"
            )
        return WrittenMessages(
            messages=tuple(
                WrittenMessage(partition=message.partition, offset=offset, records=records)
                for (message, records), offset in zip(messages, offsets, strict=True)
            )
        )

    def _committed(
        self,
        channel: Channel,
        messages: Sequence[tuple[NewMessage, int]],
        request: WriteRequest,
        principal: Principal,
    ) -> WrittenMessages:
        own_key = request.batch_key is None
        instance = uuid.uuid4().hex
        batch = self.ledgers.open(
            channel.name,
            OpenRequest(
                key=request.batch_key or f"messages-{instance}",
                owner=self._owner(channel, request.batch_key, principal),
                instance=instance,
                partitions=list({message.partition for message, _ in messages}),
                own_key=own_key,
            ),
            uid=channel.uid,
            principal=principal,
        ).batch
        if batch.state is BatchState.COMMITTED:
            return WrittenMessages(batch=batch, replayed=True)
        try:
            written = self._produced(channel, messages)
            committed = self.ledgers.commit(
                channel.name,
                _commit_request(batch, instance, written),
                uid=channel.uid,
                slices=0,
                positions=None,
                principal=principal,
            )
        except DatabaseUnavailable:
            # It may be committed. Otherwise its lease ends soon.
            raise
        except SluicewayGatewayError as error:
            try:
                self.ledgers.abort(
                    channel.name,
                    batch.id,
                    uid=channel.uid,
                    instance=instance,
                    cause=str(error),
                    principal=principal,
                )
            except SluicewayGatewayError as refused:
                _log.warning(
                    "a batch of a failed request is not aborted; its lease ends soon",
                    channel=channel.name,
                    batch=batch.id,
                    **reason_of(refused),
                )
            raise
        return replace(written, batch=committed.batch)

    def _owner(self, channel: Channel, key: str | None, principal: Principal) -> str:
        """Return the owner of the batches of the principal's label.

        A key that was used by hand keeps its owner, which may have been transferred, and which had
        no label in earlier versions and without tokens. The ledger refuses other labels.
        """
        if key is not None:
            with self.database.read() as tx:
                latest = batch_store.latest(tx, channel.uid, key)
            if latest is not None and latest.owner.partition(" ")[0] == OWNER:
                return latest.owner
        return OWNER if principal.subject is None else f"{OWNER} {principal.subject}"


def _commit_request(batch: Batch, instance: str, written: WrittenMessages) -> CommitRequest:
    by_partition: defaultdict[int, list[int]] = defaultdict(list)
    counts: Counter[int] = Counter()
    for message in written.messages:
        by_partition[message.partition].append(message.offset)
        counts[message.partition] += message.records
    manifest = {
        partition: merge_runs(Interval(offset, offset + 1) for offset in offsets)
        for partition, offsets in sorted(by_partition.items())
    }
    return CommitRequest(
        batch=batch.id,
        instance=instance,
        digest=digest_of(manifest),
        manifest=manifest,
        records=counts.total(),
        counts=dict(counts),
    )
