import time
from collections.abc import Callable, Iterator

import pytest

from databases import Databases, SQLite
from reconciler_rig import RESYNC_S, Rig, condition, status
from relay import Relay
from sluiceway_gateway.channels.model import Channel, Phase
from sluiceway_gateway.core.clock import system_clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.cluster_identity import ClusterIdentity
from sluiceway_gateway.core.kafka.cluster_store import replace_id


@pytest.fixture
def databases(sqlite: SQLite) -> Databases:
    """SQLite only: these tests do not depend on the database."""
    return sqlite


@pytest.fixture
def rig(database: Database, fragile_kafka: Relay) -> Iterator[Rig]:
    """A rig whose connection to Kafka the test can cut."""
    kafka = KafkaAdmin(fragile_kafka.address, timeout_s=1)
    yield Rig(database=database, kafka=kafka)
    kafka.close()


def ready(rig: Rig) -> Channel:
    """Add a channel, and run passes until it is ready: a request may take more than its second."""
    channel = rig.add()
    run_until(rig, lambda: rig.get(channel).phase is Phase.READY)
    return rig.get(channel)


def run_until(rig: Rig, condition_met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not condition_met():
        assert time.monotonic() < deadline
        rig.run_once()
        rig.clock.advance(1)


@pytest.mark.long
def test_channels_wait_for_kafka_and_continue_when_it_returns(
    rig: Rig, fragile_kafka: Relay
) -> None:
    fragile_kafka.cut()
    new = rig.add()
    assert rig.run_once().unreachable == 1
    provisioning = rig.get(new)
    assert provisioning.phase is Phase.PROVISIONING
    assert (
        status(provisioning, "Ready")
        == status(provisioning, "Synced")
        == ("False", "BrokerUnavailable")
    )
    assert "until Kafka is back" in condition(provisioning, "Ready").message
    rig.clock.advance(1)
    assert rig.run_once().unreachable == 1
    assert rig.get(new) == provisioning, "a continued outage must change nothing"

    fragile_kafka.restore()
    run_until(rig, lambda: rig.get(new).phase is Phase.READY)
    assert status(rig.get(new), "Synced") == ("True", "UpToDate")
    doomed, settled, grown = ready(rig), ready(rig), ready(rig)

    fragile_kafka.cut()
    rig.delete(doomed)
    rig.change_spec(grown, partitions=2)
    rig.clock.advance(RESYNC_S)
    assert rig.run_once().unreachable == 4
    assert rig.get(settled) == settled, "a settled channel must not change"
    assert rig.get(doomed).phase is Phase.DELETING
    assert status(rig.get(doomed), "Synced") == ("False", "BrokerUnavailable")
    assert status(rig.get(grown), "Ready") == ("True", "TopicCreated")
    assert status(rig.get(grown), "Synced") == ("False", "BrokerUnavailable")

    fragile_kafka.restore()
    run_until(rig, lambda: rig.find(doomed) is None)
    run_until(rig, lambda: rig.get(grown).observed_generation == 2)
    assert rig.topic(doomed) is None
    assert rig.get(grown).topic.partitions == 2
    assert rig.get(settled).topic == settled.topic


def test_a_channel_without_its_topic_can_be_removed_without_kafka(
    rig: Rig, fragile_kafka: Relay
) -> None:
    fragile_kafka.cut()
    channel = rig.add()
    rig.delete(channel, keep_topic=True)
    assert rig.run_once().removed == 1
    assert rig.find(channel) is None


def test_a_hanging_broker_does_not_block_the_pass(rig: Rig, fragile_kafka: Relay) -> None:
    ready(rig)
    waiting = rig.add()
    with fragile_kafka.stalled():
        began = time.monotonic()
        assert rig.run_once().unreachable == 1
        # librdkafka's own timeout is a minute.
        assert time.monotonic() - began < 40
        assert status(rig.get(waiting), "Ready") == ("False", "BrokerUnavailable")
    run_until(rig, lambda: rig.get(waiting).phase is Phase.READY)


def test_in_another_cluster_nothing_is_created_and_no_channel_fails(
    database: Database, fragile_kafka: Relay
) -> None:
    identity = ClusterIdentity(database, accepted=None, clock=system_clock)
    kafka = KafkaAdmin(fragile_kafka.address, identity=identity)
    rig = Rig(database=database, kafka=kafka)
    settled, grown, doomed = rig.ready(), rig.ready(), rig.ready()
    new = rig.add()
    cluster_id = kafka.describe_cluster().cluster_id
    assert cluster_id is not None

    def move(was: str, to: str) -> None:
        with database.write() as tx:
            assert replace_id(tx, to, was=was, now=rig.clock.now)

    move(cluster_id, "elsewhere")
    rig.change_spec(grown, partitions=2)
    rig.delete(doomed)
    for _ in range(3):
        rig.clock.advance(RESYNC_S)
        counts = rig.run_once()
        assert (counts.unreachable, counts.created, counts.deleted) == (4, 0, 0)
    assert rig.get(settled) == settled, "a settled channel must not change"
    assert rig.get(doomed).phase is Phase.DELETING
    assert status(rig.get(new), "Ready") == ("False", "WrongKafkaCluster")
    assert rig.get(grown).phase is Phase.READY
    assert status(rig.get(grown), "Synced") == ("False", "WrongKafkaCluster")
    message = condition(rig.get(grown), "Synced").message
    assert f"set SLUICEWAY_KAFKA_CLUSTER_ID={cluster_id}" in message

    move("elsewhere", cluster_id)
    run_until(rig, lambda: rig.find(doomed) is None)
    assert rig.get(new).phase is Phase.READY
    assert rig.get(grown).topic.partitions == 2
    assert rig.get(settled).topic == settled.topic
    kafka.close()
