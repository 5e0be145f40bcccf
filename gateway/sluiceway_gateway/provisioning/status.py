"""Reconcile result: phase, conditions and next check of a channel. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from sluiceway_gateway.channels.change import followed
from sluiceway_gateway.channels.model import (
    Channel,
    Condition,
    Phase,
    TopicRef,
    may_become,
    with_condition,
)
from sluiceway_gateway.errors import AccessFailure, Misfit
from sluiceway_gateway.kafka.model import Cause, DesiredTopic, ObservedTopic, Rejection
from sluiceway_gateway.provisioning.plan import AlterConfig, Plan, TopicMatch
from sluiceway_gateway.provisioning.topic_config import topic_overrides

#: How soon to look again where nothing is refused, but something is yet to show.
SOON_S = 1.0
#: The longest pause between tries of something that Kafka refuses.
BACKOFF_MAX_S = 60.0


class Reason(StrEnum):
    """Why a condition stands as it does; stable words of the HTTP interface."""

    PROVISIONING = "Provisioning"
    TOPIC_CREATED = "TopicCreated"
    TOPIC_ADOPTED = "TopicAdopted"
    CLOSING = "Closing"
    CLOSED = "Closed"
    UP_TO_DATE = "UpToDate"
    DRIFT_REVERTED = "DriftReverted"
    PARTITIONS_EXCEED_SPEC = "PartitionsExceedSpec"
    BROKER_UNAVAILABLE = "BrokerUnavailable"
    KAFKA_CREDENTIALS_REFUSED = "KafkaCredentialsRefused"
    KAFKA_CERTIFICATE_REFUSED = "KafkaCertificateRefused"
    KAFKA_PROTOCOL_MISMATCH = "KafkaProtocolMismatch"
    INVALID_REPLICATION = "InvalidReplication"
    CONFIG_REJECTED = "ConfigRejected"
    KAFKA_REFUSED = "KafkaRefused"
    TOPIC_MISSING = "TopicMissing"
    TOPIC_RECREATED = "TopicRecreated"
    DELETING = "Deleting"


_REFUSED: Mapping[Cause, tuple[Reason, str]] = {
    Cause.INVALID_REPLICATION: (
        Reason.INVALID_REPLICATION,
        "delete the channel and ask for fewer replicas, or add brokers",
    ),
    Cause.INVALID_CONFIG: (Reason.CONFIG_REJECTED, "change spec.config or spec.retention"),
    Cause.DENIED: (
        Reason.KAFKA_REFUSED,
        "let the gateway's Kafka user create, alter, describe and delete this topic",
    ),
    Cause.UNAVAILABLE: (Reason.BROKER_UNAVAILABLE, "it is tried again until Kafka does it"),
}
_LOCKED_OUT: Mapping[Misfit, Reason] = {
    Misfit.CREDENTIALS: Reason.KAFKA_CREDENTIALS_REFUSED,
    Misfit.CERTIFICATE: Reason.KAFKA_CERTIFICATE_REFUSED,
    Misfit.PROTOCOL: Reason.KAFKA_PROTOCOL_MISMATCH,
}
#: Others were quicker, or one broker had not heard of it yet; the next look tells.
RACES = frozenset({Cause.TOPIC_EXISTS, Cause.TOPIC_ABSENT, Cause.INVALID_PARTITIONS})


@dataclass(frozen=True, kw_only=True)
class ReconcileResult:
    """`channel` with its new status, or None if its row is to be removed.

    `again_s` is when to look next, None for the usual interval; `refusals` counts the looks in a
    row that did not end well.
    """

    channel: Channel | None
    again_s: float | None = None
    refusals: int = 0


def desired_topic(channel: Channel) -> DesiredTopic:
    """Return what the channel asks of Kafka."""
    spec = channel.spec
    return DesiredTopic(
        name=channel.topic.name,
        id=channel.topic.id,
        partitions=spec.partitions,
        replication=spec.replication,
        config=topic_overrides(
            spec.config, retention_ms=spec.retention.ms, retention_bytes=spec.retention.bytes
        ),
        wanted=channel.phase is not Phase.DELETING,
        owned=not channel.adopted,
    )


def compute_status(
    channel: Channel,
    *,
    refusals: int,
    first: Plan,
    last: Plan,
    observed: ObservedTopic | None,
    rejection: Rejection | None,
    now: datetime,
) -> ReconcileResult:
    """Judge a channel whose topic was looked at, acted upon by `first`, and looked at again.

    `last` is the plan for what was `observed` in the end; `rejection` is what Kafka refused.
    """
    refused = rejection is not None and rejection.cause not in RACES
    if channel.phase is Phase.DELETING and not refused and not last.actions:
        return ReconcileResult(channel=None)
    if last.lost and channel.phase is not Phase.DELETING:
        return _lost(channel, refusals, last.standing, observed, now)
    channel = _with_topic(channel, observed if channel.phase is not Phase.DELETING else None)
    if rejection is not None and refused:
        return unfulfilled(channel, rejection, refusals=refusals, now=now)
    if last.actions:
        return _behind(channel, *_on_the_way(channel), refusals, now)
    synced = _synced(channel, first, last, observed)
    conditions = with_condition(channel.conditions, _ready(channel, now))
    if synced is not None:
        conditions = with_condition(conditions, _condition("Synced", "True", *synced, now))
    return ReconcileResult(
        channel=replace(channel, observed_generation=channel.generation, conditions=conditions)
    )


def unfulfilled(
    channel: Channel, rejection: Rejection, *, refusals: int, now: datetime
) -> ReconcileResult:
    """Judge a channel for whose topic Kafka refused something, be it only to show it."""
    reason, advice = _REFUSED.get(rejection.cause, (Reason.KAFKA_REFUSED, "see the broker's log"))
    message = f"Kafka refuses: {rejection.message.rstrip('. ')}. To do: {advice}."
    return _behind(channel, reason, message, refusals, now)


def unreachable(
    channel: Channel, lockout: AccessFailure | None, *, refusals: int, now: datetime
) -> ReconcileResult:
    """Judge a channel while Kafka as a whole does not answer, or does not let the gateway in.

    One at rest keeps its status: nothing is known against it.
    """
    at_rest = channel.phase in (Phase.READY, Phase.CLOSING, Phase.CLOSED, Phase.FAILED)
    if at_rest and not _has_changes(channel):
        return ReconcileResult(channel=channel, again_s=SOON_S, refusals=refusals)
    reason = away(lockout)
    if lockout is None:
        message = "Kafka does not answer; this goes on by itself when Kafka is back."
    else:
        message = (
            f"Kafka does not let the gateway in: {lockout.words}. This goes on by itself when it "
            "does."
        )
    verdict = _behind(channel, reason, message, refusals, now)
    return replace(verdict, again_s=SOON_S, refusals=refusals)


def away(lockout: AccessFailure | None) -> Reason:
    """Return the word for why Kafka as a whole is of no use."""
    return Reason.BROKER_UNAVAILABLE if lockout is None else _LOCKED_OUT[lockout.misfit]


def _has_changes(channel: Channel) -> bool:
    return channel.generation != channel.observed_generation


def _with_topic(channel: Channel, observed: ObservedTopic | None) -> Channel:
    """Record the topic; with all its partitions there, it can be used."""
    if observed is None:
        return channel
    if channel.adopted:
        channel = replace(channel, spec=followed(channel.spec, observed))
    usable = observed.partitions >= channel.spec.partitions or channel.phase is not (
        Phase.PROVISIONING
    )
    return replace(
        channel,
        topic=TopicRef(name=channel.topic.name, id=observed.id, partitions=observed.partitions),
        phase=Phase.READY if usable and may_become(channel.phase, Phase.READY) else channel.phase,
    )


def _lost(
    channel: Channel,
    refusals: int,
    standing: TopicMatch,
    observed: ObservedTopic | None,
    now: datetime,
) -> ReconcileResult:
    if refusals == 0 and channel.phase is not Phase.FAILED:
        # One look may have met a broker that lags behind; only two in a row count.
        return ReconcileResult(channel=channel, again_s=SOON_S, refusals=1)
    name, recorded = channel.topic.name, channel.topic.id
    again = "adopt a topic again" if channel.adopted else "create it again"
    if standing is TopicMatch.VANISHED or observed is None:
        reason = Reason.TOPIC_MISSING
        message = (
            f"The topic {name} (id {recorded}) was deleted outside Sluiceway; its records are "
            f"gone. It is not made anew by itself: delete the channel and {again}."
        )
    else:
        reason = Reason.TOPIC_RECREATED
        message = (
            f"The topic {name} was made anew outside Sluiceway: its id is {observed.id}, the "
            f"channel's is {recorded}. It is left alone: delete the channel and {again}."
        )
    conditions = channel.conditions
    for type_ in ("Ready", "Synced"):
        conditions = with_condition(conditions, _condition(type_, "False", reason, message, now))
    # One that is closed or closing stays so: its condition alone says that it cannot be read.
    phase = Phase.FAILED if may_become(channel.phase, Phase.FAILED) else channel.phase
    return ReconcileResult(
        channel=replace(channel, phase=phase, conditions=conditions), refusals=refusals
    )


def _behind(
    channel: Channel, reason: Reason, message: str, refusals: int, now: datetime
) -> ReconcileResult:
    conditions = with_condition(
        channel.conditions, _condition("Synced", "False", reason, message, now)
    )
    if channel.phase is Phase.PROVISIONING:
        ready = _condition("Ready", "False", reason, message, now)
        conditions = with_condition(conditions, ready)
    elif channel.phase not in (Phase.FAILED, Phase.CLOSING, Phase.CLOSED):
        conditions = with_condition(conditions, _ready(channel, now))
    return ReconcileResult(
        channel=replace(channel, conditions=conditions),
        again_s=min(SOON_S * 2.0 ** min(refusals, 30), BACKOFF_MAX_S),
        refusals=refusals + 1,
    )


def _on_the_way(channel: Channel) -> tuple[Reason, str]:
    if channel.phase is Phase.DELETING:
        return Reason.DELETING, f"The topic {channel.topic.name} is being deleted."
    return Reason.PROVISIONING, f"The topic {channel.topic.name} is being brought up to its spec."


def _ready(channel: Channel, now: datetime) -> Condition:
    name = channel.topic.name
    if channel.phase is Phase.DELETING:
        return _condition("Ready", "False", Reason.DELETING, "The channel is being deleted.", now)
    if channel.phase is Phase.CLOSING:
        message = "The channel is closing: its writers finish, its records are read."
        return _condition("Ready", "True", Reason.CLOSING, message, now)
    if channel.phase is Phase.CLOSED:
        message = "The channel is closed: its records are read, nobody writes any more."
        return _condition("Ready", "True", Reason.CLOSED, message, now)
    if channel.phase is Phase.READY:
        reason = Reason.TOPIC_ADOPTED if channel.adopted else Reason.TOPIC_CREATED
        return _condition("Ready", "True", reason, f"The topic {name} is there.", now)
    message = f"The topic {name} is being made."
    return _condition("Ready", "False", Reason.PROVISIONING, message, now)


def _synced(
    channel: Channel, first: Plan, last: Plan, observed: ObservedTopic | None
) -> tuple[Reason, str] | None:
    """Say how the topic came to be as asked; None where that was said before."""
    if channel.adopted:
        return Reason.UP_TO_DATE, "The topic is left as it is; the spec follows it."
    changes = [each for each in first.actions if isinstance(each, AlterConfig)]
    at_rest = not _has_changes(channel)
    if changes and at_rest:
        names = ", ".join(changes[0].names)
        return Reason.DRIFT_REVERTED, f"Changed outside Sluiceway, set back to the spec: {names}."
    if last.surplus_partitions and observed is not None:
        return Reason.PARTITIONS_EXCEED_SPEC, (
            f"The topic has {observed.partitions} partitions, {channel.spec.partitions} are asked "
            "for. Partitions are never taken away: ask for as many as there are to settle this."
        )
    before = channel.condition("Synced")
    if at_rest and before and (before.status, before.reason) == ("True", Reason.DRIFT_REVERTED):
        return None
    return Reason.UP_TO_DATE, "The topic is as the spec asks."


def _condition(
    type_: str, status: Literal["True", "False"], reason: Reason, message: str, now: datetime
) -> Condition:
    return Condition(
        type=type_,
        status=status,
        reason=str(reason),
        message=message,
        last_transition_at=now,
    )
