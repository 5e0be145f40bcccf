"""A replica's reconciler on a real broker and both databases, with a manual clock."""

import itertools
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gateways import ManualClock
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import (
    Channel,
    ChannelSpec,
    Condition,
    Phase,
    TopicRef,
    topic_name,
)
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.kafka.model import ObservedTopic
from sluiceway_gateway.provisioning.reconciler import ReconcileCounts, Reconciler
from sluiceway_gateway.schemas import store as schemas_store
from waiting import until

RESYNC_S = 30.0
SCHEMA = '{"fields":[{"name":"a","type":"int"}],"name":"R","type":"record"}'
_numbers = itertools.count(1)


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
            "wait": time.sleep,
            # Longer than a gateway's pass, which other passes follow.
            "settle_s": (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 1, 2, 4, 8, 16),
        }
        return Reconciler(**(arguments | changes))

    def run_once(self) -> ReconcileCounts:
        return self.reconciler().run_once()

    def add(self, *, topic: TopicRef | None = None, adopted: bool = False, **spec: Any) -> Channel:
        """Insert a channel's row, as a request does, and return the channel."""
        name, uid = f"channel-{next(_numbers)}", uuid.uuid4().hex
        with self.database.write() as tx:
            schema_id = schemas_store.register(
                tx, fingerprint="one", definition=SCHEMA, now=self.clock.now
            )
            channel = Channel(
                name=name,
                uid=uid,
                labels={},
                generation=1,
                revision=1,
                created_at=self.clock.now,
                spec=ChannelSpec(schema=SCHEMA, **spec),
                schema_id=schema_id,
                schema_version=1,
                phase=Phase.PROVISIONING,
                observed_generation=0,
                conditions=(),
                topic=topic or TopicRef(name=topic_name("rig.", name, uid)),
                adopted=adopted,
            )
            assert channels_store.insert(tx, channel)
        return channel

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
        changed = replace(
            before,
            spec=replace(before.spec, **changes),
            generation=before.generation + 1,
            revision=before.revision + 1,
        )
        return self._save(changed, before)

    def delete(self, channel: Channel, *, keep_topic: bool = False) -> Channel:
        """Start the deletion of the channel, as a request does."""
        before = self.get(channel)
        changed = replace(
            before, phase=Phase.DELETING, keep_topic=keep_topic, revision=before.revision + 1
        )
        return self._save(changed, before)

    def close(self, channel: Channel) -> Channel:
        """Close the channel to writers as a request does."""
        before = self.get(channel)
        return self._save(replace(before, phase=Phase.CLOSED, revision=before.revision + 1), before)

    def _save(self, changed: Channel, was: Channel) -> Channel:
        with self.database.write() as tx:
            assert channels_store.save(tx, changed, was=was, from_phases=(was.phase,))
        return changed

    def topic_id(self, name: str) -> str:
        """Return the id of a newly created topic."""
        topic: ObservedTopic = until(lambda: self.kafka.observe([name]).topics.get(name))
        return topic.id

    def topic(self, channel: Channel) -> ObservedTopic | None:
        return self.kafka.observe([channel.topic.name]).topics.get(channel.topic.name)

    def await_topic(
        self, channel: Channel, condition: Callable[[ObservedTopic | None], bool]
    ) -> None:
        """Wait until the condition is true of the topic in the brokers' metadata."""
        until(lambda: condition(self.topic(channel)))


def condition(channel: Channel, type_: str) -> Condition:
    result = channel.condition(type_)
    assert result is not None, channel.conditions
    return result


def status(channel: Channel, type_: str) -> tuple[str, str]:
    result = condition(channel, type_)
    return result.status, result.reason
