"""What a job tells the demo while it runs: one JSON object a line.

A job's own standard output carries nothing else: what others print there goes to its log.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any


class Events:
    """A job's side. Made once, first thing: from then on standard output is the log.

    The job ends with its starter: when standard input closes, its process group is killed.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._lock = threading.Lock()
        threading.Thread(target=_end_with_starter, daemon=True).start()

    def step(self, text: str) -> None:
        """Say what the job does now."""
        self._send({"event": "step", "text": text})

    def progress(self, done: int, total: int) -> None:
        """Say how far the step has come."""
        self._send({"event": "progress", "done": done, "total": total})

    def result(self, result: Mapping[str, Any]) -> None:
        """Give what the job found; its last word."""
        self._send({"event": "result", "result": result})

    def _send(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            self._out.write(json.dumps(event) + "\n")


def _end_with_starter() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.killpg(os.getpgid(0), signal.SIGKILL)
