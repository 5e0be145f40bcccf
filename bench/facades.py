"""The facades compared with the libraries: sluiceway.confluent and, if pypz is installed, pypz."""

import importlib
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

from bench.measure import measure, report
from bench.service import running

from sluiceway import Gateway
from sluiceway.errors import GatewayUnavailable
from sluiceway_gateway.dev.embedded import KafkaServer

ROUNDS = 3
_PARTS = ("confluent", "pypz")


def parts() -> dict[str, ModuleType]:
    """Return the requested parts, by default all."""
    wanted = sys.argv[1:] or _PARTS
    names = {name: f"bench.facade_{name}" for name in wanted}
    return {
        name: importlib.import_module(module)
        for name, module in names.items()
        if importlib.util.find_spec(module)
    }


def main() -> None:
    chosen = parts()
    with (
        tempfile.TemporaryDirectory() as directory,
        KafkaServer.start(Path(directory) / "kafka") as kafka,
        running(f"sqlite:///{directory}/gateway.db", kafka.bootstrap_servers) as service,
    ):
        os.environ["SLUICEWAY_TOKEN"] = service.token
        with Gateway(service.url, token=service.token) as gateway:
            deadline_s = time.monotonic() + 60
            while True:
                try:
                    list(gateway.channels())
                    break
                except GatewayUnavailable:
                    assert time.monotonic() < deadline_s
        sides = {}
        for part in chosen.values():
            sides |= part.sides(service.url, service.token, kafka.bootstrap_servers)
        measured = measure(sides, rounds=ROUNDS)
    report(
        "facades" if len(chosen) == len(_PARTS) else None,
        measured,
        {key: ratio for part in chosen.values() for key, ratio in part.RATIOS.items()},
        title="Facades compared with their libraries",
        settings={"rounds": ROUNDS, "brokers": 1}
        | {name: part.settings() for name, part in chosen.items() if hasattr(part, "settings")},
    )


if __name__ == "__main__":
    main()
