"""Rules for creating, changing, adopting and deleting a channel, and its entity tags. Pure.

A tag is `"{uid8}.{generation}.{revision}"`. `If-None-Match` compares the whole tag, which any
change replaces. `If-Match` compares only uid and generation, so the gateway's own status updates do
not fail clients' changes. Lists of endpoints have `"{uid8}.e{revision}"` with a separate revision.
A channel's status has the weak tag `W/"{uid8}.s…"` with all revisions, but without the time of the
last sample.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sluiceway_gateway.channels.model import (
    Channel,
    Delivery,
    Phase,
    Spec,
    TopicRef,
    may_become,
)
from sluiceway_gateway.channels.topic_config import canonical, refusals
from sluiceway_gateway.core.errors import (
    ChannelAdopted,
    ChannelDeleting,
    ChannelPinned,
    ImmutableField,
    InvalidRequest,
    PartitionsShrink,
    Violation,
)
from sluiceway_gateway.core.kafka.model import ObservedTopic
from sluiceway_gateway.core.names import MAX_PARTITIONS, topic_name
from sluiceway_gateway.schemas.model import SchemaVersion

_OF_TOPIC = ("partitions", "replication", "retention.ms", "retention.bytes", "config")
"""Fields of the spec that an adopted topic determines."""
_FIXED = ("format", "replication", "delivery", "partitioner")
"""Fields of the spec that a change cannot replace."""
_UNSAFE = (
    ("cleanup.policy", "compact", "compaction removes committed records"),
    (
        "message.timestamp.type",
        "CreateTime",
        "records with an old event time could expire before their commit",
    ),
    ("min.insync.replicas", "1", "a committed record could be lost with one broker"),
)
"""Topic settings with values that would break exactly-once delivery, and the reasons."""


def created(
    request: Spec,
    labels: Mapping[str, str] | None = None,
    *,
    name: str,
    uid: str,
    schema: SchemaVersion,
    prefix: str,
    now: datetime,
) -> Channel:
    """Return a new channel with an owned topic."""
    channel = Channel(
        name=name,
        uid=uid,
        labels=labels or {},
        generation=1,
        revision=1,
        created_at=now,
        spec=merged(Spec(), request),
        schema=schema.definition,
        schema_id=schema.id,
        schema_version=schema.version,
        phase=Phase.PROVISIONING,
        observed_generation=0,
        conditions=(),
        topic=TopicRef(name=topic_name(prefix, name, uid)),
    )
    message = "The channel's topic is not created yet."
    for type_ in ("Ready", "Synced"):
        channel = channel.with_condition(type_, "False", "Provisioning", message, now)
    return channel


def changed(
    channel: Channel,
    request: Spec,
    labels: Mapping[str, str] | None = None,
    schema: SchemaVersion | None = None,
) -> Channel:
    """Return the channel with the fields of the request, the same object if nothing changes.

    `schema` is the new version. Without it, and without labels, the current ones are kept. Raises
    a Conflict.
    """
    require_changeable(channel)
    spec = channel.spec
    refuse_for_adopted(channel, request)
    _refuse_replacement(channel, request)
    if "partitions" in _replaced(spec, request):
        _refuse_partitions(channel, request.partitions)
    labels = channel.labels if labels is None else labels
    following = replace(channel, spec=merged(spec, request), labels=labels)
    if schema is not None:
        following = replace(
            following,
            schema=schema.definition,
            schema_id=schema.id,
            schema_version=schema.version,
        )
    if following == channel:
        return channel
    if following.spec.idle_ms != spec.idle_ms:
        # The condition refers to the previous idle time.
        kept = tuple(condition for condition in channel.conditions if condition.type != "Idle")
        following = replace(following, conditions=kept)
    return replace(following, generation=channel.generation + 1, revision=channel.revision + 1)


def deleted(channel: Channel, *, keep_topic: bool, now: datetime) -> Channel:
    """Return the channel in phase `deleting`, the same object if it is already.

    An adopted topic is always kept.
    """
    keep_topic = keep_topic or channel.adopted
    if channel.phase is Phase.DELETING:
        if channel.keep_topic != keep_topic:
            way = "without its topic" if channel.keep_topic else "with its topic"
            raise ChannelDeleting(f"The channel {channel.name!r} is being deleted already, {way}.")
        return channel
    assert may_become(channel.phase, Phase.DELETING)  # noqa: S101 - allowed from every phase
    way = "without its topic" if keep_topic else "with its topic"
    message = f"The channel is being deleted, {way}."
    return replace(
        channel.with_condition("Ready", "False", "Deleting", message, now),
        phase=Phase.DELETING,
        keep_topic=keep_topic,
        revision=channel.revision + 1,
    )


def require_changeable(channel: Channel) -> None:
    """Raise ChannelDeleting for a channel that is being deleted."""
    if channel.phase is Phase.DELETING:
        raise ChannelDeleting(
            f"The channel {channel.name!r} is being deleted; try again when it is gone."
        )


def refuse_for_adopted(channel: Channel, request: Spec) -> None:
    """Raise ChannelAdopted if the request would change an adopted topic."""
    if not channel.adopted:
        return
    replaced = _replaced(channel.spec, request)
    for field in _OF_TOPIC:
        if field in replaced:
            raise ChannelAdopted(
                f"The topic {channel.topic.name!r} of the channel {channel.name!r} is adopted, so "
                f"the gateway does not change its {field} {replaced[field]!r}: leave spec.{field} "
                "out, and change the topic with Kafka's own tools. The channel follows it."
            )


def _refuse_replacement(channel: Channel, request: Spec) -> None:
    topic = channel.topic.name if channel.adopted else None
    requested = request.topic.name if request.topic else None
    if "topic" in request.model_fields_set and requested != topic:
        has = f"has adopted the topic {topic!r}" if topic else "owns its topic"
        raise ImmutableField(
            f"The channel {channel.name!r} {has}, which cannot be changed; leave spec.topic out, "
            "or create a channel with another name."
        )
    replaced = _replaced(channel.spec, request)
    for field in _FIXED:
        if field in replaced:
            was = "the broker's default" if replaced[field] is None else replaced[field]
            raise ImmutableField(
                f"The {field} of the channel {channel.name!r} is {was} and cannot be changed; "
                "leave it out, or create a channel with another name."
            )


def _replaced(spec: Spec, request: Spec) -> dict[str, Any]:
    """Return the values that the request would replace, by their fields."""
    following = dict(spec.merged(request).fields())
    return {field: value for field, value in spec.fields() if following[field] != value}


def _refuse_partitions(channel: Channel, partitions: int) -> None:
    spec = channel.spec
    if partitions < spec.partitions:
        raise PartitionsShrink(
            f"The channel {channel.name!r} has {spec.partitions} partitions and cannot have "
            f"{partitions}: the records of the others would be lost. Request {spec.partitions} "
            "or more."
        )
    if spec.pinned:
        raise ChannelPinned(
            f"The channel {channel.name!r} is pinned to {spec.partitions} partitions: with more, "
            "records of the same key would be in different partitions. If that is acceptable, set "
            "pinned to false first."
        )


def merged(spec: Spec, request: Spec) -> Spec:
    """Return the spec with the fields of the request.

    Raises InvalidRequest for an invalid heartbeat, or settings that exactly-once delivery forbids.
    """
    following = spec.merged(request)
    heartbeat = following.heartbeat
    if heartbeat.timeout_ms < 3 * heartbeat.interval_ms:
        message = (
            f"{heartbeat.timeout_ms} is less than three intervals of {heartbeat.interval_ms} ms"
        )
        raise InvalidRequest(
            f"An endpoint would be lost before it is suspect: timeout_ms {message}.",
            (Violation(pointer="/spec/heartbeat/timeout_ms", message=message),),
        )
    _refuse_for_exactly_once(following)
    return following


def _refuse_for_exactly_once(spec: Spec) -> None:
    """Raise InvalidRequest for topic settings that would break exactly-once delivery."""
    if spec.delivery is not Delivery.EXACTLY_ONCE:
        return
    for setting, refused, why in _UNSAFE:
        if refused in spec.config.get(setting, "").split(","):
            message = f"not on a channel with delivery exactly_once: {why}; leave it out"
            raise InvalidRequest(
                f"{setting} is {spec.config[setting]}, {message}, or make the channel with the "
                "delivery at_least_once.",
                (Violation(pointer=f"/spec/config/{setting}", message=message),),
            )


def adopting(
    request: Spec,
    observed: ObservedTopic,
    labels: Mapping[str, str] | None = None,
    *,
    name: str,
    uid: str,
    schema: SchemaVersion,
    now: datetime,
) -> Channel:
    """Return a new channel that adopts the observed topic, identified by its id.

    Raises ChannelAdopted if the request has other settings than the topic has, or for
    exactly-once delivery.
    """
    if request.delivery is Delivery.EXACTLY_ONCE:
        raise ChannelAdopted(
            f"The topic {observed.name!r} cannot be adopted with the delivery exactly_once: its "
            "records and settings are not the gateway's. Leave spec.topic out to have a topic "
            "made, or spec.delivery."
        )
    channel = created(request, labels, name=name, uid=uid, schema=schema, prefix="", now=now)
    channel = replace(
        channel,
        adopted=True,
        topic=TopicRef(name=observed.name, id=observed.id, partitions=observed.partitions),
        spec=followed(channel.spec, observed),
        conditions=tuple(
            replace(condition, message=f"The topic {observed.name} is being adopted.")
            for condition in channel.conditions
        ),
    )
    refuse_for_adopted(channel, request)
    return channel


def followed(spec: Spec, observed: ObservedTopic) -> Spec:
    """Return the spec with the adopted topic's values, without settings not allowed in a spec."""
    retention = {
        "ms": _number(observed.config, "retention.ms"),
        "bytes": _number(observed.config, "retention.bytes"),
    }
    config = {
        setting: value
        for setting, value in observed.config.items()
        if not refusals({setting: value})
    }
    return spec.model_copy(
        update={
            "partitions": min(observed.partitions, MAX_PARTITIONS),
            "replication": observed.replication or None,
            "retention": spec.retention.model_copy(update=retention),
            "config": canonical(config),
        }
    )


def _number(config: Mapping[str, str], setting: str) -> int | None:
    return int(config[setting]) if setting in config else None


def etag(channel: Channel) -> str:
    """Return the quoted tag of a channel."""
    return f'"{channel.uid[:8]}.{channel.generation}.{channel.revision}"'


def endpoints_etag(channel: Channel, revision: int) -> str:
    """Return the quoted tag of a channel's list of endpoints."""
    return f'"{channel.uid[:8]}.e{revision}"'


def status_etag(
    uid: str, *, generation: int, revision: int, endpoints_revision: int, samples_revision: int
) -> str:
    """Return the quoted tag of a channel's status, without `W/`."""
    revisions = f"{generation}.{revision}.{endpoints_revision}.{samples_revision}"
    return f'"{uid[:8]}.s{revisions}"'
