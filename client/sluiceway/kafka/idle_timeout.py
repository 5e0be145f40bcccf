"""Idle timeout: probes the topic while no messages arrive, then raises KafkaUnavailable."""

import time

from sluiceway.errors import KafkaUnavailable
from sluiceway.kafka.consumer import MessageStream

__all__ = ["IdleTimeout"]

_PROBE_S = 2.0


class IdleTimeout:
    """The time since the last message, with probes of the topic meanwhile."""

    def __init__(self, topic: str, *, timeout_s: float) -> None:
        self._topic = topic
        self._timeout_s = timeout_s
        self._since_s = self._next_probe_s = self._last_call_s = 0.0
        self._pause_excluded = False
        self.reset()

    def reset(self) -> None:
        """Restart the timeout: a message has arrived."""
        self._since_s = self._last_call_s = time.monotonic()
        self._next_probe_s = self._since_s + min(_PROBE_S, self._timeout_s / 2)
        self._pause_excluded = False

    def probe(self, stream: MessageStream, *, awaited: bool) -> bool:
        """Verify the topic if a probe is due, and return whether it was.

        `awaited` means that messages must arrive. Raises KafkaUnavailable, and restarts, when
        Kafka has not answered or awaited messages have not arrived in time, and the other errors
        of `MessageStream.verify`.
        """
        now_s = time.monotonic()
        self._exclude_pause(now_s)
        if now_s < self._next_probe_s:
            return False
        idle_s = now_s - self._since_s
        expired = idle_s >= self._timeout_s
        self._next_probe_s = now_s + min(_PROBE_S, self._timeout_s / 2)
        try:
            stream.verify(timeout_s=min(_PROBE_S, self._timeout_s))
        except KafkaUnavailable:
            if not expired:
                return False
            self.reset()
            raise
        finally:
            self._last_call_s = time.monotonic()
        if not awaited:
            # An idle topic is no failure.
            self.reset()
        elif expired:
            self.reset()
            raise KafkaUnavailable(
                f"no messages arrived from the topic {self._topic} for {idle_s:.0f} s, although "
                "its end is not reached. Positions are kept; try again"
            )
        return True

    def _exclude_pause(self, now_s: float) -> None:
        """Exclude one pause of the process, or of its calls, from the idle time."""
        pause_s, self._last_call_s = now_s - self._last_call_s, now_s
        if pause_s > self._timeout_s / 2 and not self._pause_excluded:
            self._pause_excluded = True
            self._since_s += pause_s
