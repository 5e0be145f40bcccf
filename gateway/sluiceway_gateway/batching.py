"""Batcher: requests that arrive while one batch is under way share the next one."""

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Batcher(Generic[Asked, Answer]):
    """Does all that waits with one call, and what comes meanwhile with the next.

    Whoever comes alone does not wait for others. `work` gets what is asked, in the order in which
    it came, and returns the answers in that order. An answer that is an exception is raised, to
    that one alone, and one that is a future is waited for by that one alone; what `work` raises
    is raised to all.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Asked]], "Sequence[Answer | Future[Answer] | Exception]"],
        *,
        name: str,
        key: Callable[[Asked], Hashable] | None = None,
        weight: Callable[[Asked], int] = lambda _asked: 1,
        most: int = 1_000,
    ) -> None:
        """Take at most `most` in weight at once (one in any case), and no two of the same `key`."""
        self._work = work
        self._key = key
        self._weight = weight
        self._most = most
        self._coming: SimpleQueue[tuple[Asked, Future[Answer]] | None] = SimpleQueue()
        self._waiting: list[tuple[Asked, Future[Answer]]] = []
        self._begun = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ends = False

    def submit(self, asked: Asked) -> "Future[Answer]":
        """Have it done; returns at once."""
        if self._thread.ident is None:
            self._begin()
        future: Future[Answer] = Future()
        self._coming.put((asked, future))
        return future

    def close(self) -> None:
        """End when all that was asked is answered; nothing may be asked any more."""
        self._begin()
        self._coming.put(None)
        self._thread.join()

    def _begin(self) -> None:
        with self._begun:
            if self._thread.ident is None:
                self._thread.start()

    def _run(self) -> None:
        while self._waiting or not self._ends:
            taken = self._taken()
            if not taken:
                continue
            answers: Sequence[Answer | Future[Answer] | Exception]
            try:
                answers = self._work([asked for asked, _ in taken])
            except Exception as error:
                answers = [error] * len(taken)
            for (_, future), answer in zip(taken, answers, strict=True):
                _settle(future, answer)

    def _taken(self) -> list[tuple[Asked, "Future[Answer]"]]:
        """Wait until somebody is there, and return what goes next."""
        self._gather()
        taken: list[tuple[Asked, Future[Answer]]] = []
        later: list[tuple[Asked, Future[Answer]]] = []
        keys: set[Hashable] = set()
        weight = 0
        for at, (asked, future) in enumerate(self._waiting):
            if weight >= self._most:
                later += self._waiting[at:]
                break
            key = at if self._key is None else self._key(asked)
            if key in keys:
                later.append((asked, future))
            elif future.set_running_or_notify_cancel():
                keys.add(key)
                taken.append((asked, future))
                weight += self._weight(asked)
        self._waiting = later
        return taken

    def _gather(self) -> None:
        """Bring in all that have come; wait for one, if nobody waits already."""
        waits = not self._waiting
        while True:
            try:
                came = self._coming.get(block=waits)
            except Empty:
                return
            waits = False
            if came is None:
                self._ends = True
            else:
                self._waiting.append(came)


def _settle(future: "Future[Answer]", answer: "Answer | Future[Answer] | Exception") -> None:
    def pass_on(done: "Future[Answer]") -> None:
        error = done.exception()
        if error is None:
            future.set_result(done.result())
        else:
            future.set_exception(error)

    if isinstance(answer, Future):
        answer.add_done_callback(pass_on)
    elif isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
