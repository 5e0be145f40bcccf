"""Ends what a killed test run leaves behind, such as PostgreSQL, browsers and data in memory.

    python leftovers.py DIRECTORY

Waits until standard input closes: the test run, which started it, has ended. Then ends all other
processes whose temporary directory (TMPDIR) is DIRECTORY, and removes DIRECTORY.
"""

import os
import shutil
import subprocess
import sys
from contextlib import suppress

import psutil

_GRACE_S = 10


def clean_up_after(directory: str) -> "subprocess.Popen[bytes]":
    """Start the script for this process, in a session that signals to the test run do not reach."""
    command = [sys.executable, __file__, directory]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def main(directory: str) -> None:
    """Wait for the end of standard input, then end processes and remove the directory."""
    sys.stdin.buffer.read()
    left = [process for process in psutil.process_iter() if _uses(process, directory)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(left, _GRACE_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, _GRACE_S)
    shutil.rmtree(directory, ignore_errors=True)


def _uses(process: psutil.Process, directory: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get("TMPDIR") == directory
    except psutil.Error:
        return False


if __name__ == "__main__":
    main(sys.argv[1])
