"""Batcher: requests that arrive while a batch runs share the next one."""

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

import structlog
from opentelemetry.trace import Span

from sluiceway_gateway.core.errors import DatabaseUnavailable, Unavailable
from sluiceway_gateway.core.passes import OnPass, PassRecord, unobserved
from sluiceway_gateway.core.tracing import current, joined

_log = structlog.get_logger(__name__)

Request = TypeVar("Request")
Response = TypeVar("Response")
_Waiting = tuple[Request, Future[Response], Span]
"""A request, its response, and the span that it arrived in."""


class Batcher(Generic[Request, Response]):
    """Passes all waiting requests to one call of `work`, on its own thread.

    There is no delay to collect requests. `work` gets requests in order of arrival and returns
    their responses in the same order. An exception among them is raised for its request only. A
    request without a response, because it waits for a lock, is passed to `alone` on one of a few
    other threads, and so are all requests of a batch whose `work` raises an error: then only the
    one at fault fails. DatabaseUnavailable fails all of them. If none of these threads can be
    started, `alone` runs on the batcher's own, and delays the next batch. If that thread ends by an
    error, all requests fail, also later ones, and `failing` says so.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Request]], Sequence[Response | Exception | None]],
        alone: Callable[[Request], Response],
        *,
        name: str,
        threads: int,
        key: Callable[[Request], Hashable] | None = None,
        weight: Callable[[Request], int] = lambda _request: 1,
        most: int = 1_000,
        on_pass: OnPass = unobserved,
    ) -> None:
        """Limit a batch to the weight `most` (or one request), without two of the same `key`.

        `on_pass` is called after each batch with the name and the number of failures in a row.
        """
        self._work = work
        self._alone = alone
        self._key = key
        self._weight = weight
        self._most = most
        self._passes = PassRecord(name, on_pass=on_pass)
        self._arriving: SimpleQueue[_Waiting[Request, Response] | None] = SimpleQueue()
        self._waiting: list[_Waiting[Request, Response]] = []
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._retried: SimpleQueue[_Waiting[Request, Response] | None] = SimpleQueue()
        """Requests for `alone`."""
        self._most_workers = threads
        self._workers: list[threading.Thread] = []
        self._closed = self._ended = False

    def failing(self) -> dict[str, str]:
        """Return the name with the type of the last error, or `ENDED`, if batches keep failing."""
        reason = self._passes.failing
        return {} if reason is None else {self._passes.name: reason}

    def submit(self, request: Request) -> "Future[Response]":
        """Add a request to the next batch; returns at once."""
        if self._thread.ident is None:
            self._start()
        future: Future[Response] = Future()
        self._arriving.put((request, future, current()))
        if self._ended:
            self._refuse_arrived()
        return future

    def close(self) -> None:
        """Answer all requests, then end; nothing may be submitted afterwards."""
        if self._thread.ident is None:
            return
        self._arriving.put(None)
        self._thread.join()
        for _ in self._workers:
            self._retried.put(None)
        for worker in self._workers:
            worker.join()

    def _start(self) -> None:
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()

    def _run(self) -> None:
        batch: list[_Waiting[Request, Response]] = []
        try:
            while self._waiting or not self._closed:
                batch = self._next_batch()
                if batch:
                    self._respond(batch)
        except BaseException as error:
            # Before the queue is emptied: later requests see it.
            self._ended = True
            self._refuse((*batch, *self._waiting))
            self._refuse_arrived()
            self._passes.end(error)

    def _respond(self, batch: "list[_Waiting[Request, Response]]") -> None:
        answered: list[tuple[_Waiting[Request, Response], Response | Exception | None]]
        try:
            with joined(f"{self._passes.name} batch", [span for *_, span in batch]):
                responses = self._work([request for request, *_ in batch])
            answered = list(zip(batch, responses, strict=True))
        except DatabaseUnavailable as error:
            answered = [(waiting, error) for waiting in batch]
        except Exception as error:
            self._passes.fail(error)
            answered = [(waiting, None) for waiting in batch]
        else:
            self._passes.succeed()
        for waiting, response in answered:
            _, future, _ = waiting
            if response is None:
                self._retry_alone(waiting)
            elif isinstance(response, Exception):
                future.set_exception(response)
            else:
                future.set_result(response)

    def _retry_alone(self, waiting: "_Waiting[Request, Response]") -> None:
        """Pass a request to `alone` on another thread, on this one if there is none."""
        self._retried.put(waiting)
        if len(self._workers) == self._most_workers:
            return
        worker = threading.Thread(
            target=self._run_alone, name=f"{self._passes.name}-alone", daemon=True
        )
        try:
            worker.start()
        except RuntimeError as error:
            _log.warning("a thread cannot be started", loop=self._passes.name, reason=str(error))
            if not self._workers:
                self._retried.get()
                self._answer_alone(*waiting)
        else:
            self._workers.append(worker)

    def _run_alone(self) -> None:
        while (waiting := self._retried.get()) is not None:
            self._answer_alone(*waiting)

    def _answer_alone(self, request: Request, future: "Future[Response]", span: Span) -> None:
        try:
            with joined(f"{self._passes.name} alone", [span]):
                response = self._alone(request)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(response)

    def _refuse_arrived(self) -> None:
        arrived: list[_Waiting[Request, Response]] = []
        while not self._arriving.empty():
            try:
                waiting = self._arriving.get_nowait()
            except Empty:
                # Another thread took it.
                break
            if waiting is not None:
                arrived.append(waiting)
        self._refuse(arrived)

    def _refuse(self, requests: "Iterable[_Waiting[Request, Response]]") -> None:
        for _, future, _ in requests:
            if not future.done() and (future.running() or future.set_running_or_notify_cancel()):
                future.set_exception(
                    Unavailable(
                        f"The gateway's thread {self._passes.name!r} has ended by an error, which "
                        "is in its log. Restart the gateway, and send the request again."
                    )
                )

    def _next_batch(self) -> "list[_Waiting[Request, Response]]":
        """Wait for a request, and return the next batch."""
        self._gather()
        batch: list[_Waiting[Request, Response]] = []
        later: list[_Waiting[Request, Response]] = []
        keys: set[Hashable] = set()
        weight = 0
        for at, waiting in enumerate(self._waiting):
            request, future, _ = waiting
            if weight >= self._most:
                later += self._waiting[at:]
                break
            key = at if self._key is None else self._key(request)
            if key in keys:
                later.append(waiting)
            elif future.set_running_or_notify_cancel():
                keys.add(key)
                batch.append(waiting)
                weight += self._weight(request)
        self._waiting = later
        return batch

    def _gather(self) -> None:
        """Collect the requests that have arrived; block until there is at least one."""
        waits = not self._waiting
        while True:
            try:
                arrived = self._arriving.get(block=waits)
            except Empty:
                return
            waits = False
            if arrived is None:
                self._closed = True
            else:
                self._waiting.append(arrived)
