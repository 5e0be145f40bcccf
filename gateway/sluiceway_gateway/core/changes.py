"""Waits for changes: subscriptions of requests, and notifications between replicas.

A transaction publishes its changes (`WriteTransaction.publish`). After the commit they wake the
waits of this process, and on PostgreSQL those of other replicas, which then read their own rows.
"""

import asyncio
import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg

from sluiceway_gateway.core.db.engine import ChangeKey, ChangeKind, Database
from sluiceway_gateway.core.db.failures import translated
from sluiceway_gateway.core.errors import TooManyWaiters
from sluiceway_gateway.core.passes import OnPass, PassRecord, unobserved

_ALL = ""
"""The uid of all channels; none has it."""
_ANYTHING = ChangeKey("", _ALL)
"""The change that wakes all subscribers."""
_REREADS_PER_S = 200
"""Reads without a change per second, of all waits together: of many, each reads less often."""
_PACE_S = 0.1
"""Minimum time between reads of a subscriber, but not before its first one after a change."""


def of_channel(uid: str, *kinds: ChangeKind) -> tuple[ChangeKey, ...]:
    """Return the changes of a channel itself, such as its deletion, and those of more kinds."""
    return tuple(ChangeKey(kind, uid) for kind in (ChangeKind.CHANNEL, *kinds))


def of_status(uid: str = _ALL) -> tuple[ChangeKey, ...]:
    """Return the changes of a channel's status; by default, of all channels."""
    return of_channel(uid, ChangeKind.ENDPOINTS, ChangeKind.SAMPLES)


class Subscription(asyncio.Event):
    """Is set at each of some changes, and at the shutdown. Used in the event loop only."""

    next_read_s = 0.0
    """The earliest time of the next read after a change."""

    async def set_within(self, timeout_s: float) -> bool:
        """Wait until it is set; False after `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.wait()
        return self.is_set()


_LISTEN = "LISTEN sluiceway"
_NOTIFY = "SELECT pg_notify('sluiceway', change) FROM unnest(%s::text[]) AS change"
_PING_S = 5.0
"""Time without a notification after which a statement checks the connection."""
_RETRY_S = 1.0


class Notifications:
    """Notifications between replicas, by LISTEN and NOTIFY on a connection of their own.

    Transactions with NOTIFY commit one after another, each with its write to the disk. So changes
    are sent after their commits, all that have come together. Those of a replica that ends in
    between are found by the next reads of the waits.
    """

    def __init__(self, database: Database, changes: "Changes", passes: PassRecord) -> None:
        """Open no connection yet; `passes` records the losses of connections."""
        self._database = database
        self._changes = changes
        self._passes = passes
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        """Protects the changes that arrive, and the signal for them."""
        self._arriving: set[ChangeKey] = set()
        self._signal: socket.socket | None = None
        """Wakes the thread; None before its start and from its end on."""
        self._receiver: socket.socket
        self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)

    def start(self) -> None:
        """Connect, and again after each loss of the connection. Call once."""
        self._receiver, signal = socket.socketpair()
        self._thread.start()
        self._signal = signal

    def send(self, changes: Collection[ChangeKey]) -> None:
        """Notify the other replicas soon. May be called from any thread."""
        with self._lock:
            if self._signal is not None:
                if not self._arriving:
                    self._signal.send(b"\0")
                self._arriving.update(changes)

    def stop(self) -> None:
        """Send what is left if there is a connection, and disconnect."""
        self._stopping.set()
        with self._lock:
            signal, self._signal = self._signal, None
        if signal is not None:
            # That makes the other end readable.
            signal.close()
            self._thread.join()
            self._receiver.close()

    def _run(self) -> None:
        unsent: set[ChangeKey] = set()
        while not self._stopping.is_set():
            try:
                with translated(), closing(self._database.connect()) as connection:
                    self._exchange(connection, unsent)
            except Exception as error:
                self._passes.fail(error)
                self._stopping.wait(_RETRY_S)

    def _exchange(self, connection: "psycopg.Connection[Any]", unsent: set[ChangeKey]) -> None:
        """Send and receive until the end; raises psycopg's errors, and keeps what is unsent."""
        connection.execute(_LISTEN)
        # Changes before may have been missed.
        self._changes.deliver([_ANYTHING])
        self._passes.succeed()
        with selectors.DefaultSelector() as selector:
            signal = selector.register(self._receiver, selectors.EVENT_READ)
            selector.register(connection, selectors.EVENT_READ)
            is_silent, stops = False, False
            while not stops:
                stops = self._stopping.is_set()
                with self._lock:
                    unsent |= self._arriving
                    self._arriving.clear()
                if unsent or is_silent:
                    connection.execute(_NOTIFY, (list(map(" ".join, unsent)),))
                    unsent.clear()
                # Without waiting: what has arrived, also with the result of a statement.
                for notification in connection.notifies(timeout=0):
                    if notification.pid != connection.info.backend_pid:
                        kind, _, uid = notification.payload.partition(" ")
                        self._changes.deliver([ChangeKey(kind, uid)])
                ready = selector.select(0 if stops else _PING_S)
                is_silent = not ready
                if any(key is signal for key, _ in ready):
                    self._receiver.recv(1)


class Changes:
    """Waits of one process for changes; belongs to one event loop."""

    def __init__(
        self, database: Database, *, limit: int, reread_s: float, on_pass: OnPass = unobserved
    ) -> None:
        """Allow `limit` waits, which end without a change after `reread_s`.

        That bounds the delay if another replica's notification is lost. `on_pass` gets the losses
        of the connection for them.
        """
        self._limit = limit
        self._reread_s = reread_s
        self._count = 0
        self._subscriptions: dict[ChangeKey, set[Subscription]] = defaultdict(set)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._replicas: Notifications | None = None
        if database.dialect == "postgresql":
            passes = PassRecord("notifications", on_pass=on_pass)
            self._replicas = Notifications(database, self, passes)
        database.on_commit = self.publish

    @property
    def waiting(self) -> int:
        """The number of waits at present."""
        return self._count

    @property
    def is_closed(self) -> bool:
        """Whether waits end at once, because the process shuts down."""
        return self._closed

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Count as one wait; raises TooManyWaiters at the limit."""
        if self._count >= self._limit:
            raise TooManyWaiters(
                "This gateway has reached its limit of waiting requests; retry in a moment, "
                "or without `wait`."
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1

    @contextmanager
    def subscribe(self, changes: Collection[ChangeKey]) -> Iterator[Subscription]:
        """Set the subscription at each of these changes that a read in the block may not show."""
        self._loop = asyncio.get_running_loop()
        subscription = Subscription()
        for key in (*changes, _ANYTHING):
            self._subscriptions[key].add(subscription)
        try:
            yield subscription
        finally:
            for key in (*changes, _ANYTHING):
                self._subscriptions[key].discard(subscription)
                if not self._subscriptions[key]:
                    del self._subscriptions[key]

    async def wait(self, subscription: Subscription, *, until_s: float) -> bool:
        """Wait until the subscriber should read again; False at `until_s` and at the shutdown.

        `until_s` is a monotonic time. Raises TooManyWaiters at the limit.
        """
        timeout_s = until_s - time.monotonic()
        if self._closed or timeout_s <= 0:
            return False
        with self.slot():
            pause_s = max(self._reread_s, self._count / _REREADS_PER_S)
            changed = await subscription.set_within(min(timeout_s, pause_s))
            if changed:
                await asyncio.sleep(subscription.next_read_s - time.monotonic())
        subscription.clear()
        subscription.next_read_s = time.monotonic() + _PACE_S
        return (changed or pause_s < timeout_s) and not self._closed

    def publish(self, changes: Collection[ChangeKey]) -> None:
        """Wake the waits of all replicas after a commit. May be called from any thread."""
        self.deliver(changes)
        if self._replicas is not None:
            self._replicas.send(changes)

    def deliver(self, changes: Iterable[ChangeKey]) -> None:
        """Wake the waits of this process. May be called from any thread."""
        keys = (key for change in changes for key in (change, ChangeKey(change.kind, _ALL)))
        awaited = [key for key in keys if key in self._subscriptions]
        if awaited and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, awaited)

    def _wake(self, keys: Iterable[ChangeKey]) -> None:
        for key in keys:
            for subscription in self._subscriptions.get(key, ()):
                subscription.set()

    def start(self) -> None:
        """Exchange changes with other replicas."""
        if self._replicas is not None:
            self._replicas.start()

    def close(self) -> None:
        """End all waits, and allow no more. May be called from any thread."""
        self._closed = True
        self.deliver([_ANYTHING])

    def stop(self) -> None:
        """Exchange no more changes, after those that were published."""
        if self._replicas is not None:
            self._replicas.stop()
