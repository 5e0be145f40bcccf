"""When a consumer has something to do besides reading."""

import threading

__all__ = ["News"]


class News(threading.Event):
    """Set when something has come up, from any thread; `turn_s` is when to look in any case.

    Whoever reads compares one number a message: it is 0 while it is set. In seconds, monotonic.
    """

    def __init__(self) -> None:
        super().__init__()
        self._both = threading.Lock()
        self.turn_s = 0.0

    def set(self) -> None:
        """Have the reader look at once."""
        with self._both:
            self.turn_s = 0.0
            super().set()

    def put_off(self, turn_s: float) -> None:
        """Look again at `turn_s`, unless something comes up."""
        with self._both:
            self.clear()
            self.turn_s = turn_s
