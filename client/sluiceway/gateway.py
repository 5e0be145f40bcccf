"""Gateway: the client's entry point, which opens channels."""

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from sluiceway.api.arguments import check_seconds
from sluiceway.api.auth import Token
from sluiceway.api.channels import (
    MIN_INTERVAL_S,
    Control,
    watch_summaries,
)
from sluiceway.api.models import (
    ChannelResource,
    ChannelSpec,
    Heartbeat,
    Retention,
    require_readable,
)
from sluiceway.api.status import ChannelSummary
from sluiceway.api.transport import Transport
from sluiceway.channel import Channel
from sluiceway.endpoint.channel_endpoint import ClosesOnExit
from sluiceway.errors import ChannelNotFound, Conflict, OptionError
from sluiceway.reader import ChannelReader
from sluiceway.schema import Schema
from sluiceway.transaction import Transaction
from sluiceway.writer import ChannelWriter

__all__ = ["Gateway"]


class Gateway(ClosesOnExit):
    """A gateway; no request is sent before the first call.

    `url`, `token` and `ca` (a file of trusted certificates) default to SLUICEWAY_URL (or
    http://127.0.0.1:8900), SLUICEWAY_TOKEN or the content of SLUICEWAY_TOKEN_FILE, and
    SLUICEWAY_CA_FILE. `listener` names the Kafka listener to connect to if the gateway knows
    several; it defaults to SLUICEWAY_LISTENER, or to the gateway's choice. Requests are retried
    for `timeout_s` while the gateway does not answer. Writers and readers tolerate an outage of
    the gateway for `control_grace_s`, before operations that need it fail.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | Token | None = None,
        ca: str | None = None,
        listener: str | None = None,
        timeout_s: float = 30.0,
        control_grace_s: float = 60.0,
    ) -> None:
        bearer_token = Token.of(token)
        del token
        check_seconds("control_grace_s", control_grace_s, 0.001)
        transport = Transport(url, token=bearer_token, ca=ca, timeout_s=timeout_s)
        self.url = transport.url
        self._control = Control(
            transport,
            listener=listener or os.environ.get("SLUICEWAY_LISTENER"),
            grace_s=control_grace_s,
        )

    def channel(
        self,
        name: str,
        schema: object = None,
        *,
        partitions: int | None = None,
        format: str | None = None,
        compatibility: str | None = None,
        topic: str | None = None,
        pinned: bool | None = None,
        replication: int | None = None,
        labels: Mapping[str, str] | None = None,
        retention: Retention | None = None,
        heartbeat: Heartbeat | None = None,
        mirrored: bool | None = None,
        delivery: str | None = None,
        partitioner: str | None = None,
        idle: timedelta | None = None,
        max_partitions: int | None = None,
        config: Mapping[str, str] | None = None,
        import_groups: Sequence[str] = (),
        wait_s: float = 60.0,
    ) -> Channel:
        """Open a channel, creating it if it does not exist, and wait until it is ready.

        `schema` is whatever `Schema.of` takes: a dataclass, a pydantic model, a msgspec.Struct, an
        attrs class, a NamedTuple, a TypedDict, an Arrow schema, Avro JSON or a Schema. If it is one
        of an existing channel's versions, writers and readers use that version. Otherwise it must
        be able to read records of all versions, or SchemaMismatch is raised; it serves readers
        only, until `Channel.update` registers it. If an existing channel differs in another
        argument, a warning is issued, and nothing is changed. A new channel needs a schema or
        `format="bytes"`, or ChannelNotFound is raised. Its defaults are 1 partition, format avro,
        not pinned, compatibility backward, the broker's replication and retention, a heartbeat of 2
        s, and not `mirrored`: positions of groups are not written to Kafka's own group offsets.

        `delivery` is `at_least_once`, the default, or `exactly_once`: records become visible by
        commits only, each record once. It cannot be changed.
        `partitioner` is the rule for the partitions of keys, also fixed: `murmur2`, the default, as
        Java's producers; `consistent_random`, as librdkafka's, such as confluent-kafka's; or
        `fnv1a`, as Sarama's. Choose that of the topic's other producers.
        `idle` is the time without use (at least a minute) after which the channel is closed, and
        after the same time again deleted with its records; by default it stays.
        `max_partitions` is the number up to which a group that attaches may grow the channel with
        the scope `read`; beyond it, and by default, that takes `manage`.
        `topic` names an existing Kafka topic that a new channel adopts: it is never deleted or
        changed. Schemas of an earlier channel with this topic are kept. Raises Conflict
        `topic_not_found` or `topic_taken`, and `immutable_field` if the channel exists with
        another topic.
        `import_groups` names groups of Kafka that have read the topic so far: those without a
        position in the channel continue at their committed offsets in Kafka, as after
        `Channel.import_offsets`. Later calls change nothing. Raises Conflict `members_open` while
        such a group has members in Kafka; one without an offset there is a warning.

        Raises GatewayError, SchemaError, ChannelNotReady, and SluicewayTimeout after `wait_s`.
        """
        if isinstance(import_groups, str):
            raise OptionError(f"import_groups is {import_groups!r}; it takes a list of names")
        wanted = None if schema is None else Schema.of(schema)
        spec = ChannelSpec(
            schema=wanted,
            format=format,
            topic=topic,
            partitions=partitions,
            compatibility=compatibility,
            pinned=pinned,
            replication=replication,
            retention=retention,
            heartbeat=heartbeat,
            mirrored=mirrored,
            delivery=delivery,
            partitioner=partitioner,
            idle=None if idle == timedelta(0) else idle,
            max_partitions=max_partitions,
            config=config,
        )
        deadline_s = time.monotonic() + wait_s
        while True:
            resource = self._opened(name, spec, labels)
            channel = Channel(self._control, resource, wanted)
            if resource.status.phase != "deleting" or not _can_create(spec):
                break
            # The name is free only after the previous channel is gone.
            channel.wait_until_gone(deadline_s - time.monotonic())
        if wanted is not None and Schema.parse(resource.schema_definition) != wanted:
            require_readable(name, wanted, channel.schemas())
        _require_topic(resource, topic)
        _warn_of_differences(resource, spec, labels)
        channel.wait_until_ready(deadline_s - time.monotonic())
        for group in import_groups:
            _import_once(channel, group)
        return channel

    def channels(self, selector: str | None = None) -> Iterator[Channel]:
        """Yield the channels that the token may see, by name.

        `selector` filters by labels in Kubernetes' syntax: `team=fares,stage!=test,owner`.
        """
        for resource in self._control.channels(selector):
            yield Channel(self._control, resource)

    def report(self) -> tuple[ChannelSummary, ...]:
        """Request a one-line status of each channel that the token may see, by name."""
        return tuple(self._control.statuses())

    def watch(self, *, every_s: float = MIN_INTERVAL_S) -> Iterator[tuple[ChannelSummary, ...]]:
        """Yield the current `report`, and each further one that differs, at most every `every_s`.

        Never ends by itself. Raises GatewayUnavailable if the gateway does not answer in time;
        then call it again.
        """
        return watch_summaries(self._control, every_s=every_s, sleep=time.sleep)

    def transaction(self, reader: ChannelReader[Any], writer: ChannelWriter) -> Transaction:
        """Return a block that commits its output together with the positions of its input.

            with gateway.transaction(reader, writer):
                writer.write(map(process, reader.read(1000)))

        The reader needs a group, and the writer's channel delivery="exactly_once". After an
        exception nothing was written, and the reader is back at its last commit. Raises
        OptionError.
        """
        return Transaction(reader, writer)

    def close(self) -> None:
        """Close the connections to the gateway; later calls raise EndpointClosed.

        Writers and readers have their own connections for heartbeats and commits. Readers use
        the gateway's to request schemas that were registered after they were opened.
        """
        self._control.close()

    def __repr__(self) -> str:
        # Also for an instance whose constructor failed.
        return f"<Gateway {getattr(self, 'url', None)}>"

    def _opened(
        self, name: str, spec: ChannelSpec, labels: Mapping[str, str] | None
    ) -> ChannelResource:
        try:
            return self._control.channel(name)
        except ChannelNotFound as error:
            if not _can_create(spec):
                raise ChannelNotFound(
                    f"there is no channel {name!r}; to create it, give a schema, or "
                    f"format='bytes': gateway.channel({name!r}, schema=…)",
                    status=404,
                ) from error
        return self._control.ensure(name, spec=spec, labels=labels)


def _can_create(spec: ChannelSpec) -> bool:
    """Whether a channel can be created; an adopted topic may bring its own schemas."""
    return spec.schema is not None or spec.topic is not None or spec.format == "bytes"


def _warn_of_differences(
    resource: ChannelResource, spec: ChannelSpec, labels: Mapping[str, str] | None
) -> None:
    wanted = vars(spec) | {"labels": labels, "schema": None, "topic": None}
    for field, value in wanted.items():
        if value is not None and value != (present := getattr(resource, field)):
            warnings.warn(
                f"the channel {resource.name!r} has {field}={present!r}, not {value!r} as given, "
                "and keeps it; an update changes it",
                stacklevel=3,
            )


def _import_once(channel: Channel, group: str) -> None:
    """Import the offsets of a group that has no position in the channel yet."""
    if channel.committed(group):
        return
    try:
        channel.import_offsets(group)
    except Conflict as error:
        if error.code == "group_not_found":
            warnings.warn(str(error), stacklevel=3)
        # Another program may have imported them meanwhile, and joined.
        elif error.code != "members_open" or not channel.committed(group):
            raise


def _require_topic(resource: ChannelResource, topic: str | None) -> None:
    present = resource.status.topic.name
    if topic not in (None, present):
        raise Conflict(
            f"the channel {resource.name!r} exists with the topic {present!r}, which cannot be "
            f"changed to {topic!r}: choose another channel name, or omit the topic",
            code="immutable_field",
        )
