"""The lines of curl in the documentation run as they stand, against a real gateway."""

import re
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from sluiceway import Gateway

GATEWAY = (Path(__file__).parents[1] / "docs" / "gateway.md").read_text()
BY_HAND = re.search(r"```sh\n(GATEWAY=.*?)```", GATEWAY, re.DOTALL)


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="no curl, or no jq")
def test_a_group_is_joined_shared_committed_and_left_by_hand(gateway_url: str) -> None:
    assert BY_HAND is not None
    name = f"departures-{uuid.uuid4().hex[:8]}"
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(name, format="bytes", partitions=2)
        with channel.writer(partition=0) as writer:
            writer.write([{"value": b"a"}] * 3)
        lines = BY_HAND[1].replace("http://127.0.0.1:8900", gateway_url)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", lines.replace("/departures", f"/{name}")],
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines() == [
            "[0,1,0,3]",
            "[1,1,0,0]",
            '{"taken":true,"partitions":[0,1],"pending":[]}',
            '{"status":"ok","generation":2}',
            "[0,2]",
            '{"generation":2,"offsets":[[0,2]]}',
            '"closed"',
            "[0,3]",
        ]
        assert channel.committed("by-hand")[0].offset == 3
