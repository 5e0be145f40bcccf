"""Commits of a consumer: at once or by a thread of their own, and what is told of them."""

import collections
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import KafkaError, TopicPartition

from sluiceway.confluent.errors import FAIL, kafka_error
from sluiceway.confluent.fetcher import Part, WakeupEvent, listed
from sluiceway.errors import GatewayUnavailable, SluicewayError

__all__ = ["Committer"]

LOGGER = logging.getLogger("sluiceway.confluent")

OnCommit = Callable[[KafkaError | None, list[TopicPartition]], object]


class Committer:
    """Keeps offsets by `keep`, which is given those of one channel and never called twice at once.

    What waits for the thread is committed together, the highest offset of each partition; every
    request gets its own report. `reports` are handed out by who polls.
    """

    def __init__(
        self, keep: Callable[[str, Mapping[int, int]], None], *, news: WakeupEvent
    ) -> None:
        self._keep = keep
        self._news = news
        self._turn = threading.Lock()
        self._change = threading.Condition()
        self._waiting: list[dict[Part, int]] = []
        self._busy = False
        self._thread: threading.Thread | None = None
        self._ended = False
        self.reports: collections.deque[tuple[KafkaError | None, list[TopicPartition]]] = (
            collections.deque()
        )

    @property
    def idle(self) -> bool:
        """Whether nothing waits, and nothing is on its way."""
        return not (self._waiting or self._busy)

    def now(self, wanted: Mapping[Part, int]) -> dict[str, SluicewayError]:
        """Commit and return, by channel, what stood against it."""
        failures: dict[str, SluicewayError] = {}
        by_channel: dict[str, dict[int, int]] = {}
        for (channel, partition), at in wanted.items():
            by_channel.setdefault(channel, {})[partition] = at
        with self._turn:
            for channel, places in by_channel.items():
                try:
                    self._keep(channel, places)
                except SluicewayError as error:
                    failures[channel] = error
        return failures

    def soon(self, wanted: Mapping[Part, int]) -> None:
        """Commit in a moment, and report."""
        with self._change:
            self._waiting.append(dict(wanted))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="sluiceway-commit", daemon=True
                )
                self._thread.start()
            self._change.notify_all()

    def report(self, wanted: Mapping[Part, int], failures: Mapping[str, SluicewayError]) -> None:
        """Put what came of a commit where it is handed out."""
        first = next((failures[channel] for channel, _ in wanted if channel in failures), None)
        self.reports.append((first and kafka_error(first), listed(wanted)))
        self._news.set()

    def settle(self) -> None:
        """Return when nothing waits any more."""
        with self._change:
            self._change.wait_for(lambda: not self._waiting and not self._busy)

    def end(self) -> None:
        """Commit what waits, and end."""
        self.settle()
        with self._change:
            self._ended = True
            self._change.notify_all()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._ended)
                asked, self._waiting = self._waiting, []
                if not asked:
                    return
                self._busy = True
            try:
                self._commit(asked)
            except Exception as error:
                # Who waits for this thread would wait for ever.
                LOGGER.exception("commits failed")
                for each in asked:
                    self.reports.append((KafkaError(FAIL, repr(error)), listed(each)))
                self._news.set()
            finally:
                with self._change:
                    self._busy = False
                    self._change.notify_all()

    def _commit(self, asked: Sequence[dict[Part, int]]) -> None:
        together: dict[Part, int] = {}
        for each in asked:
            together |= {part: max(at, together.get(part, at)) for part, at in each.items()}
        failures = self.now(together)
        # Whose fault it is shows when each goes by itself, unless it is nobody's.
        away = all(isinstance(each, GatewayUnavailable) for each in failures.values())
        for each in asked:
            self.report(each, failures if away or len(asked) == 1 else self.now(each))
