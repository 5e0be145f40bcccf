"""A replica's reconciler on a real broker and both databases, with a manual clock."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gateways import ManualClock, insert_channel
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel, Condition, Phase
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import ObservedTopic
from sluiceway_gateway.ledger.pruning import delete_history
from sluiceway_gateway.provisioning.reconciler import ReconcileCounts, Reconciler
from waiting import until

RESYNC_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Rig:
    """A gateway's database and Kafka, and the reconciler between them."""

    database: Database
    kafka: KafkaAdmin
    # In the past: Kafka refuses messages with timestamps in the future.
    clock: ManualClock = field(
        default_factory=lambda: ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    )

    def reconciler(self, **changes: Any) -> Reconciler:
        arguments: dict[str, Any] = {
            "database": self.database,
            "kafka": self.kafka,
            "clock": self.clock,
            "resync_s": RESYNC_S,
            "delete_history": delete_history,
            "wait": time.sleep,
            # Longer than a gateway's pass, which other passes follow.
            "settle_s": (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 1, 2, 4, 8, 16),
        }
        return Reconciler(**(arguments | changes))

    def run_once(self) -> ReconcileCounts:
        return self.reconciler().run_once()

    def add(self, **options: Any) -> Channel:
        """Insert a channel's row, as a request does, and return the channel."""
        return insert_channel(self.database, self.clock.now, **options)

    def ready(self, **spec: Any) -> Channel:
        """Add a channel and create its topic."""
        channel = self.add(**spec)
        self.run_once()
        ready = self.get(channel)
        assert ready.phase is Phase.READY, ready
        return ready

    def get(self, channel: Channel) -> Channel:
        channel_now = self.find(channel)
        assert channel_now is not None
        return channel_now

    def find(self, channel: Channel) -> Channel | None:
        with self.database.read() as tx:
            return channels_store.find(tx, channel.name)

    def change_spec(self, channel: Channel, **changes: Any) -> Channel:
        """Change the channel's spec as a request does."""
        before = self.get(channel)
        spec = before.spec.model_copy(update=changes)
        return self.change(channel, spec=spec, generation=before.generation + 1)

    def delete(self, channel: Channel, *, keep_topic: bool = False) -> Channel:
        """Start the deletion of the channel, as a request does."""
        return self.change(channel, phase=Phase.DELETING, keep_topic=keep_topic)

    def change(self, channel: Channel, **changes: Any) -> Channel:
        """Save a new revision of the channel."""
        before = self.get(channel)
        changed = replace(before, revision=before.revision + 1, **changes)
        with self.database.write() as tx:
            assert channels_store.save(tx, changed, was=before, from_phases=(before.phase,))
        return changed

    def created(self, name: str) -> ObservedTopic:
        """Wait until the brokers' metadata has a newly created topic."""
        return until(lambda: self.kafka.observe([name]).topics.get(name))

    def topic(self, channel: Channel) -> ObservedTopic | None:
        return self.kafka.observe([channel.topic.name]).topics.get(channel.topic.name)

    def await_topic(self, channel: Channel, condition: Callable[..., bool]) -> None:
        """Wait until the condition is true of the topic in the brokers' metadata."""
        until(lambda: condition(self.topic(channel)))


def condition(channel: Channel, type_: str) -> Condition:
    result = channel.condition(type_)
    assert result is not None, channel.conditions
    return result


def status(channel: Channel, type_: str) -> tuple[str, str]:
    result = condition(channel, type_)
    return result.status, result.reason
