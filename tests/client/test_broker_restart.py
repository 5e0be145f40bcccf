"""A restart of a broker with its data during writes and reads."""

import os
from pathlib import Path

import pytest

from shared_kafka import SharedKafka
from sluiceway.reader import ChannelReader
from sluiceway.writer import ChannelWriter
from topics import Topics, readings


@pytest.mark.long
def test_writers_and_readers_continue_after_a_broker_restart(
    kafka: SharedKafka, tmp_path: Path
) -> None:
    first = kafka.another(tmp_path)
    connection = Topics(first.bootstrap_servers).connect(partitions=1)
    with (
        ChannelWriter(connection) as writer,
        ChannelReader(connection, until=None) as own,
        ChannelReader(connection, until=None, share_connection=True) as sharing,
    ):
        writer.write(readings(10))
        writer.flush()
        for reader in (own, sharing):
            assert reader.read(10, timeout=60) == readings(10)
        # A client that requested offsets knows a leader epoch, and later refuses lower ones.
        askers = (writer, own, sharing)
        assert [asker.end_offsets() for asker in askers] == [{0: 10}] * 3
        first.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(first.pid, 0)

        with kafka.another(tmp_path, port=first.port) as second:
            writer.write(readings(10, 10))
            writer.send_accumulated()
            writer.producer.flush()
            assert [asker.end_offsets() for asker in askers] == [{0: 20}] * 3
            writer.flush()
            for reader in (own, sharing):
                assert reader.read(10, timeout=60) == readings(10, 10)
            with ChannelReader(connection, until="now") as late:
                assert list(late) == readings(20)
    second.stop()  # repeating it is allowed
