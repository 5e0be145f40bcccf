"""`sluiceway up`: broker, gateway, data, and refused arguments."""

import os
import signal
import socket
from pathlib import Path

import pytest

from processes import Sluiceway, process
from sluiceway import Gateway
from sluiceway_gateway.dev.embedded import free_ports

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - refused
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.long
def test_up_keeps_its_data_between_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Java reads the broker's properties as Latin-1.
    arguments = ("up", "--port", "0", "--data", str(tmp_path / "données"))
    with process(*arguments) as first:
        servers = first.until(r"Kafka +([0-9.:]+)\n")
        with Gateway(first.until(r"gateway +(\S+)")) as gateway:
            channel = gateway.channel("kept", SCHEMA, partitions=2)
            with channel.writer() as writer:
                writer.write([{"a": number} for number in range(10)])
        before = channel.uid, channel.status.topic

        with process(*arguments) as second:
            assert second.wait() == 1
            assert second.text.startswith("sluiceway: another `sluiceway up` uses")
            assert second.text.count("\n") == 1

        assert first.end(signal.SIGINT) == 0
        assert first.text.endswith("Stopped. The data are kept.\n")
        assert not listens(servers)

    # For another gateway; this one uses its own broker.
    monkeypatch.setenv("SLUICEWAY_KAFKA_CLUSTER_ID", "production")
    with process(*arguments) as third:
        servers = third.until(r"Kafka +([0-9.:]+)\n")
        with Gateway(third.until(r"gateway +(\S+)")) as gateway:
            channel = gateway.channel("kept")
            assert (channel.uid, channel.status.topic) == before
            with channel.reader(until="now") as reader:
                assert sorted(record["a"] for record in reader) == list(range(10))
            assert gateway.channel("new", SCHEMA).status.phase == "ready"
        assert third.end(signal.SIGTERM) == 0
        assert not listens(servers)


@pytest.mark.long
def test_up_ends_and_says_why_when_its_broker_has_ended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with process("up", "--port", "0", "--data", str(data)) as up:
        up.until(r"gateway +(\S+)")
        os.kill(int((data / "kafka/broker.pid").read_text()), signal.SIGKILL)
        assert up.wait() == 1
        assert "sluiceway: the Kafka broker has ended, and so has the gateway" in up.text
        assert str(data / "kafka/broker.log") in up.text


@pytest.mark.long
def test_up_interrupted_during_startup_leaves_nothing(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    data = tmp_path / "data"
    with process("up", "--port", "0", "--kafka-port", str(port), "--data", str(data)) as early:
        while not (data / "lock").exists():
            assert early.poll() is None, early.text
        assert early.end(signal.SIGINT) == 0
    assert not listens(f"127.0.0.1:{port}")


def test_without_java_one_line_names_the_package_to_install(
    sluiceway: Sluiceway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    sluiceway("up", "--data", str(tmp_path)).failed(
        "sluiceway: No java was found on PATH: install Java 17"
    )


def test_up_names_an_unusable_directory_or_address(sluiceway: Sluiceway, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    sluiceway("up", "--data", str(file / "data")).failed("choose another directory with --data")
    sluiceway("up", "--data", str(tmp_path / "data"), "--port", "0", "--host", ANY_ADDRESS).failed(
        "without tokens the gateway listens on loopback"
    )
    assert not (tmp_path / "data" / "kafka").exists(), (
        "arguments must be refused before the broker starts"
    )
