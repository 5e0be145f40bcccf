import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from running_commands import process
from sluiceway import Gateway
from sluiceway_gateway.db.revision import migrate
from sluiceway_gateway.embedded import free_ports

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - what is refused
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


def _wait_for_a_change(url: str) -> httpx.Response:
    channel = httpx.put(f"{url}/v1/channels/one", json={"spec": {"schema": SCHEMA}})
    while True:
        answer = httpx.get(
            f"{url}/v1/channels/one?wait=60",
            headers={"If-None-Match": channel.headers["ETag"]},
            timeout=480,
        )
        if answer.status_code == 304:
            return answer
        channel = answer


def listens(address: str) -> bool:
    import socket

    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_up_keeps_its_data_from_one_run_to_the_next(tmp_path: Path) -> None:
    arguments = ("up", "--port", "0", "--data", str(tmp_path / "data"))
    with process(*arguments) as first:
        servers = first.until(r"Kafka +([0-9.:]+)\n")
        with Gateway(first.until(r"gateway +(\S+)")) as gateway:
            channel = gateway.channel("kept", SCHEMA, partitions=2)
            with channel.writer() as writer:
                writer.write([{"a": each} for each in range(10)])
        before = channel.uid, channel.status.topic

        with process(*arguments) as second:
            assert second.wait() == 1
            assert second.text.startswith("sluiceway: another `sluiceway up` uses")
            assert second.text.count("\n") == 1

        assert first.end(signal.SIGINT) == 0
        assert first.text.endswith("Stopped. The data are kept.\n")
        assert not listens(servers)

    with process(*arguments) as third:
        servers = third.until(r"Kafka +([0-9.:]+)\n")
        with Gateway(third.until(r"gateway +(\S+)")) as gateway:
            channel = gateway.channel("kept")
            assert (channel.uid, channel.status.topic) == before
            with channel.reader(until="now") as reader:
                assert sorted(record["a"] for record in reader) == list(range(10))
        assert third.end(signal.SIGTERM) == 0
        assert not listens(servers)


def test_up_interrupted_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    data = tmp_path / "data"
    with process("up", "--port", "0", "--kafka-port", str(port), "--data", str(data)) as early:
        while not (data / "lock").exists():
            assert early.running(), early.text
        assert early.end(signal.SIGINT) == 0
    assert not listens(f"127.0.0.1:{port}")


def test_without_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    with process("up", "--data", str(tmp_path), PATH=str(tmp_path), JAVA_HOME="") as refused:
        assert refused.wait() == 1
    assert refused.text.startswith("sluiceway: No java was found on PATH: install Java 17")
    assert refused.text.count("\n") == 1


def test_up_tells_of_a_place_or_port_that_it_cannot_use(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with process("up", "--data", str(file / "data")) as refused:
        assert refused.wait() == 1
    assert "choose another directory with --data" in refused.text
    with process("up", "--data", str(tmp_path / "data"), "--host", ANY_ADDRESS) as refused:
        assert refused.wait() == 1
    assert refused.text.startswith("sluiceway: without tokens the gateway listens on loopback")
    assert not (tmp_path / "data" / "kafka").exists(), "refused before the broker starts"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_ends_in_order(tmp_path: Path, number: int) -> None:
    variables = {
        "SLUICEWAY_DATABASE_URL": f"sqlite:///{tmp_path / 'gateway.db'}",
        "SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_ports(1)[0]}",
    }
    migrate(variables["SLUICEWAY_DATABASE_URL"])
    with process("serve", "--port", "0", **variables) as serving:
        url = serving.until(r"serving on (\S+)")
        assert httpx.get(f"{url}/livez").status_code == 200
        ready = httpx.get(f"{url}/readyz", timeout=30)
        assert (ready.status_code, ready.json()["kafka"]) == (503, False)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(_wait_for_a_change, url)
            while "sluiceway_waiting_reads 1.0" not in httpx.get(f"{url}/metrics").text:
                assert not waiting.done()
            assert serving.end(number) == 0
            assert waiting.result(30).status_code == 304, "let go, not cut off"
    for line in serving.text.splitlines():
        assert line.startswith("serving on") or json.loads(line)["event"], "logs are JSON lines"
    assert "Traceback" not in serving.text
