"""Keeps one child process exactly as long as somebody holds the keeper's standard input.

A broker must not outlive the process that started it, however that process ends. The keeper
starts the command it is given, writes the child's process id to its standard output, and ends
the child when its own standard input closes (the owner ended, even by SIGKILL) or it is asked
to. Its exit status is the child's.
"""

import os
import signal
import subprocess
import sys
import threading

_GRACE_S = 30


def main(command: list[str]) -> int:
    """Run `command` until it ends or standard input closes; return its exit status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    # The owner decides when to stop; an interrupt from the terminal is the owner's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.write(sys.stdout.fileno(), f"{child.pid}\n".encode())
    threading.Thread(target=_end_with_owner, args=(child,), daemon=True).start()
    return child.wait()


def _end_with_owner(child: "subprocess.Popen[bytes]") -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    child.terminate()
    try:
        child.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
