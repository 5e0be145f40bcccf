"""Supervisor of one child process, which must not outlive the process that started both.

    python -IS supervisor.py PID_FILE COMMAND...

Starts the command, writes its process id to PID_FILE and exits with its status. When standard
input closes, because the owner closed it or died (even by SIGKILL), the supervisor terminates the
child, and kills it after 30 s.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

_GRACE_S = 30


def main(pid_file: str, command: list[str]) -> int:
    """Run the command until it ends or standard input closes; return its exit status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        # Ctrl-C reaches every process of the terminal; the owner handles it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        Path(pid_file).write_text(f"{child.pid}\n")
        threading.Thread(target=_end_with_owner, args=(child,), daemon=True).start()
        return child.wait()
    except BaseException:
        # Such as of a full disk: nothing would end the child.
        child.kill()
        raise


def _end_with_owner(child: "subprocess.Popen[bytes]") -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    child.terminate()
    try:
        child.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
