"""`sluiceway channels commits` and `tail` of an exactly-once channel."""

import json
from collections.abc import Callable, Iterator

import pytest

from processes import Run, Sluiceway
from sluiceway import Channel, Gateway

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}

Command = Callable[..., Run]


@pytest.fixture
def command(sluiceway: Sluiceway, gateway_url: str) -> Command:
    """Run a command against the gateway."""
    return lambda *arguments: sluiceway(*arguments, url=gateway_url)


@pytest.fixture
def channel(gateway_url: str) -> Iterator[Channel]:
    with Gateway(gateway_url) as gateway:
        yield gateway.channel("committed-cli", schema=SCHEMA, delivery="exactly_once")


def test_commits_and_open_batches_are_listed_and_tail_prints_committed_records(
    command: Command, channel: Channel
) -> None:
    with channel.writer(group="job") as writer:
        with writer.batch("day-1"):
            writer.write([{"id": each} for each in range(3)])
        with writer.batch("day-2"):
            writer.write([{"id": 3}])
            writer.flush()

            listed = command("channels", "commits", channel.name)
            heading, open_, committed = listed.out.splitlines()
            assert heading.split()[:5] == ["NUMBER", "STATE", "KEY", "WRITER", "RECORDS"]
            assert open_.split()[:2] == ["open", "day-2"]
            assert open_.split()[-1] == "s"
            assert committed.split()[:3] == ["1", "committed", "day-1"]
            assert " 3 " in committed

            as_json = command("channels", "commits", channel.name, "--json").out.splitlines()
            assert [json.loads(line)["state"] for line in as_json] == ["open", "committed"]

            shown = command("tail", channel.name, "--no-follow")
            assert [json.loads(line)["id"] for line in shown.out.splitlines()] == [0, 1, 2]
    listed = command("channels", "commits", channel.name, "-n", "1")
    assert listed.out.splitlines()[1].split()[:3] == ["2", "committed", "day-2"]
    assert command("channels", "commits", channel.name, "--before", "2").out.count("day-1") == 1


def test_a_channel_without_commits_says_so(command: Command, gateway_url: str) -> None:
    with Gateway(gateway_url) as gateway:
        gateway.channel("uncommitted-cli", schema=SCHEMA)
    found = command("channels", "commits", "uncommitted-cli")
    assert found.status == 1
    assert "at_least_once" in found.err or "exactly_once" in found.err
