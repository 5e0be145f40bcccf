"""`sluiceway channels reset`, `resize` and `abort`: groups and batches, and refused arguments."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from databases import SQLite
from endpoints import Site, site
from gateways import TOPIC_ID, Rig, running
from ledger_sites import LedgerSite, ledger_site
from processes import Run, Sluiceway, Terminal
from shared_kafka import SharedKafka
from sluiceway import Gateway
from sluiceway_gateway.channels.model import TopicRef
from sluiceway_gateway.core.db.engine import Database
from topics import Topics

Command = Callable[..., Run]
_numbers = itertools.count(1)


@pytest.fixture
def rig(sqlite: SQLite) -> Iterator[Rig]:
    """A gateway without Kafka."""
    url = sqlite.migrated()
    with closing(Database(url)) as database, running(database, url) as rig:
        yield rig


@pytest.fixture
def flights(rig: Rig) -> Site:
    """A channel whose group `g` is at (0, 5) and (1, 7)."""
    flights = site(rig, partitions=2)
    reader = flights.member()
    flights.commit(reader, 1, (0, 5, 0), (1, 7, 0)).raise_for_status()
    flights.detach(reader).raise_for_status()
    return flights


@pytest.fixture
def batches(rig: Rig) -> LedgerSite:
    """An exactly-once channel."""
    return ledger_site(rig, TopicRef(name="batches", id=TOPIC_ID, partitions=1), "batches")


@pytest.fixture
def channels(sluiceway: Sluiceway, rig: Rig) -> Command:
    return partial(sluiceway, "channels", url=rig.url)


def test_a_group_is_reset_to_offsets_after_a_preview(flights: Site, channels: Command) -> None:
    reset = ("reset", "flights", "g", "--offset", "1:3")
    refused = channels(*reset, stdin=Terminal("n\n"))
    assert refused.status == 1
    assert refused.out.split("\n")[1].split() == ["1", "7", "3", "4", "read", "again"]
    assert refused.errors.endswith("nothing was reset; --yes resets without asking\n")
    assert flights.committed() == [(0, 5, 0), (1, 7, 0)]
    done = channels(*reset, "--reason", "a wrong join", stdin=Terminal("y\n"))
    assert (done.status, done.out.splitlines()[-1:]) == (
        *(0, ["group g of the channel flights is reset"]),
    )
    assert flights.committed() == [(0, 5, 0), (1, 3, 0)]
    resets = flights.rig.http.get(flights.offsets_path("g")).json()["resets"]
    assert [reset["reason"] for reset in resets] == ["a wrong join"]


def test_live_members_are_reset_only_with_force(flights: Site, channels: Command) -> None:
    flights.member()
    reset = ("reset", "flights", "g", "--offset", "0:9", "--yes")
    run = channels(*reset)
    assert (run.status, "with force" in run.errors) == (1, True)
    channels(*reset, "--force").succeeded()
    assert flights.committed() == [(0, 9, 0), (1, 7, 0)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Give either --to or --offset"),
        (("--to", "latest", "--offset", "0:1"), "Give either --to or --offset"),
        (("--to", "yesterday"), "'yesterday' is not a time in ISO 8601 with a zone"),
        (("--to", "2026-01-31T12:00:00"), "with a zone; write 2026-01-31T12:00:00Z"),
        (("--offset", "5"), "'5' is not of the form PARTITION:OFFSET"),
        (("--offset", "0:5", "--offset", "0:6"), "partition 0 is given twice"),
    ],
)
def test_a_wrong_target_of_a_reset_is_a_usage_error(
    sluiceway: Sluiceway, arguments: tuple[str, ...], words: str
) -> None:
    sluiceway("channels", "reset", "flights", "g", *arguments).failed(words, status=2)


def test_a_reset_of_a_group_that_does_not_exist_is_refused(
    flights: Site, channels: Command
) -> None:
    run = channels("reset", "flights", "nobody", "--offset", "0:0", "--yes")
    assert (run.status, "no group 'nobody'" in run.errors) == (1, True)


def test_a_group_is_resized_and_keeps_its_positions(flights: Site, channels: Command) -> None:
    asked = channels("resize", "flights", "g", "2", stdin=Terminal("n\n"))
    assert "nothing was resized; --yes resizes without asking" in asked.errors
    done = channels("resize", "flights", "g", "2", "--yes")
    assert (done.status, done.out) == (0, "group g of the channel flights has the size 2\n")
    assert flights.rig.http.get(flights.offsets_path("g")).json()["size"] == 2
    assert flights.committed() == [(0, 5, 0), (1, 7, 0)]


def test_an_open_batch_is_aborted_by_its_key(batches: LedgerSite, channels: Command) -> None:
    batches.open("monday")
    asked = channels("abort", "batches", "monday", stdin=Terminal("n\n"))
    assert "Abort the open batch monday of job?" in asked.err
    assert "nothing was aborted; --yes aborts without asking" in asked.errors
    done = channels("abort", "batches", "monday", "--reason", "its job is gone", "--yes")
    assert (done.status, done.out) == (0, "batch monday of the channel batches is aborted\n")
    commits = batches.rig.http.get(f"{batches.path}/commits").json()
    assert (commits["open"], commits["commits"][0]["cause"]) == ([], "its job is gone")
    channels("abort", "batches", "monday", "--yes").failed(
        "no open batch monday", "`sluiceway channels commits batches`"
    )


def test_a_group_is_reset_to_ends_and_times(
    sluiceway: Sluiceway, gateway_url: str, kafka: SharedKafka
) -> None:
    """On a real broker, whose messages have timestamps."""
    name = f"reset-{next(_numbers)}"
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(name, format="bytes", partitions=2)
        topics = Topics(kafka.bootstrap_servers)
        topics.produce(channel.status.topic.name, 0, [b"a", b"b", b"c"])
        with channel.reader(group="g", until="now") as reader:
            assert len(list(reader)) == 3

        def reset(to: str) -> dict[int, int]:
            run = sluiceway("channels", "reset", name, "g", "--to", to, "--yes", url=gateway_url)
            run.succeeded()
            return {partition: at.offset for partition, at in channel.committed("g").items()}

        assert reset("earliest") == {0: 0, 1: 0}
        assert reset("latest") == {0: 3, 1: 0}
        now = datetime.now(UTC)
        assert reset((now - timedelta(hours=1)).isoformat()) == {0: 0, 1: 0}
        assert reset((now + timedelta(hours=1)).isoformat()) == {0: 3, 1: 0}
