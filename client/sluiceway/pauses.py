"""Waiting between tries, longer each time, up to a deadline."""

import time

__all__ = ["Pauses"]


class Pauses:
    """The pauses between tries of one thing, for `timeout_s` in all from now on."""

    def __init__(self, timeout_s: float, *, first_s: float = 0.05, longest_s: float = 1.0) -> None:
        self._deadline_s = time.monotonic() + timeout_s
        self._next_s = first_s
        self._longest_s = longest_s

    @property
    def left_s(self) -> float:
        """How long there is still time; 0 if there is none."""
        return max(0.0, self._deadline_s - time.monotonic())

    def wait(self) -> bool:
        """Pause before the next try; False, at once, if the time would be up then."""
        if self._next_s >= self.left_s:
            return False
        time.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, self._longest_s)
        return True
