"""Making, changing and deleting a channel: what is asked, and whether the state allows it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Final

from sluiceway_gateway.domain.channel import (
    Channel,
    ChannelSpec,
    Compatibility,
    Condition,
    Format,
    Phase,
    Retention,
    TopicRef,
    may_become,
    topic_name,
    with_condition,
)
from sluiceway_gateway.domain.errors import (
    ChannelDeleting,
    ChannelPinned,
    ImmutableField,
    PartitionsShrink,
    SchemaChanged,
)


class Unset(Enum):
    """The type of UNSET."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
"""In the place of a field that the request leaves out."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a request asks of a channel; fields left out keep their values, or take defaults."""

    labels: Mapping[str, str] | Unset = UNSET
    schema: str | Unset = UNSET
    compatibility: Compatibility | Unset = UNSET
    format: Format | Unset = UNSET
    partitions: int | Unset = UNSET
    pinned: bool | Unset = UNSET
    replication: int | Unset | None = UNSET
    retention_ms: int | Unset | None = UNSET
    retention_bytes: int | Unset | None = UNSET
    config: Mapping[str, str] | Unset = UNSET


def created(
    change: Change, *, name: str, uid: str, schema: str, schema_id: int, prefix: str, now: datetime
) -> Channel:
    """Return the channel that `change` makes where there is none."""
    waiting = Condition(
        type="Ready",
        status="False",
        reason="Provisioning",
        message="The channel's topic is not made yet; it will be in a moment.",
        last_transition_at=now,
    )
    default = ChannelSpec(schema=schema)
    return Channel(
        name=name,
        uid=uid,
        labels={} if change.labels is UNSET else change.labels,
        generation=1,
        revision=1,
        created_at=now,
        spec=_merged(default, change),
        schema_id=schema_id,
        schema_version=1,
        phase=Phase.PROVISIONING,
        observed_generation=0,
        conditions=tuple(replace(waiting, type=each) for each in ("Ready", "Synced")),
        topic=TopicRef(name=topic_name(prefix, name, uid)),
    )


def changed(channel: Channel, change: Change) -> Channel:
    """Return the channel after `change`: itself, if that changes nothing.

    Raises the Conflict that stands against it.
    """
    if channel.phase is Phase.DELETING:
        raise ChannelDeleting(
            f"The channel {channel.name!r} is being deleted; try again when it is gone."
        )
    spec = channel.spec
    _refuse_replacement(channel, change)
    if change.partitions is not UNSET and change.partitions != spec.partitions:
        _refuse_partitions(channel, change.partitions)
    labels = channel.labels if change.labels is UNSET else change.labels
    following = replace(channel, spec=_merged(spec, change), labels=labels)
    if following == channel:
        return channel
    return replace(following, generation=channel.generation + 1, revision=channel.revision + 1)


def deleted(channel: Channel, *, keep_topic: bool, now: datetime) -> Channel:
    """Return the channel on its way out: itself, if it is already, in the same way."""
    if channel.phase is Phase.DELETING:
        if channel.keep_topic != keep_topic:
            way = "keeping its topic" if channel.keep_topic else "together with its topic"
            raise ChannelDeleting(f"The channel {channel.name!r} is being deleted already, {way}.")
        return channel
    assert may_become(channel.phase, Phase.DELETING)  # noqa: S101 - the table has it from all
    condition = Condition(
        type="Ready",
        status="False",
        reason="Deleting",
        message="The channel is being deleted"
        + ("; its topic stays." if keep_topic else ", and its topic with it."),
        last_transition_at=now,
    )
    return replace(
        channel,
        phase=Phase.DELETING,
        keep_topic=keep_topic,
        revision=channel.revision + 1,
        conditions=with_condition(channel.conditions, condition),
    )


def _refuse_replacement(channel: Channel, change: Change) -> None:
    spec = channel.spec
    if change.schema is not UNSET and change.schema != spec.schema:
        raise SchemaChanged(
            f"The channel {channel.name!r} has another schema than the request; "
            "leave the schema out, or make a channel of another name."
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


def _merged(spec: ChannelSpec, change: Change) -> ChannelSpec:
    """Return the spec with what the change gives."""
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
    )
