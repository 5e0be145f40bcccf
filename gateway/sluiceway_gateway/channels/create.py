"""Creation of a channel: preflight in Kafka, then one transaction."""

import uuid
from collections.abc import Mapping
from datetime import datetime

from sluiceway.schema import Schema
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.change import adopting, created
from sluiceway_gateway.channels.model import Channel, Spec
from sluiceway_gateway.core.db import idempotency
from sluiceway_gateway.core.db.engine import Database, WriteTransaction
from sluiceway_gateway.core.db.idempotency import Request
from sluiceway_gateway.core.errors import (
    ConcurrentChange,
    ImmutableField,
    InvalidRequest,
    KafkaUnavailable,
    ReplicationExceedsBrokers,
    TopicNotFound,
    TopicTaken,
    Violation,
)
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import ObservedTopic
from sluiceway_gateway.core.names import TOPIC_LENGTH, longest_name
from sluiceway_gateway.schemas import store as schemas_store
from sluiceway_gateway.schemas.model import SchemaVersion
from sluiceway_gateway.schemas.service import schema_for, version_of
from sluiceway_gateway.schemas.store import KeptTopic


def create(
    tx: WriteTransaction,
    name: str,
    request: Spec,
    labels: Mapping[str, str] | None = None,
    *,
    schema: Schema | None,
    observed: ObservedTopic | None,
    prefix: str,
    now: datetime,
) -> Channel | None:
    """Insert a new channel; return None if its name or its topic was taken concurrently.

    `observed` is the topic to adopt. Raises InvalidRequest without a schema, TopicTaken, and a
    Conflict between the topic and the request.
    """
    uid = uuid.uuid4().hex
    if observed is None:
        if request.topic is not None:
            raise ConcurrentChange(
                f"The channel {name!r} was deleted at the same time; send the request again."
            )
        _require_short(name, prefix)
        version = _version(tx, name, schema, kept=(), request=request, now=now)
        channel = created(
            request, labels, name=name, uid=uid, schema=version, prefix=prefix, now=now
        )
        kept: tuple[SchemaVersion, ...] = ()
    else:
        _require_free(tx, observed.name)
        before = schemas_store.find_kept(tx, observed.id)
        request = _with_format(request, before, observed.name)
        kept = before.versions if before is not None else ()
        version = _version(tx, name, schema, kept=kept, request=request, now=now)
        channel = adopting(request, observed, labels, name=name, uid=uid, schema=version, now=now)
    if not channels_store.insert(tx, channel):
        return None
    for schema_version in dict.fromkeys((*kept, version)):
        schemas_store.assign(tx, channel_uid=uid, version=schema_version)
    if channel.topic.id is not None:
        schemas_store.forget_kept(tx, channel.topic.id)
    return channel


def _version(
    tx: WriteTransaction,
    name: str,
    schema: Schema | None,
    *,
    kept: tuple[SchemaVersion, ...],
    request: Spec,
    now: datetime,
) -> SchemaVersion:
    """Return the first version of the channel, by default the newest one kept for its topic."""
    if schema is None and kept:
        return kept[-1]
    schema = schema_for(schema, request.format)
    if schema is None:
        raise InvalidRequest(
            f"There is no channel {name!r}, and creating one needs a schema: set spec.schema, or "
            "the format bytes.",
            (Violation(pointer="/spec/schema", message="required to create a channel"),),
        )
    return version_of(
        tx,
        schema,
        kept=kept,
        format_=request.format,
        rule=request.compatibility,
        now=now,
    )


def _require_short(name: str, prefix: str) -> None:
    """Raise InvalidRequest if the topic's name would be longer than Kafka allows."""
    most = longest_name(prefix)
    if len(name) > most:
        message = (
            f"a channel's name has at most {most} characters here, this one has {len(name)}: with "
            f"the prefix {prefix!r} and the uid, its topic's name has {TOPIC_LENGTH} at most"
        )
        raise InvalidRequest.at("path:name", message)


def _require_free(tx: WriteTransaction, topic: str) -> None:
    owner = channels_store.name_of_topic(tx, topic)
    if owner is not None:
        raise TopicTaken(
            f"The topic {topic!r} belongs to the channel {owner!r}: use that channel, or delete "
            "it first, keeping its topic, and wait until it is gone."
        )


def _with_format(request: Spec, before: KeptTopic | None, topic: str) -> Spec:
    """Return the request with the known format of the topic's records."""
    if before is None:
        return request
    if "format" in request.model_fields_set and request.format is not before.format:
        raise ImmutableField(
            f"The records in the topic {topic!r} have the format {before.format}: leave "
            "spec.format out."
        )
    return request.model_copy(update={"format": before.format})


class Preflight:
    """Checks of a new channel against Kafka; existing channels are not checked."""

    def __init__(self, database: Database, kafka: KafkaAdmin, *, timeout_s: float) -> None:
        self._database = database
        self._kafka = kafka
        self._timeout_s = timeout_s

    def run(self, name: str, spec: Spec, request: Request | None) -> ObservedTopic | None:
        """Return the topic to adopt, or None.

        Raises TopicNotFound, KafkaUnavailable, and ReplicationExceedsBrokers for a topic to create.
        """
        topic, replicas = spec.topic, spec.replication
        if topic is not None:
            return None if self._needs_no_check(name, request) else self._observe(topic.name)
        if replicas is not None and replicas > 1 and not self._needs_no_check(name, request):
            self._check_replication(replicas)
        return None

    def _observe(self, topic: str) -> ObservedTopic:
        seen = self._kafka.observe([topic])
        if topic in seen.topics:
            return seen.topics[topic]
        why = "Kafka has none of this name"
        if topic in seen.rejections:
            why = f"Kafka does not show it: {seen.rejections[topic].message}"
        raise TopicNotFound(
            f"There is no topic {topic!r} to adopt: {why}. Correct the name, or leave "
            "spec.topic out to have a topic created."
        )

    def _check_replication(self, replicas: int) -> None:
        """Raise ReplicationExceedsBrokers early; skip the check while Kafka is unavailable."""
        try:
            brokers = len(self._kafka.describe_cluster(self._timeout_s).brokers)
        except KafkaUnavailable:
            return
        if replicas > brokers:
            raise ReplicationExceedsBrokers(
                f"{replicas} replicas need as many brokers, and Kafka has {brokers}: "
                f"ask for at most {brokers}, or leave spec.replication out."
            )

    def _needs_no_check(self, name: str, request: Request | None) -> bool:
        """Return whether the channel exists or the request was already answered."""
        with self._database.read() as tx:
            return channels_store.find(tx, name) is not None or (
                request is not None and idempotency.known(tx, request)
            )
