"""Attach service: requests that arrive together share a transaction."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.batching import Batcher
from sluiceway_gateway.clock import Clock, system_clock
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.endpoints.attach_batch import AttachBatch, Attached, AttachRequest, Outcome
from sluiceway_gateway.errors import DatabaseUnavailable, SluicewayGatewayError

#: Requests in one transaction, which holds up others.
_BATCH_SIZE = 200
#: Threads for requests that wait for a row lock.
_WAITING_THREADS = 8


class AttachService:
    """Attaches endpoints to the channels of one database.

    Requests that arrive together share a transaction. One that needs a row which another
    transaction holds is retried alone, so it does not hold up the others.
    """

    def __init__(
        self,
        database: Database,
        tokens: Tokens,
        *,
        wake: Callable[[], None],
        notify: Callable[[], None],
        clock: Clock = system_clock,
    ) -> None:
        """`wake` is called when a channel has to grow, `notify` after new endpoints."""
        self._database = database
        self._tokens = tokens
        self._wake = wake
        self._notify = notify
        self._clock = clock
        self._batcher = Batcher(
            self._attach_all, name="attach", key=lambda each: each.key, most=_BATCH_SIZE
        )
        self._waiting = ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix="attach")

    def close(self) -> None:
        """Stop after all requests are answered."""
        self._batcher.close()
        self._waiting.shutdown()

    def submit(self, request: AttachRequest) -> "Future[Attached]":
        """Attach an endpoint, with an epoch above all others of its group.

        A repeated request changes nothing, however late. The future raises Unauthenticated,
        Forbidden, ChannelNotFound, UidMismatch, ChannelNotReady (also while the channel grows
        with the group), ChannelClosed, Fenced, EndpointIdReused, GroupSize, GroupMode,
        GroupLargerThanPinned and TopicChanged.
        """
        return self._batcher.submit(request)

    def _attach_all(
        self, requests: Sequence[AttachRequest]
    ) -> "list[Attached | Future[Attached] | Exception]":
        outcomes: Sequence[Outcome]
        try:
            outcomes = self._attach(requests, wait=False)
        except DatabaseUnavailable:
            raise
        except Exception:
            # A value that the database refuses fails the transaction: find the request it is in.
            outcomes = [None] * len(requests)
        return [
            outcome or self._waiting.submit(self._attach_one, request)
            for request, outcome in zip(requests, outcomes, strict=True)
        ]

    def _attach_one(self, request: AttachRequest) -> Attached:
        (outcome,) = self._attach([request], wait=True)
        assert outcome is not None, "the request waited for its locks"  # noqa: S101
        if isinstance(outcome, SluicewayGatewayError):
            raise outcome
        return outcome

    def _attach(self, requests: Sequence[AttachRequest], *, wait: bool) -> "list[Outcome]":
        with self._database.write() as tx:
            refusals = self._tokens.refusals(tx, {each.principal for each in requests})
            batch = AttachBatch(tx, requests, now=self._clock(), wait=wait)
            batch.run(refusals)
        if batch.needs_growth:
            self._wake()
        if batch.endpoints:
            self._notify()
        return batch.outcomes
