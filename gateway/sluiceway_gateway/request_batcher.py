"""Batcher: requests that arrive while a batch runs share the next one."""

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from opentelemetry.trace import Span

from sluiceway_gateway.errors import DatabaseUnavailable
from sluiceway_gateway.tracing import current, joined

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
    one at fault fails. DatabaseUnavailable fails all of them.
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
    ) -> None:
        """Limit a batch to the weight `most` (or one request), without two of the same `key`."""
        self._work = work
        self._alone = alone
        self._key = key
        self._weight = weight
        self._most = most
        self._arriving: SimpleQueue[_Waiting[Request, Response] | None] = SimpleQueue()
        self._waiting: list[_Waiting[Request, Response]] = []
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"{name}-alone")
        self._closed = False

    def submit(self, request: Request) -> "Future[Response]":
        """Add a request to the next batch; returns at once."""
        if self._thread.ident is None:
            self._start()
        future: Future[Response] = Future()
        self._arriving.put((request, future, current()))
        return future

    def close(self) -> None:
        """Answer all requests, then end; nothing may be submitted afterwards."""
        self._start()
        self._arriving.put(None)
        self._thread.join()
        self._threads.shutdown()

    def _start(self) -> None:
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()

    def _run(self) -> None:
        while self._waiting or not self._closed:
            batch = self._next_batch()
            if not batch:
                continue
            responses: Sequence[Response | Exception | None]
            try:
                with joined(f"{self._thread.name} batch", [span for *_, span in batch]):
                    responses = self._work([request for request, *_ in batch])
            except DatabaseUnavailable as error:
                responses = [error] * len(batch)
            except Exception:
                responses = [None] * len(batch)
            for (request, future, span), response in zip(batch, responses, strict=True):
                if response is None:
                    self._threads.submit(self._run_alone, request, future, span)
                elif isinstance(response, Exception):
                    future.set_exception(response)
                else:
                    future.set_result(response)

    def _run_alone(self, request: Request, future: "Future[Response]", span: Span) -> None:
        try:
            with joined(f"{self._thread.name} alone", [span]):
                response = self._alone(request)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(response)

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
