"""confluent-kafka's AIOConsumer on sluiceway.confluent.Consumer."""

import asyncio
from typing import Any

import pytest

from confluent_facade import Facade, KafkaError, at
from sluiceway.confluent import KafkaException, TopicPartition
from sluiceway.confluent.aio import AIOConsumer


@pytest.fixture
def name(site: Facade) -> str:
    return site.channel(filled=10)


def configured(site: Facade, **more: Any) -> dict[str, Any]:
    config = {"bootstrap.servers": site.url, "group.id": "aio", "enable.auto.commit": False}
    return {**config, "auto.offset.reset": "earliest", **more}


def test_an_aio_consumer_reads_commits_and_closes(site: Facade, name: str) -> None:
    reports: list[Any] = []

    async def on_commit(error: Any, partitions: list[TopicPartition]) -> None:
        reports.append((error, partitions))

    async def read() -> None:
        async with AIOConsumer(configured(site, on_commit=on_commit)) as reader:
            await reader.subscribe([name])
            messages: list[Any] = []
            while len(messages) < 20:
                messages += await reader.consume(20, 0.5)
            assert {message.topic() for message in messages} == {name}
            await reader.commit(asynchronous=False)
            assert [e.offset for e in await reader.committed([at(name), at(name, 1)])] == [10, 10]
            await reader.seek(at(name, 0, 9))
            while (message := await reader.poll(0.5)) is None:
                pass
            assert (message.partition(), message.offset()) == (0, 9)
            assert await reader.get_watermark_offsets(at(name)) == (0, 10)
            await reader.commit(message=message)
            while not reports:
                await reader.poll(0.1)
        with pytest.raises(RuntimeError, match="closed"):
            await reader.poll(0)

    asyncio.run(asyncio.wait_for(read(), 60))
    assert reports[0][0] is None


def test_callbacks_of_an_aio_consumer_call_the_consumer(site: Facade, name: str) -> None:
    reported: list[Any] = []

    async def begin(reader: AIOConsumer, partitions: list[TopicPartition]) -> None:
        await reader.assign([at(name, 0, 7), at(name, 1, 8)])
        reported.extend(sorted(place.partition for place in await reader.assignment()))

    async def end(reader: AIOConsumer, partitions: list[TopicPartition]) -> None:
        reported.extend(await reader.commit(asynchronous=False))

    async def read() -> None:
        async with AIOConsumer(configured(site)) as reader:
            await reader.subscribe([name], on_assign=begin, on_revoke=end)
            messages: list[Any] = []
            while len(messages) < 5:
                messages += await reader.consume(5, 0.5)
            assert {message.offset() for message in messages} == {7, 8, 9}

    asyncio.run(asyncio.wait_for(read(), 60))
    assert reported[:2] == [0, 1]
    assert [place.offset for place in reported[2:]] == [10, 10]


@pytest.mark.usefixtures("quick_end")
def test_an_aio_consumer_cannot_be_closed_in_its_callback(site: Facade, name: str) -> None:
    codes: list[int] = []

    async def begin(reader: AIOConsumer, partitions: list[TopicPartition]) -> None:
        try:
            await reader.unsubscribe()
        except KafkaException as refused:
            codes.append(refused.args[0].code())

    async def read() -> None:
        async with AIOConsumer(configured(site)) as reader:
            await reader.subscribe([name], on_assign=begin)
            while not codes:
                await reader.poll(0.1)

    asyncio.run(asyncio.wait_for(read(), 60))
    assert codes == [KafkaError._STATE]
