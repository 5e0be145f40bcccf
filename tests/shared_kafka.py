"""The broker of a run of the tests, which the processes that share them share too.

Each of its own would take as long to start, and as much to keep, as many tests do. So each has a
way of its own to it, which can be cut without harm to the others.
"""

import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relay import held_port
from sluiceway_gateway.embedded import KafkaServer


@dataclass(frozen=True)
class Way:
    """A listener of the broker's, and the port at which its clients are told to find it."""

    listener: int
    port: int


@dataclass(frozen=True)
class SharedKafka:
    """A real broker, which no test stops, the directory of its logs, and ways that may be cut."""

    bootstrap_servers: str
    log_dir: str
    ways: tuple[Way, ...]

    @property
    def port(self) -> int:
        return int(self.bootstrap_servers.rpartition(":")[2])

    def another(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        listeners: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> KafkaServer:
        """Start a small broker of a cluster of its own, or start it again with its data.

        Its directory is formatted as this one's is. Kafka's tool takes a Java of its own for that,
        and a third of what the broker takes to start.
        """
        log_dir = data_dir / "log"
        if not log_dir.exists():
            log_dir.mkdir(parents=True)
            shutil.copy(Path(self.log_dir) / "bootstrap.checkpoint", log_dir)
            own = f"version=1\nnode.id=1\ncluster.id={uuid.uuid4().hex}\n"
            (log_dir / "meta.properties").write_text(own)
        return KafkaServer.start(
            data_dir, port=port, heap_mb=256, listeners=listeners, properties=properties
        )


_found: pytest.StashKey[SharedKafka] = pytest.StashKey()


def kafka_of(config: pytest.Config) -> SharedKafka:
    """Return the broker of the run, which is started at the first call and ends with the run."""
    if _found not in config.stash:
        told = getattr(config, "workerinput", {}).get("kafka")
        config.stash[_found] = _of_the_run(told) if told else _until_unconfigured(config)
    return config.stash[_found]


def _of_the_run(told: Mapping[str, Any]) -> SharedKafka:
    return SharedKafka(**{**told, "ways": tuple(Way(**each) for each in told["ways"])})


def number_of_process(config: pytest.Config) -> int:
    """Return which of the processes that share the tests this is, from 0."""
    found: str = getattr(config, "workerinput", {}).get("workerid", "gw0")
    return int(found.removeprefix("gw"))


def _until_unconfigured(config: pytest.Config) -> SharedKafka:
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="sluiceway-kafka-"))
        stack.callback(shutil.rmtree, directory)
        names = [f"WAY_{number}" for number in range(max(1, len(config.getoption("tx"))))]
        held = {each: stack.enter_context(held_port()) for each in names}
        told = {each: held[each].getsockname()[1] for each in names}
        server = KafkaServer.start(
            directory,
            heap_mb=1024,
            listeners=dict.fromkeys(names, "PLAINTEXT"),
            advertised=told,
            properties={f"listener.name.{each.lower()}.num.network.threads": "1" for each in names},
        )
        stack.enter_context(server)
        # Nobody reads its data again, and to close the logs of all tests in order takes half a
        # minute.
        stack.callback(os.kill, server.pid, signal.SIGKILL)
        config.add_cleanup(stack.pop_all().close)
    ways = [Way(int(server.listeners[each].rpartition(":")[2]), told[each]) for each in names]
    return SharedKafka(server.bootstrap_servers, str(directory / "log"), tuple(ways))
