"""Create, update, delete and adopt: what is asked, and what forbids it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Final

from sluiceway_gateway.channels.model import (
    MAX_PARTITIONS,
    Channel,
    ChannelSpec,
    Compatibility,
    Condition,
    Format,
    Heartbeat,
    Phase,
    Retention,
    SchemaVersion,
    TopicRef,
    may_become,
    topic_name,
    with_condition,
)
from sluiceway_gateway.errors import (
    ChannelAdopted,
    ChannelDeleting,
    ChannelPinned,
    ImmutableField,
    InvalidRequest,
    PartitionsShrink,
    Violation,
)
from sluiceway_gateway.kafka.model import ObservedTopic
from sluiceway_gateway.provisioning.topic_config import canonical, refusals


class Unset(Enum):
    """The type of UNSET."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
"""In the place of a field that the request leaves out."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a request asks of a channel; fields left out keep their values, or take defaults.

    The schema is not among them: which version it is takes a look at those that are kept.
    """

    labels: Mapping[str, str] | Unset = UNSET
    compatibility: Compatibility | Unset = UNSET
    format: Format | Unset = UNSET
    partitions: int | Unset = UNSET
    pinned: bool | Unset = UNSET
    replication: int | Unset | None = UNSET
    retention_ms: int | Unset | None = UNSET
    retention_bytes: int | Unset | None = UNSET
    config: Mapping[str, str] | Unset = UNSET
    interval_ms: int | Unset = UNSET
    timeout_ms: int | Unset = UNSET
    mirrored: bool | Unset = UNSET
    idle_ms: int | Unset | None = UNSET
    topic: str | Unset | None = UNSET
    """The name of the topic that is adopted; None: the channel has one of its own."""


def created(
    change: Change, *, name: str, uid: str, schema: SchemaVersion, prefix: str, now: datetime
) -> Channel:
    """Return the channel that `change` makes where there is none, with a topic of its own."""
    waiting = _not_ready("Provisioning", "The channel's topic is not made yet; it will be.", now)
    return Channel(
        name=name,
        uid=uid,
        labels={} if change.labels is UNSET else change.labels,
        generation=1,
        revision=1,
        created_at=now,
        spec=merged(ChannelSpec(schema=schema.definition), change),
        schema_id=schema.id,
        schema_version=schema.version,
        phase=Phase.PROVISIONING,
        observed_generation=0,
        conditions=tuple(replace(waiting, type=each) for each in ("Ready", "Synced")),
        topic=TopicRef(name=topic_name(prefix, name, uid)),
    )


def changed(channel: Channel, change: Change, schema: SchemaVersion | None = None) -> Channel:
    """Return the channel after `change`: itself, if that changes nothing.

    `schema` is the version that it has from now on, None leaves it. Raises the Conflict that
    stands against it.
    """
    require_changeable(channel)
    spec = channel.spec
    refuse_for_adopted(channel, change)
    _refuse_replacement(channel, change)
    if change.partitions is not UNSET and change.partitions != spec.partitions:
        _refuse_partitions(channel, change.partitions)
    labels = channel.labels if change.labels is UNSET else change.labels
    following = replace(channel, spec=merged(spec, change), labels=labels)
    if schema is not None:
        following = replace(
            following,
            spec=replace(following.spec, schema=schema.definition),
            schema_id=schema.id,
            schema_version=schema.version,
        )
    if following == channel:
        return channel
    if following.spec.idle_ms != spec.idle_ms:
        # What it says is of the time that was set before.
        kept = tuple(each for each in channel.conditions if each.type != "Idle")
        following = replace(following, conditions=kept)
    return replace(following, generation=channel.generation + 1, revision=channel.revision + 1)


def deleted(channel: Channel, *, keep_topic: bool, now: datetime) -> Channel:
    """Return the channel on its way out: itself, if it is already, in the same way.

    The topic of an adopted channel is kept, whatever is asked.
    """
    keep_topic = keep_topic or channel.adopted
    if channel.phase is Phase.DELETING:
        if channel.keep_topic != keep_topic:
            way = "keeping its topic" if channel.keep_topic else "together with its topic"
            raise ChannelDeleting(f"The channel {channel.name!r} is being deleted already, {way}.")
        return channel
    assert may_become(channel.phase, Phase.DELETING)  # noqa: S101 - the table has it from all
    fate = "; its topic stays." if keep_topic else ", and its topic with it."
    condition = _not_ready("Deleting", f"The channel is being deleted{fate}", now)
    return replace(
        channel,
        phase=Phase.DELETING,
        keep_topic=keep_topic,
        revision=channel.revision + 1,
        conditions=with_condition(channel.conditions, condition),
    )


def require_changeable(channel: Channel) -> None:
    """Raise ChannelDeleting for a channel on its way out."""
    if channel.phase is Phase.DELETING:
        raise ChannelDeleting(
            f"The channel {channel.name!r} is being deleted; try again when it is gone."
        )


def refuse_for_adopted(channel: Channel, change: Change) -> None:
    """Raise ChannelAdopted where `change` would have an adopted topic changed."""
    if not channel.adopted:
        return
    spec = channel.spec
    for field, asked, now in (
        ("partitions", change.partitions, spec.partitions),
        ("replication", change.replication, spec.replication),
        ("retention.ms", change.retention_ms, spec.retention.ms),
        ("retention.bytes", change.retention_bytes, spec.retention.bytes),
        ("config", change.config, spec.config),
    ):
        if asked is not UNSET and asked != now:
            raise ChannelAdopted(
                f"The topic {channel.topic.name!r} of the channel {channel.name!r} was adopted "
                f"and is left as it is, with {field} {now!r}: leave spec.{field} out, and "
                "change the topic with Kafka's own tools. The channel follows it."
            )


def _not_ready(reason: str, message: str, now: datetime) -> Condition:
    return Condition(
        type="Ready", status="False", reason=reason, message=message, last_transition_at=now
    )


def _refuse_replacement(channel: Channel, change: Change) -> None:
    spec = channel.spec
    topic = channel.topic.name if channel.adopted else None
    if change.topic is not UNSET and change.topic != topic:
        has = f"has adopted the topic {topic!r}" if topic else "has a topic of its own"
        raise ImmutableField(
            f"The channel {channel.name!r} {has}, and that stays so; leave spec.topic out, or "
            "make a channel of another name."
        )
    for field, asked, now in (
        ("format", change.format, spec.format),
        ("replication", change.replication, spec.replication),
    ):
        if asked is not UNSET and asked != now:
            was = "the broker's default" if now is None else now
            raise ImmutableField(
                f"The {field} of the channel {channel.name!r} is {was} and stays so; "
                "leave it out, or make a channel of another name."
            )


def _refuse_partitions(channel: Channel, partitions: int) -> None:
    spec = channel.spec
    if partitions < spec.partitions:
        raise PartitionsShrink(
            f"The channel {channel.name!r} has {spec.partitions} partitions and cannot have "
            f"{partitions}: the records of the others would be lost. Ask for {spec.partitions} "
            "or more."
        )
    if spec.pinned:
        raise ChannelPinned(
            f"The channel {channel.name!r} is pinned to {spec.partitions} partitions: growing it "
            "would part records of the same key. Set pinned to false first, if that may happen."
        )


def merged(spec: ChannelSpec, change: Change) -> ChannelSpec:
    """Return the spec with what the change gives; raises InvalidRequest if that cannot be."""
    ms, size = change.retention_ms, change.retention_bytes
    return replace(
        spec,
        compatibility=(
            spec.compatibility if change.compatibility is UNSET else change.compatibility
        ),
        format=spec.format if change.format is UNSET else change.format,
        partitions=spec.partitions if change.partitions is UNSET else change.partitions,
        pinned=spec.pinned if change.pinned is UNSET else change.pinned,
        replication=spec.replication if change.replication is UNSET else change.replication,
        retention=Retention(
            ms=spec.retention.ms if ms is UNSET else ms,
            bytes=spec.retention.bytes if size is UNSET else size,
        ),
        config=spec.config if change.config is UNSET else change.config,
        heartbeat=_merged_heartbeat(spec.heartbeat, change),
        mirrored=spec.mirrored if change.mirrored is UNSET else change.mirrored,
        idle_ms=spec.idle_ms if change.idle_ms is UNSET else change.idle_ms,
    )


def _merged_heartbeat(heartbeat: Heartbeat, change: Change) -> Heartbeat:
    interval_ms, timeout_ms = change.interval_ms, change.timeout_ms
    interval_ms = heartbeat.interval_ms if interval_ms is UNSET else interval_ms
    timeout_ms = heartbeat.timeout_ms if timeout_ms is UNSET else timeout_ms
    if timeout_ms < 3 * interval_ms:
        message = f"{timeout_ms} is less than three intervals of {interval_ms} ms"
        raise InvalidRequest(
            f"An endpoint would be lost before it is suspect: timeout_ms {message}.",
            (Violation(pointer="/spec/heartbeat/timeout_ms", message=message),),
        )
    return Heartbeat(interval_ms=interval_ms, timeout_ms=timeout_ms)


def adopting(
    change: Change,
    observed: ObservedTopic,
    *,
    name: str,
    uid: str,
    schema: SchemaVersion,
    now: datetime,
) -> Channel:
    """Return the channel that `change` makes of a topic that is there.

    It is the topic of this id and no later one of its name. Raises ChannelAdopted where the
    change asks for a topic other than it is.
    """
    of_channel = replace(
        change,
        partitions=UNSET,
        replication=UNSET,
        retention_ms=UNSET,
        retention_bytes=UNSET,
        config=UNSET,
    )
    channel = created(of_channel, name=name, uid=uid, schema=schema, prefix="", now=now)
    channel = replace(
        channel,
        adopted=True,
        topic=TopicRef(name=observed.name, id=observed.id, partitions=observed.partitions),
        spec=followed(channel.spec, observed),
        conditions=tuple(
            replace(each, message=f"The topic {observed.name} is being adopted.")
            for each in channel.conditions
        ),
    )
    refuse_for_adopted(channel, change)
    return channel


def followed(spec: ChannelSpec, observed: ObservedTopic) -> ChannelSpec:
    """Return the spec as the adopted topic has it; settings that no channel has are left out."""
    return replace(
        spec,
        partitions=min(observed.partitions, MAX_PARTITIONS),
        replication=observed.replication or None,
        retention=Retention(
            ms=_number(observed.config, "retention.ms"),
            bytes=_number(observed.config, "retention.bytes"),
        ),
        config=canonical(
            {
                setting: value
                for setting, value in observed.config.items()
                if not refusals({setting: value})
            }
        ),
    )


def _number(config: Mapping[str, str], setting: str) -> int | None:
    return int(config[setting]) if setting in config else None
