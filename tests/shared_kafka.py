"""The broker of a run of the tests, which the processes that share them share too.

Each of its own would take as long to start, and as much to keep, as many tests do.
"""

import os
import shutil
import signal
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluiceway_gateway.embedded import KafkaServer


@dataclass(frozen=True)
class SharedKafka:
    """A real broker, which no test stops."""

    bootstrap_servers: str

    @property
    def port(self) -> int:
        return int(self.bootstrap_servers.rpartition(":")[2])


_found: pytest.StashKey[SharedKafka] = pytest.StashKey()


def kafka_of(config: pytest.Config) -> SharedKafka:
    """Return the broker of the run, which is started at the first call and ends with the run."""
    if _found not in config.stash:
        told = getattr(config, "workerinput", {}).get("kafka")
        config.stash[_found] = SharedKafka(told) if told else _until_unconfigured(config)
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
    return SharedKafka(server.bootstrap_servers)
