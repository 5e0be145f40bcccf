"""Adopting a topic that was there before the channel: it is looked at, and never touched. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from sluiceway_gateway.channels.change import UNSET, Change, created, refuse_for_adopted
from sluiceway_gateway.channels.model import (
    MAX_PARTITIONS,
    Channel,
    ChannelSpec,
    Retention,
    SchemaVersion,
    TopicRef,
)
from sluiceway_gateway.kafka.model import ObservedTopic
from sluiceway_gateway.provisioning.topic_config import canonical, refusals


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
