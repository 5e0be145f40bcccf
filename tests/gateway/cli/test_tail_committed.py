"""`sluiceway tail` of an exactly-once channel, and of a compacted one."""

import json
import uuid
from collections.abc import Callable, Iterator

import pytest

from processes import Run
from sluiceway import Channel, Gateway

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}

Command = Callable[..., Run]


@pytest.fixture
def channel(gateway_url: str) -> Iterator[Channel]:
    with Gateway(gateway_url) as gateway:
        yield gateway.channel("committed-cli", schema=SCHEMA, delivery="exactly_once")


def test_tail_prints_committed_records_only(command: Command, channel: Channel) -> None:
    with channel.writer(group="job") as writer:
        with writer.batch("day-1"):
            writer.write([{"id": number} for number in range(3)])
        with writer.batch("day-2"):
            writer.write([{"id": 3}])
            writer.flush()

            result = command("tail", channel.name, "--no-follow")
            assert [json.loads(line)["id"] for line in result.out.splitlines()] == [0, 1, 2]


def test_tail_without_follow_waits_for_no_open_batch(command: Command, channel: Channel) -> None:
    with channel.writer() as early, channel.writer() as late, early.batch("early"):
        early.write([{"id": 9}])
        early.flush()
        with late.batch("late"):
            late.write([{"id": 7}])

        result = command("tail", channel.name, "--no-follow")
        printed = [json.loads(line)["id"] for line in result.out.splitlines()]
        assert (7 in printed, 9 in printed) == (True, False)


def test_tail_prints_deletes(command: Command, gateway_url: str) -> None:
    with Gateway(gateway_url) as gateway:
        compacted = {"cleanup.policy": "compact"}
        channel = gateway.channel(f"compacted-{uuid.uuid4().hex[:8]}", SCHEMA, config=compacted)
        with channel.writer(key="id") as writer:
            writer.write({"id": 7})
            writer.delete(7)
            writer.delete(200)
        with channel.writer(key=lambda record: str(record["id"])) as writer:
            writer.delete("seven")

    lines = command("tail", channel.name, "--no-follow").out.splitlines()
    keys = ["AAAAAAAAAAc=", "AAAAAAAAAMg=", "seven"]
    deleted = [{"@deleted": key} for key in keys]
    assert [json.loads(line) for line in lines] == [{"id": 7}, *deleted]
    typed = command("tail", channel.name, "--no-follow", "--key", "id", "--skip-corrupt").out
    assert json.loads(typed.splitlines()[1]) == {"@deleted": 7}
