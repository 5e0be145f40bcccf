"""`sluiceway offsets import`: the plan, the question, and the import."""

import io
import uuid
from collections.abc import Callable

import confluent_kafka
from confluent_kafka import TopicPartition

from processes import Run
from shared_kafka import SharedKafka
from sluiceway import Gateway
from topics import Topics


def test_offsets_of_groups_are_imported_after_their_plan(
    command: Callable[..., Run], kafka: SharedKafka, gateway_url: str
) -> None:
    name, group = f"orders-{uuid.uuid4().hex[:8]}", f"billing-{uuid.uuid4().hex[:8]}"
    topics = Topics(kafka.bootstrap_servers)
    topics.create(name, 2)
    topics.produce(name, 0, [b"m"] * 5)
    done = command(
        *("channels", "create", name, "--topic", name, "--format", "bytes"),
        *("--partitioner", "consistent_random"),
    )
    assert done.status == 0, done.err
    tool = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 3}
    )
    tool.commit(offsets=[TopicPartition(name, 0, 3)], asynchronous=False)
    tool.close()
    importing = ("offsets", "import", name, "--from-kafka", "--group", group)

    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(name)
        assert channel.partitioner == "consistent_random"
        refused = command(*importing, stdin=io.StringIO("n\n"))
        assert (refused.status, channel.committed(group)) == (1, {})
        heads, first, second = refused.out.splitlines()
        assert heads.split() == [
            "GROUP",
            "PARTITION",
            "IN",
            "KAFKA",
            "HERE",
            "AFTER",
            "LAG",
            "NOTE",
        ]
        assert first.split() == [group, "0", "3", "3", "2"]
        assert second.split() == [group, "1", "no", "offset", "in", "Kafka"]

        done = command(*importing, "--yes")
        assert done.status == 0
        assert done.out.endswith(f"imported the positions of {group} in the channel {name}\n")
        assert {p: at.offset for p, at in channel.committed(group).items()} == {0: 3}
        again = command(*importing)
        assert again.status == 0
        assert again.out.endswith("there is nothing to import\n")
        assert "kept: read as far here" in again.out

    refused = command(*importing[:-1], "nobody", "--yes")
    assert refused.status == 1
    assert "Kafka's group 'nobody' has no committed offset" in refused.err
    command(*importing, "--group", "more", "--kafka-group", "g").failed("one group", status=2)
    command("offsets", "import", name, "--group", group).failed("--from-kafka", status=2)
