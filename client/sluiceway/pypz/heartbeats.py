"""The heartbeat loop of a pypz channel, and its cycle metrics."""

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

from sluiceway.channel_endpoint import ChannelEndpoint
from sluiceway.rest.endpoint_models import Endpoint, HeartbeatResult

LOGGER = logging.getLogger("sluiceway.pypz")
_LAST_TURN_S = 5.0


class Loop:
    """Calls a method every `interval_s`, until it is ended or nobody has its object any more.

    It runs in `executor`, or in a thread of its own, which keeps no program from ending. What the
    method raises is written to the log, and the next turn comes in its time.
    """

    def __init__(
        self, turn: Callable[[], None], *, name: str, interval_s: float, executor: Executor | None
    ) -> None:
        self._turn = weakref.WeakMethod(turn)
        self._name = name
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._future: Future[None] | None = None
        if executor is not None:
            self._future = executor.submit(self._run)
            return
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let it end, and wait for the turn that it is in."""
        self._ending.set()
        if self._future is not None and not self._future.cancel():
            self._future.exception(_LAST_TURN_S)
        elif self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_LAST_TURN_S)

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            turn = self._turn()
            if turn is None:
                return
            try:
                turn()
            except Exception:
                LOGGER.exception("a status of %s was not told; the next one is", self._name)
            del turn


class Link:
    """Tells with an endpoint's beats, and hears its counterparts by them, in the order of beats."""

    def __init__(self, endpoint: ChannelEndpoint) -> None:
        self._attachment = endpoint.handle
        self._answers = threading.Condition()
        self._answered = 0
        self._counterparts: tuple[Endpoint, ...] = ()
        self._attachment.on_result = self._hear
        self._attachment.subscribe()

    @property
    def counterparts(self) -> tuple[Endpoint, ...]:
        """The endpoints of the other side, as the last beats told."""
        return self._counterparts

    def tell(self, payload: Mapping[str, Any]) -> None:
        """Let the counterparts know this at once. Raises OptionError, Fenced, EndpointClosed."""
        self._attachment.payload = payload
        self._attachment.session.wake()

    def refresh(self, timeout_s: float) -> None:
        """Return when the gateway has answered a beat that began after this call, or in vain.

        The first answer that comes may be to one that was on its way; after `timeout_s` it is
        waited for no more.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._answers:
            for _ in range(2):
                self._await_answer(deadline_s)

    def _await_answer(self, deadline_s: float) -> None:
        before = self._answered
        self._attachment.session.wake()
        left_s = max(0.0, deadline_s - time.monotonic())
        self._answers.wait_for(lambda: self._answered > before, left_s)

    def _hear(self, heard: HeartbeatResult) -> None:
        with self._answers:
            self._answered += 1
            if heard.counterparts is not None:
                self._counterparts = heard.counterparts
            self._answers.notify_all()


class Cycles:
    """Times between calls, and records in them, averaged over the last `length` of them.

    `kind` is Read or Output, as the names of the figures have it.
    """

    def __init__(
        self, kind: str, length: int, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._kind = kind
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._cycles: deque[tuple[float, int]] = deque(maxlen=length)
        self._last: tuple[float, int] | None = None

    def turn(self, records: int) -> None:
        """Note a call that moved so many records."""
        with self._lock:
            now_s = self._monotonic()
            if self._last is not None:
                since_s, before = self._last
                self._cycles.append((1000 * (now_s - since_s), before))
            self._last = (now_s, records)

    def figures(self) -> dict[str, float]:
        """Return the figures by pypz's names, times in milliseconds; 0 where there is none yet."""
        with self._lock:
            since_ms = 0.0 if self._last is None else 1000 * (self._monotonic() - self._last[0])
            passed_ms = sum(each for each, _ in self._cycles)
            records = sum(each for _, each in self._cycles)
            cycles = len(self._cycles)
        kind = self._kind
        return {
            f"elapsedTimeSinceLast{kind}CycleMs": round(since_ms),
            f"averageTimePer{kind}CycleMs": passed_ms / cycles if cycles else 0,
            f"averageTimePer{kind}RecordMs": passed_ms / records if records else 0,
            f"averageRecordPer{kind}Cycle": records / cycles if cycles else 0,
        }


__all__ = ["Cycles", "Link", "Loop"]
