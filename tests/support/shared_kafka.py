"""The broker of a test run, shared by all of its processes.

A broker per process would take as much time and memory as many tests. Each process has a separate
listener, which can be cut without affecting the others.
"""

import json
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from relay import held_port
from sluiceway_gateway.embedded import KafkaServer
from waiting import until


@dataclass(frozen=True)
class Way:
    """A listener of the broker, and its advertised port."""

    listener: int
    port: int


@dataclass(frozen=True)
class SharedKafka:
    """A real broker, which no test stops, the directory of its logs, and listeners to cut.

    `secured` has the addresses of its secured listeners by name, `certificates` is the directory of
    their certificates.
    """

    bootstrap_servers: str
    log_dir: str
    ways: tuple[Way, ...]
    secured: Mapping[str, str]
    certificates: str

    @property
    def port(self) -> int:
        return _port(self.bootstrap_servers)

    def another(self, data_dir: Path, *, port: int | None = None) -> KafkaServer:
        """Start a small broker of another cluster, or start it again with its data.

        Formats its directory without Kafka's tool, which takes a third of the broker's start time.
        """
        log_dir = data_dir / "log"
        if not log_dir.exists():
            log_dir.mkdir(parents=True)
            shutil.copy(Path(self.log_dir) / "bootstrap.checkpoint", log_dir)
            own = f"version=1\nnode.id=1\ncluster.id={uuid.uuid4().hex}\n"
            (log_dir / "meta.properties").write_text(own)
        return KafkaServer.start(data_dir, port=port, heap_mb=256)


_found: pytest.StashKey[SharedKafka] = pytest.StashKey()
_place: pytest.StashKey[Path] = pytest.StashKey()


def kafka_of(config: pytest.Config) -> SharedKafka:
    """Return the broker of the run, which is started at the first call and ends with the run."""
    if _found not in config.stash:
        place = getattr(config, "workerinput", {}).get("kafka")
        config.stash[_found] = _read(Path(place)) if place else _until_unconfigured(config)
    return config.stash[_found]


def place_of(config: pytest.Config) -> Path:
    """Return the path of the file that describes the run's broker to all test processes."""
    if _place not in config.stash:
        directory = tempfile.TemporaryDirectory(prefix="sluiceway-run-")
        config.add_cleanup(directory.cleanup)
        config.stash[_place] = Path(directory.name) / "kafka.json"
    return config.stash[_place]


def write_down(config: pytest.Config) -> None:
    """Write that file once the broker runs."""
    place = place_of(config)
    if not place.exists():
        whole = place.with_suffix(".part")
        whole.write_text(json.dumps(asdict(kafka_of(config))))
        whole.rename(place)


def _read(place: Path) -> SharedKafka:
    until(place.exists, seconds=300)
    told = json.loads(place.read_text())
    return SharedKafka(**{**told, "ways": tuple(Way(**each) for each in told["ways"])})


def number_of_process(config: pytest.Config) -> int:
    """Return the number of this test process, from 0."""
    found: str = getattr(config, "workerinput", {}).get("workerid", "gw0")
    return int(found.removeprefix("gw"))


def _until_unconfigured(config: pytest.Config) -> SharedKafka:
    # A slow import, needed only by the process that starts the broker.
    import secured_kafka

    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="sluiceway-kafka-"))
        stack.callback(shutil.rmtree, directory)
        certificates = directory / "certificates"
        names = [f"WAY_{number}" for number in range(max(1, len(config.getoption("tx"))))]
        held = {each: stack.enter_context(held_port()) for each in names}
        told = {each: held[each].getsockname()[1] for each in names}
        protocols = dict.fromkeys(names, "PLAINTEXT") | secured_kafka.PROTOCOLS
        threads = {f"listener.name.{each.lower()}.num.network.threads": "1" for each in protocols}
        server = KafkaServer.start(
            directory,
            heap_mb=1024,
            listeners=protocols,
            advertised=told,
            properties=threads | secured_kafka.listener_properties(certificates),
        )
        stack.enter_context(server)
        # Its data is not needed again, and closing the logs of all tests in order takes half a
        # minute.
        stack.callback(os.kill, server.pid, signal.SIGKILL)
        config.add_cleanup(stack.pop_all().close)
    return SharedKafka(
        bootstrap_servers=server.bootstrap_servers,
        log_dir=str(directory / "log"),
        ways=tuple(Way(_port(server.listeners[each]), told[each]) for each in names),
        secured={each: server.listeners[each] for each in secured_kafka.PROTOCOLS},
        certificates=str(certificates),
    )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
