"""Reconcile result: phase, conditions and next check of a channel. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from sluiceway_gateway.channels.change import followed
from sluiceway_gateway.channels.model import Channel, Delivery, Phase, TopicRef, may_become
from sluiceway_gateway.core.errors import AccessFailure, AccessProblem
from sluiceway_gateway.core.kafka.model import (
    AlterConfig,
    Cause,
    DesiredTopic,
    ObservedTopic,
    Reason,
    Rejection,
    unavailable_reason,
)
from sluiceway_gateway.provisioning.topic import Plan, TopicMatch, topic_overrides

#: Pause before the next check while a change is not visible yet.
SOON_S = 1.0
#: Longest pause between retries after a refusal.
BACKOFF_MAX_S = 60.0


_REFUSED: Mapping[Cause, tuple[Reason, str]] = {
    Cause.INVALID_REPLICATION: (
        Reason.INVALID_REPLICATION,
        "delete the channel and request fewer replicas, or add brokers",
    ),
    Cause.INVALID_CONFIG: (
        Reason.CONFIG_REJECTED,
        "change spec.config or spec.retention, as with `sluiceway channels update NAME --config "
        "KEY=VALUE`",
    ),
    Cause.DENIED: (
        Reason.KAFKA_REFUSED,
        "let the gateway's Kafka user create, alter, describe and delete this topic",
    ),
    Cause.UNAVAILABLE: (Reason.BROKER_UNAVAILABLE, "the gateway retries until Kafka accepts it"),
}
#: Caused by another process, or by stale metadata of a broker; the next check resolves it.
RACES = frozenset({Cause.TOPIC_EXISTS, Cause.TOPIC_ABSENT, Cause.INVALID_PARTITIONS})


@dataclass(frozen=True, kw_only=True)
class ReconcileResult:
    """`channel` with its new status, or None if its row is to be deleted.

    `next_check_s` is the pause before the next check, None for the resync interval; `refusals` is
    the number of consecutive checks that failed.
    """

    channel: Channel | None
    next_check_s: float | None = None
    refusals: int = 0


def desired_topic(channel: Channel) -> DesiredTopic:
    """Return the topic that the channel specifies."""
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
        exactly_once=channel.spec.delivery is Delivery.EXACTLY_ONCE,
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
    """Return the status of a channel after the actions of plan `first` were applied.

    `observed` is the topic afterwards, `last` the plan for it, `rejection` Kafka's refusal.
    """
    refused = rejection is not None and rejection.cause not in RACES
    if channel.phase is Phase.DELETING and not refused and not last.actions:
        if refusals == 0 and first.match is last.match is TopicMatch.VANISHED:
            # A single broker may have stale metadata, and only the row refers to the topic.
            return ReconcileResult(channel=channel, next_check_s=SOON_S, refusals=1)
        return ReconcileResult(channel=None)
    if last.lost and channel.phase is not Phase.DELETING:
        return _topic_lost(channel, refusals, last.match, observed, now)
    channel = _with_topic(channel, observed if channel.phase is not Phase.DELETING else None)
    if rejection is not None and refused:
        return unfulfilled(channel, rejection, refusals=refusals, now=now)
    if last.actions:
        return _not_synced(channel, *_in_progress(channel), refusals, now)
    synced = _synced(channel, first, last, observed)
    channel = channel.with_condition("Ready", *_ready(channel), now)
    if synced is not None:
        channel = channel.with_condition("Synced", "True", *synced, now)
    return ReconcileResult(channel=replace(channel, observed_generation=channel.generation))


def unfulfilled(
    channel: Channel, rejection: Rejection, *, refusals: int, now: datetime
) -> ReconcileResult:
    """Return the status of a channel whose topic Kafka refuses to describe or change."""
    reason, advice = _REFUSED.get(rejection.cause, (Reason.KAFKA_REFUSED, "see the broker's log"))
    message = f"Kafka refuses: {rejection.message.rstrip('. ')}. To do: {advice}."
    return _not_synced(channel, reason, message, refusals, now)


def unreachable(
    channel: Channel, failure: AccessFailure | None, *, refusals: int, now: datetime
) -> ReconcileResult:
    """Return the status of a channel while Kafka does not answer or refuses access.

    A channel without pending changes keeps its status.
    """
    at_rest = channel.phase in (Phase.READY, Phase.CLOSING, Phase.CLOSED, Phase.FAILED)
    if at_rest and not _has_changes(channel):
        return ReconcileResult(channel=channel, next_check_s=SOON_S, refusals=refusals)
    reason = unavailable_reason(failure)
    if failure is None:
        message = "Kafka does not answer. The gateway retries until Kafka is back."
    elif failure.problem is AccessProblem.CLUSTER:
        message = f"The gateway does nothing in Kafka: {failure.message}."
    else:
        message = (
            f"Kafka refuses the gateway: {failure.message}. The gateway retries until "
            "Kafka accepts it."
        )
    result = _not_synced(channel, reason, message, refusals, now)
    return replace(result, next_check_s=SOON_S, refusals=refusals)


def _has_changes(channel: Channel) -> bool:
    return channel.generation != channel.observed_generation


def _with_topic(channel: Channel, observed: ObservedTopic | None) -> Channel:
    """Record the topic; the channel becomes ready once all partitions exist."""
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


def _topic_lost(
    channel: Channel,
    refusals: int,
    match: TopicMatch,
    observed: ObservedTopic | None,
    now: datetime,
) -> ReconcileResult:
    if refusals == 0 and channel.phase is not Phase.FAILED:
        # A single broker may have stale metadata, so two consecutive checks must agree.
        return ReconcileResult(channel=channel, next_check_s=SOON_S, refusals=1)
    name, recorded = channel.topic.name, channel.topic.id
    again = "adopt a topic again" if channel.adopted else "create it again"
    remedy = f"delete the channel (`sluiceway channels delete {channel.name}`) and {again}"
    if match is TopicMatch.VANISHED or observed is None:
        reason = Reason.TOPIC_MISSING
        message = (
            f"The topic {name} (id {recorded}) was deleted outside Sluiceway; its records are "
            f"gone. The gateway does not recreate it: {remedy}."
        )
    else:
        reason = Reason.TOPIC_RECREATED
        message = (
            f"The topic {name} was recreated outside Sluiceway: its id is {observed.id}, the "
            f"channel's is {recorded}. The gateway does not change it: {remedy}."
        )
    for type_ in ("Ready", "Synced"):
        channel = channel.with_condition(type_, "False", reason, message, now)
    # A closing or closed channel keeps its phase; only the condition reports the loss.
    phase = Phase.FAILED if may_become(channel.phase, Phase.FAILED) else channel.phase
    return ReconcileResult(channel=replace(channel, phase=phase), refusals=refusals)


def _not_synced(
    channel: Channel, reason: Reason, message: str, refusals: int, now: datetime
) -> ReconcileResult:
    channel = channel.with_condition("Synced", "False", reason, message, now)
    if channel.phase is Phase.PROVISIONING:
        channel = channel.with_condition("Ready", "False", reason, message, now)
    elif channel.phase not in (Phase.FAILED, Phase.CLOSING, Phase.CLOSED):
        channel = channel.with_condition("Ready", *_ready(channel), now)
    return ReconcileResult(
        channel=channel,
        next_check_s=min(SOON_S * 2.0 ** min(refusals, 30), BACKOFF_MAX_S),
        refusals=refusals + 1,
    )


def _in_progress(channel: Channel) -> tuple[Reason, str]:
    if channel.phase is Phase.DELETING:
        return Reason.DELETING, f"The topic {channel.topic.name} is being deleted."
    return (
        Reason.PROVISIONING,
        f"The topic {channel.topic.name} is being updated to match the spec.",
    )


def _ready(channel: Channel) -> tuple[Literal["True", "False"], Reason, str]:
    """Return status, reason and message of `Ready`."""
    name = channel.topic.name
    if channel.phase is Phase.DELETING:
        return "False", Reason.DELETING, "The channel is being deleted."
    if channel.phase is Phase.CLOSING:
        return "True", Reason.CLOSING, "The channel is closing."
    if channel.phase is Phase.CLOSED:
        message = "The channel is closed: its records can be read, but new writers are refused."
        return "True", Reason.CLOSED, message
    if channel.phase is Phase.READY:
        reason = Reason.TOPIC_ADOPTED if channel.adopted else Reason.TOPIC_CREATED
        return "True", reason, f"The topic {name} exists."
    return "False", Reason.PROVISIONING, f"The topic {name} is being created."


def _synced(
    channel: Channel, first: Plan, last: Plan, observed: ObservedTopic | None
) -> tuple[Reason, str] | None:
    """Return reason and message of `Synced`; None to keep the current ones."""
    if channel.adopted:
        return Reason.UP_TO_DATE, "The topic is adopted; the spec follows it."
    changes = [action for action in first.actions if isinstance(action, AlterConfig)]
    at_rest = not _has_changes(channel)
    if changes and at_rest:
        names = ", ".join(changes[0].names)
        return (Reason.DRIFT_REVERTED, f"Changed outside Sluiceway, and reverted: {names}.")
    if last.surplus_partitions and observed is not None:
        return Reason.PARTITIONS_EXCEED_SPEC, (
            f"The topic has {observed.partitions} partitions instead of "
            f"{channel.spec.partitions}. Partitions cannot be removed: set spec.partitions to "
            f"{observed.partitions} (`sluiceway channels update {channel.name} --partitions "
            f"{observed.partitions}`)."
        )
    before = channel.condition("Synced")
    if at_rest and before and (before.status, before.reason) == ("True", Reason.DRIFT_REVERTED):
        return None
    return Reason.UP_TO_DATE, "The topic matches the spec."
