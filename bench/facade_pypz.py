"""sluiceway.pypz and an output port compared with ChannelWriter and ChannelReader.

All sides transfer the same records through channels of one partition, with a gateway in a separate
process and one broker: lists of 10,000 records, reads of up to 10,000 per call; and single records,
compared with the bare loop of `bench.python`. A side's time is from the first record until Kafka
has acknowledged the last one, or until the last one was read.
"""

import logging
import os
import tempfile
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

from bench.measure import Measured, Ratio, Side, in_own_process, measure, report
from bench.python import SCHEMA, bare_loop, new_topic, portion
from bench.service import running

from sluiceway import Channel, Gateway, OutputPort
from sluiceway.pypz import KafkaChannelReader, KafkaChannelWriter
from sluiceway_gateway.dev.embedded import KafkaServer

RECORDS = 1_000_000
PORTION = 10_000
ROUNDS = 3
RATIOS = {
    "pypz_write": Ratio(side="pypz_write", to="native_write", goal=0.8),
    "pypz_read": Ratio(side="pypz_read", to="native_read", goal=0.8),
    "pypz_record_write_to_bare": Ratio(side="pypz_record_write", to="bare_record_write", goal=0.8),
    "port_record_write_to_bare": Ratio(side="port_record_write", to="bare_record_write", goal=0.8),
}


def port(name: str) -> SimpleNamespace:
    """Return a stand-in for a pypz port, with the attributes that channels use."""
    return SimpleNamespace(
        get_full_name=lambda: name,
        get_logger=lambda: logging.getLogger("bench"),
        get_schema=lambda: SCHEMA,
        get_group_name=lambda: None,
        get_group_index=lambda: 0,
        get_group_size=lambda: 1,
        is_principal=lambda: True,
        is_in_group_mode=lambda: False,
    )


def new_name() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


def native_write(url: str, token: str) -> Measured:
    records = portion()[:PORTION]
    with Gateway(url, token=token) as gateway, written_to(gateway).writer() as writer:
        started_s = time.perf_counter()
        for _ in range(RECORDS // PORTION):
            writer.write(records)
        writer.flush()
        return Measured(records=RECORDS, seconds=time.perf_counter() - started_s)


def pypz_write(url: str, token: str) -> Measured:
    records = portion()[:PORTION]
    with Gateway(url, token=token) as gateway:
        channel = KafkaChannelWriter(written_to(gateway).name, port("bench.writer.port"))
        channel.set_location(url)
        assert channel.invoke_open_channel()
        channel.start_channel()
        started_s = time.perf_counter()
        for _ in range(RECORDS // PORTION):
            channel.invoke_write_records(records)
        channel.stop_channel()
        seconds = time.perf_counter() - started_s
        assert channel.invoke_close_channel()
        return Measured(records=RECORDS, seconds=seconds)


def bare_record_write(bootstrap_servers: str) -> Measured:
    connection = new_topic(bootstrap_servers, "avro", partitions=1)
    started_s = time.perf_counter()
    bare_loop(connection, portion()[:PORTION], RECORDS // PORTION)
    return Measured(records=RECORDS, seconds=time.perf_counter() - started_s)


def port_record_write(url: str, token: str) -> Measured:
    records = portion()[:PORTION]
    with Gateway(url, token=token) as gateway, OutputPort([written_to(gateway)]) as output:
        started_s = time.perf_counter()
        for _ in range(RECORDS // PORTION):
            for record in records:
                output.write(record)
        output.flush()
        return Measured(records=RECORDS, seconds=time.perf_counter() - started_s)


def pypz_record_write(url: str, token: str) -> Measured:
    records = portion()[:PORTION]
    with Gateway(url, token=token) as gateway:
        channel = KafkaChannelWriter(written_to(gateway).name, port("bench.writer.port"))
        channel.set_location(url)
        assert channel.invoke_open_channel()
        channel.start_channel()
        started_s = time.perf_counter()
        for _ in range(RECORDS // PORTION):
            for record in records:
                channel.invoke_write_records([record])
        channel.stop_channel()
        seconds = time.perf_counter() - started_s
        assert channel.invoke_close_channel()
        return Measured(records=RECORDS, seconds=seconds)


def native_read(url: str, token: str, name: str) -> Measured:
    with (
        Gateway(url, token=token) as gateway,
        gateway.channel(name).reader(group=new_name(), until="now") as reader,
    ):
        started_s = time.perf_counter()
        read = 0
        while records := reader.read(PORTION):
            read += len(records)
        seconds = time.perf_counter() - started_s
    assert read == RECORDS, read
    return Measured(records=RECORDS, seconds=seconds)


def pypz_read(url: str, name: str) -> Measured:
    channel = KafkaChannelReader(name, port(f"bench.{new_name()}.port"))
    channel.set_location(url)
    channel.invoke_configure_channel({"max_poll_records": PORTION})
    assert channel.invoke_open_channel()
    channel.set_initial_record_offset_auto()
    channel.start_channel()
    started_s = time.perf_counter()
    while channel.get_read_record_count() < RECORDS:
        assert channel.invoke_read_records()
    seconds = time.perf_counter() - started_s
    assert channel.get_read_record_offset() == RECORDS
    assert channel.invoke_close_channel()
    return Measured(records=RECORDS, seconds=seconds)


def written_to(gateway: Gateway) -> Channel:
    """Create an empty channel."""
    return gateway.channel(new_name(), SCHEMA, partitions=1)


def sides(url: str, token: str, bootstrap_servers: str) -> dict[str, Side]:
    """Return the sides for a running gateway, and fill the channel for both readers.

    SLUICEWAY_TOKEN must be set to the token.
    """
    with Gateway(url, token=token) as gateway:
        filled = written_to(gateway)
        records = portion()[:PORTION]
        with filled.writer() as writer:
            for _ in range(RECORDS // PORTION):
                writer.write(records)
    return {
        "native_write": in_own_process(native_write, url, token),
        "pypz_write": in_own_process(pypz_write, url, token),
        "bare_record_write": in_own_process(bare_record_write, bootstrap_servers),
        "port_record_write": in_own_process(port_record_write, url, token),
        "pypz_record_write": in_own_process(pypz_record_write, url, token),
        "native_read": in_own_process(native_read, url, token, filled.name),
        "pypz_read": in_own_process(pypz_read, url, filled.name),
    }


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        KafkaServer.start(Path(directory) / "kafka") as kafka,
        running(f"sqlite:///{directory}/gateway.db", kafka.bootstrap_servers) as service,
    ):
        # A port takes its token from the environment.
        os.environ["SLUICEWAY_TOKEN"] = service.token
        measured = measure(
            sides(service.url, service.token, kafka.bootstrap_servers), rounds=ROUNDS
        )
    report(
        "facade_pypz",
        measured,
        RATIOS,
        title=f"sluiceway.pypz, {RECORDS:,} records of five fields, one partition, one broker",
        settings={"records": RECORDS, "a_call": PORTION, "partitions": 1, "rounds": ROUNDS},
    )


if __name__ == "__main__":
    main()
