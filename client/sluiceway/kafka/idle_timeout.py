"""Idle timeout: probes the topic while no messages arrive, then raises KafkaUnavailable."""

import time

from sluiceway.errors import KafkaUnavailable
from sluiceway.kafka.consumer import MessageStream

__all__ = ["IdleTimeout"]

_PROBE_S = 2.0


class IdleTimeout:
    """How long nothing has come; asks for the cause now and then, and gives up in the end."""

    def __init__(self, topic: str, *, timeout_s: float) -> None:
        self._topic = topic
        self._timeout_s = timeout_s
        self._since_s = self._probe_at_s = self._asked_s = 0.0
        self._excused = False
        self.end()

    def end(self) -> None:
        """Begin anew: something came."""
        self._since_s = self._asked_s = time.monotonic()
        self._probe_at_s = self._since_s + min(_PROBE_S, self._timeout_s / 2)
        self._excused = False

    def probe(self, stream: MessageStream, *, awaited: bool) -> bool:
        """Find out, if it is time to, whether Kafka and the topic are there; whether it looked.

        `awaited` says that something has to come. Raises KafkaUnavailable when it did not for too
        long, and then begins anew, and what else `MessageStream.verify` raises.
        """
        now_s = time.monotonic()
        self._excuse(now_s)
        if now_s < self._probe_at_s:
            return False
        silent_s = now_s - self._since_s
        patient = silent_s < self._timeout_s
        self._probe_at_s = now_s + min(_PROBE_S, self._timeout_s / 2)
        try:
            stream.verify(timeout_s=min(_PROBE_S, self._timeout_s))
        except KafkaUnavailable:
            if patient:
                return False
            self.end()
            raise
        finally:
            self._asked_s = time.monotonic()
        if not awaited:
            # Nobody writes: that is no failure.
            self.end()
        elif not patient:
            self.end()
            raise KafkaUnavailable(
                f"nothing came from the topic {self._topic} for {silent_s:.0f} s, "
                "though its end is not reached. Positions are kept; try again"
            )
        return True

    def _excuse(self, now_s: float) -> None:
        """Leave out a time in which nobody asked, once: the process was stopped, or was busy."""
        gap_s, self._asked_s = now_s - self._asked_s, now_s
        if gap_s > self._timeout_s / 2 and not self._excused:
            self._excused = True
            self._since_s += gap_s
