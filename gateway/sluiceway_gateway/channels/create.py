"""Making a channel's row, with a topic of its own or with one that is adopted."""

import uuid
from dataclasses import replace
from datetime import datetime

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.change import UNSET, Change, created
from sluiceway_gateway.channels.model import Channel, Compatibility, Format, SchemaVersion
from sluiceway_gateway.db.engine import WriteTransaction
from sluiceway_gateway.domain.adoption import adopting
from sluiceway_gateway.domain.errors import (
    ConcurrentChange,
    ImmutableField,
    InvalidRequest,
    TopicTaken,
    Violation,
)
from sluiceway_gateway.kafka.model import ObservedTopic
from sluiceway_gateway.schemas import store as schemas_store
from sluiceway_gateway.schemas.service import ParsedSchema, schema_for, version_of
from sluiceway_gateway.store import kept_schemas
from sluiceway_gateway.store.kept_schemas import KeptTopic


def create(
    tx: WriteTransaction,
    name: str,
    change: Change,
    *,
    schema: ParsedSchema | None,
    observed: ObservedTopic | None,
    prefix: str,
    now: datetime,
) -> Channel | None:
    """Add the channel; None if its name, or the topic, was taken meanwhile.

    `observed` is the topic to adopt, if the change names one. Raises InvalidRequest without a
    schema, TopicTaken, and the Conflict that stands between the topic and what is asked.
    """
    uid = uuid.uuid4().hex
    if observed is None:
        if isinstance(change.topic, str):
            raise ConcurrentChange(
                f"The channel {name!r} was deleted at the same time; send the request again."
            )
        version = _version(tx, name, schema, kept=(), change=change, now=now)
        channel = created(change, name=name, uid=uid, schema=version, prefix=prefix, now=now)
        kept: tuple[SchemaVersion, ...] = ()
    else:
        _require_free(tx, observed.name)
        before = kept_schemas.find(tx, observed.id)
        change = _with_format(change, before, observed.name)
        kept = before.versions if before is not None else ()
        version = _version(tx, name, schema, kept=kept, change=change, now=now)
        channel = adopting(change, observed, name=name, uid=uid, schema=version, now=now)
    if not channels_store.insert(tx, channel):
        return None
    for each in dict.fromkeys((*kept, version)):
        schemas_store.assign(tx, channel_uid=uid, version=each)
    if channel.topic.id is not None:
        kept_schemas.remove(tx, channel.topic.id)
    return channel


def _version(
    tx: WriteTransaction,
    name: str,
    schema: ParsedSchema | None,
    *,
    kept: tuple[SchemaVersion, ...],
    change: Change,
    now: datetime,
) -> SchemaVersion:
    """Return the version that the channel begins with: the newest kept one if none is given."""
    if schema is None and kept:
        return kept[-1]
    schema = schema_for(schema, Format.AVRO if change.format is UNSET else change.format)
    if schema is None:
        raise InvalidRequest(
            f"There is no channel {name!r}, and making one needs a schema: give spec.schema, "
            "or the format bytes.",
            (Violation(pointer="/spec/schema", message="needed to make a channel"),),
        )
    rule = change.compatibility
    rule = Compatibility.BACKWARD if rule is UNSET else rule
    return version_of(tx, schema, kept=kept, rule=rule, now=now)


def _require_free(tx: WriteTransaction, topic: str) -> None:
    owner = channels_store.name_of_topic(tx, topic)
    if owner is not None:
        raise TopicTaken(
            f"The topic {topic!r} belongs to the channel {owner!r}: use that channel, or delete "
            "it first, keeping its topic, and wait until it is gone."
        )


def _with_format(change: Change, before: KeptTopic | None, topic: str) -> Change:
    """Return the change with the format that the topic's records are known to have."""
    if before is None:
        return change
    if change.format is not UNSET and change.format is not before.format:
        raise ImmutableField(
            f"The records in the topic {topic!r} have the format {before.format}: leave "
            "spec.format out."
        )
    return replace(change, format=before.format)
