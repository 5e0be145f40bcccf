"""The broker of a run of the tests, which the processes that share them share too.

Each of its own would take as long to start, and as much to keep, as many tests do.
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

import pytest

from sluiceway_gateway.embedded import KafkaServer


@dataclass(frozen=True)
class SharedKafka:
    """A real broker, which no test stops, and the directory of its logs."""

    bootstrap_servers: str
    log_dir: str

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
        config.stash[_found] = SharedKafka(**told) if told else _until_unconfigured(config)
    return config.stash[_found]


def _until_unconfigured(config: pytest.Config) -> SharedKafka:
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="sluiceway-kafka-"))
        stack.callback(shutil.rmtree, directory)
        server = stack.enter_context(KafkaServer.start(directory, heap_mb=1024))
        # Nobody reads its data again, and to close the logs of all tests in order takes half a
        # minute.
        stack.callback(os.kill, server.pid, signal.SIGKILL)
        config.add_cleanup(stack.pop_all().close)
    return SharedKafka(server.bootstrap_servers, str(directory / "log"))
