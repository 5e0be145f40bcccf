"""Examples, each as a process of its own, as a reader would run it."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, gateway_url: str, *arguments: str) -> list[str]:
    """Run an example against a gateway to its good end, and return the lines that it printed."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, "SLUICEWAY_URL": gateway_url},
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
