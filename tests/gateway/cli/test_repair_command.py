"""`sluiceway channels repair`, and readers and writers of a halted channel."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from broker_calls import broker_at, fetch
from databases import SQLite
from gateways import running
from ledger_sites import LedgerSite, halt_ledger, lose_records
from processes import Run, Sluiceway, Terminal
from shared_kafka import SharedKafka
from sluiceway import Channel, Gateway
from sluiceway.broker.exceptions import UnknownTopicOrPartition
from sluiceway.errors import Conflict
from sluiceway.spark.datasource import ChannelDataSource
from sluiceway.spark.microbatch import UnlimitedStreamReader
from sluiceway_gateway.channels.model import Phase, TopicRef
from sluiceway_gateway.core.db.engine import Database
from topics import DEFINITION, Topics, readings
from waiting import until

Command = Callable[..., Run]


@pytest.fixture
def site(kafka: SharedKafka, sqlite: SQLite) -> Iterator[LedgerSite]:
    """A channel with an empty topic."""
    url, servers = sqlite.migrated(), kafka.bootstrap_servers
    name = f"repaired-{uuid.uuid4().hex[:8]}"
    topic = TopicRef(name=name, id=Topics(servers).create(name), partitions=1)
    database = Database(url)
    options = {"kafka_bootstrap_servers": servers, "kafka_timeout_ms": 20_000}
    with running(database, url, **options) as rig:
        response = rig.put(name, schema=DEFINITION, delivery="exactly_once")
        assert response.status_code == 201, response.text
        uid = rig.observe(name, Phase.READY, topic=topic).uid
        yield LedgerSite(rig=rig, name=name, uid=uid, topic=topic)
    database.close()


@pytest.fixture
def channel(site: LedgerSite) -> Iterator[Channel]:
    with Gateway(site.rig.url) as gateway:
        yield gateway.channel(site.name)


@pytest.fixture
def command(sluiceway: Sluiceway, site: LedgerSite) -> Command:
    return partial(sluiceway, "channels", url=site.rig.url)


def ids(channel: Channel) -> list[int]:
    with channel.reader(until="now") as reader:
        return [record["id"] for record in reader]


@contextmanager
def running_query(site: LedgerSite) -> Iterator[UnlimitedStreamReader]:
    """The planner of a streaming query of Spark."""
    source = ChannelDataSource({"path": site.name}, gateway_url=site.rig.url)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, UnlimitedStreamReader)
    yield reader
    reader.stop()


def test_a_halted_channel_is_repaired_and_read_and_written_again(
    site: LedgerSite, channel: Channel, command: Command
) -> None:
    with channel.writer() as writer:
        writer.write(readings(10))
    with (
        channel.reader(until=None) as reader,
        broker_at(site.rig.url) as broker,
        running_query(site) as query,
    ):
        assert len(reader.read(10, timeout=None)) == 10
        assert len(fetch(broker, channel).messages) == 10
        checkpoint = query.latestOffset()
        lose_records(site, {0: 15})
        halt_ledger(site, {0: 10})
        with pytest.raises(Conflict, match=f"halted.*channels repair {site.name}") as halted:
            ids(channel)
        assert halted.value.code == "ledger_halted"
        with broker_at(site.rig.url) as later:
            for refused in (fetch(broker, channel, 10), fetch(later, channel)):
                assert refused.err == UnknownTopicOrPartition.ERROR_CODE
                assert "is halted" in refused.reason
        writer = channel.writer()
        writer.write(readings(1))
        # The batch is opened in the background, so the refusal is raised later.
        until(lambda: writer.failure is not None)
        with pytest.raises(Conflict, match=r"halted.*channels repair"):
            writer.close()

        declined = command("repair", site.name, stdin=Terminal("n"))
        assert declined.status == 1
        assert declined.errors.endswith(
            "sluiceway: nothing was changed; --yes repairs without asking\n"
        )
        assert "Kafka lost the records of partition 0 from offset 10 on" in declined.out
        assert declined.out.splitlines()[3].split() == ["0", "10", "15", "4"]
        with pytest.raises(Conflict, match="halted"):
            ids(channel)

        result = command("repair", site.name, "--yes", "--reason", "a disk failed")
        assert result.status == 0, result.err
        assert result.out.splitlines()[-1].startswith(f"channel {site.name} is repaired")
        # This reader expects other records at the lost offsets.
        with pytest.raises(Conflict, match="was repaired") as repaired:
            reader.read(1, timeout=120)
        assert repaired.value.code == "ledger_repaired"
        with pytest.raises(Conflict, match="was repaired") as repaired:
            query.planner.final_end(pytest.fail)
        assert "Restart the query" in "".join(repaired.value.__notes__)

        assert ids(channel) == [*range(10)]
        with channel.writer() as writer:
            writer.write(readings(5, 10))
        assert ids(channel) == [*range(15)]
        with running_query(site) as restarted:
            splits = restarted.partitions(checkpoint, restarted.latestOffset())
            batches = [batch for split in splits for batch in restarted.read(split)]
        assert [id_ for batch in batches for id_ in batch["id"].to_pylist()] == [*range(10, 15)]
    command("repair", site.name).failed("is not halted")
    listed = command("commits", site.name).out.splitlines()
    assert [line.split()[:2] for line in listed[1:3]] == [["3", "committed"], ["2", "repair"]]
    assert '"reason": "a disk failed"' in command("commits", site.name, "--json").out
