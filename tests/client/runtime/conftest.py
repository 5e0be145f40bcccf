"""A child process without the threads of earlier tests."""

import os
import sys
import traceback
from collections.abc import Callable

import pytest


def run_in_child(work: Callable[[], object]) -> None:
    """Run `work` in a forked child, and expect that it succeeds."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def in_forked_child() -> Callable[[Callable[[], object]], None]:
    """A function that runs another one in a child, which has no threads at first."""
    return run_in_child
