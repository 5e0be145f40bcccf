"""Ending a command in good order, whichever way it is asked to end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Have SIGINT and SIGTERM unwind the block, once, and end it without an error."""

    def end(_number: int, _frame: FrameType | None) -> None:
        for number in handlers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
