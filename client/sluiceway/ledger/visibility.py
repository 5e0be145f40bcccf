"""Visibility: a channel's committed runs, kept current for all readers of a process."""

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from datetime import datetime

from sluiceway.api.arguments import whole_number
from sluiceway.api.endpoints import Position
from sluiceway.api.ledger import Committed, Interval, KnownCommit, LedgerCalls
from sluiceway.api.models import Connection
from sluiceway.concurrency import this_process
from sluiceway.errors import (
    Conflict,
    GatewayError,
    IncompatibleGateway,
    OffsetOutOfRange,
    OptionError,
    RecordsLost,
    TopicGone,
    clear_tracebacks,
)
from sluiceway.ledger.visible_runs import VisibleRuns
from sluiceway.runtime.threads import Signal, call

__all__ = ["CommittedRuns", "Snapshot", "Visibility", "fixed_visibility", "visibility_of"]

_LONG_POLL_S = 20.0
_PARK_S = 30.0
"""The time that the waiting thread stays alive without a waiting reader."""
_PAUSE_S = 1.0


class Visibility(ABC):
    """The visible part of a channel: `runs`, as of event `number` of the ledger.

    `visible_end` is by partition the end of the last committed run; `stable` reaches it once the
    batches before it have ended.
    """

    def __init__(self, connection: Connection) -> None:
        self.channel = connection.channel_name
        self._uid = connection.channel_uid
        self._topic_id = connection.topic_id
        self.runs = VisibleRuns()
        self.number = -1
        self.visible_end: Mapping[int, int] = {}
        self.users = 0
        self.outdated = False
        """True once a response said that some of these runs are lost: by a halt, a repair, or a
        restore of the database."""
        self._repaired: int | None = None

    def acquire(self, arrived: Signal | None = None) -> None:
        """Add a reader that may wait; `arrived` is set after each commit."""
        del arrived
        self.users += 1

    def release(self) -> None:
        """Remove a reader."""
        self.users -= 1

    @abstractmethod
    def refresh(self) -> None:
        """Request all commits until now. Raises GatewayError, TopicGone."""

    def require_current(self) -> None:
        """Raise the Conflict of these runs if any reader of this process has got it.

        Raises GatewayError, TopicGone.
        """
        if self.outdated:
            self.refresh()

    @abstractmethod
    def wait(self, number: int, timeout_s: float) -> bool:
        """Wait for an event after `number`; False after the timeout.

        A timeout of 0 only announces that a reader waits. Raises GatewayError, TopicGone.
        """

    @property
    def last_commit(self) -> KnownCommit | None:
        """The last commit of the known runs; None before the first one, and for a fixed part."""
        return None

    def require(self, commit: KnownCommit) -> None:
        """Raise Conflict `ledger_restored` unless the gateway has this commit.

        Raises GatewayError. A fixed part does nothing.
        """
        del commit

    @property
    def partitions(self) -> int:
        """The number of partitions with a known `stable`."""
        return max(self.runs.stable, default=-1) + 1

    def resumable(self, partition: int, position: Position) -> Position:
        """Return the position from which another reader reads everything that follows this one."""
        del partition
        return position

    def removed_records(self, begins: Mapping[int, int]) -> dict[int, OffsetOutOfRange]:
        """Return an error for each partition of a snapshot whose first records are gone.

        `begins` are the first offsets in Kafka, requested after the commits. Empty for readers that
        are not of a snapshot, which begin with what Kafka has.
        """
        del begins
        return {}

    @abstractmethod
    def held_back_by(self) -> str | None:
        """Return a description of the open batch that holds back `stable`, or None."""

    def _check(self, response: Committed) -> Committed:
        """Return the response; raise if the topic differs or the channel is halted or repaired."""
        if response.topic_id is not None and self._topic_id not in (None, response.topic_id):
            raise TopicGone(
                f"the committed records of the channel {self.channel!r} are those of the topic id "
                f"{response.topic_id}, but this reader was opened with the topic id "
                f"{self._topic_id}: the topic was deleted and created again. Open the channel "
                "again; positions in the old topic are invalid in this one"
            )
        if response.halted is not None:
            self.outdated = self.number >= 0
            raise Conflict(
                f"the channel {self.channel!r} is halted: it cannot be read or written before a "
                f"repair. {response.halted} `sluiceway channels repair {self.channel}` shows the "
                "lost records, and repairs the channel",
                code="ledger_halted",
            )
        if self.number >= 0 and response.repaired != self._repaired:
            self.outdated = True
            raise Conflict(
                f"the channel {self.channel!r} was repaired: Kafka had lost committed records, "
                "which this reader may still expect. Open a new reader, which continues at the "
                "committed positions without them",
                code="ledger_repaired",
            )
        self._repaired = response.repaired
        return response


class _FixedVisibility(Visibility):
    """A visible part that never changes."""

    def refresh(self) -> None:
        """Do nothing."""

    def wait(self, number: int, timeout_s: float) -> bool:
        """Return False."""
        del number, timeout_s
        return False

    def held_back_by(self) -> None:
        """Return None."""


def fixed_visibility(
    connection: Connection, ends: Mapping[int, int], runs: Mapping[int, tuple[Interval, ...]]
) -> Visibility:
    """Return a visible part that never changes: by partition the end, and the runs up to it."""
    visibility = _FixedVisibility(connection)
    visibility.runs.add(
        Committed(
            uid=connection.channel_uid,
            topic_id=connection.topic_id,
            number=0,
            stable=ends,
            visible_end=ends,
            runs=runs,
        )
    )
    visibility.number, visibility.visible_end = 0, ends
    return visibility


class Snapshot(_FixedVisibility):
    """The batches up to one commit, each wholly, also where batches before them are open.

    Its `runs` go up to `visible_end`, above the channel's `stable`, so no prefix by offsets has
    whole batches only: positions above `stable` are reported as `stable`.
    """

    def __init__(
        self, calls: LedgerCalls, connection: Connection, snapshot: int | datetime | None
    ) -> None:
        """Request the snapshot, given as the number of a commit or a time; None is the present.

        The present begins with what Kafka has. Raises OptionError, GatewayError, TopicGone, and
        RecordsLost if a repair has removed records since.
        """
        super().__init__(connection)
        if isinstance(snapshot, datetime):
            if snapshot.tzinfo is None:
                raise OptionError(
                    f"snapshot is {snapshot.isoformat()} without a time zone; give one, such as "
                    "timezone.utc"
                )
        elif snapshot is not None:
            number = whole_number(snapshot)
            if number is None:
                raise OptionError(
                    f"snapshot is {snapshot!r}; it takes the number of a commit or a datetime with "
                    "a time zone. `sluiceway channels commits NAME` lists the commits"
                )
            snapshot = number
        response = self._request(calls, connection.partitions, snapshot)
        self._stable = response.stable
        self._of_present = snapshot is None
        if snapshot is None and response.visible_end != response.stable:
            ends = response.visible_end
            response = self._request(calls, connection.partitions, response.number)
            if any(response.visible_end.get(p, 0) < end for p, end in ends.items()):
                raise IncompatibleGateway(
                    f"the gateway lists only a part of the commit {response.number} of the channel "
                    f"{self.channel!r} while other batches are open: update the gateway"
                )
        # Complete up to the visible end, so nothing waits for open batches.
        self.runs.add(replace(response, stable=response.visible_end))
        if response.repaired is not None and response.repaired > response.number:
            for partition, intervals in response.given_up.items():
                if any(lost.first < response.visible_end.get(partition, 0) for lost in intervals):
                    raise RecordsLost(
                        f"the snapshot of commit {response.number} of the channel "
                        f"{self.channel!r} is not complete: Kafka had lost records of partition "
                        f"{partition}, which the repair {response.repaired} has removed. Read a "
                        "snapshot after the repair"
                    )
        self._removed = frozenset(response.removed)
        self.number = response.number
        self.visible_end = self.runs.stable

    def _request(
        self, calls: LedgerCalls, partitions: int, snapshot: int | datetime | None
    ) -> Committed:
        """Return a response with all partitions, also those that were added meanwhile."""
        while True:
            starts = dict.fromkeys(range(partitions), 0)
            response = calls.all_committed(
                self.channel, uid=self._uid, starts=starts, snapshot=snapshot
            )
            assert response is not None  # noqa: S101 - a request without an ETag has a response
            if max(response.stable, default=0) < partitions:
                return self._check(response)
            partitions = max(response.stable) + 1

    def resumable(self, partition: int, position: Position) -> Position:
        """Return the position, or `stable` if that is lower: resuming repeats, and never skips."""
        stable = Position(offset=self._stable.get(partition, 0))
        return min(position, stable)

    def removed_records(self, begins: Mapping[int, int]) -> dict[int, OffsetOutOfRange]:
        """Return an error for each partition of which retention has removed records."""
        errors: dict[int, OffsetOutOfRange] = {}
        if self._of_present:
            return errors
        for partition, begin in begins.items():
            run = self.runs.next_run(partition, 0)
            if run is not None and run.first < begin:
                offset = run.first
            elif partition in self._removed:
                # The gateway has dropped their runs as well.
                offset = max(0, begin - 1)
            else:
                continue
            errors[partition] = OffsetOutOfRange(
                partition=partition,
                offset=offset,
                begin=begin,
                end=max(begin, self.runs.stable_of(partition)),
                advice="Kafka no longer has all records of this snapshot: read a later one, or set "
                "the start to an offset within the range to read what is left",
            )
        return errors


class CommittedRuns(Visibility):
    """The committed runs of a channel, shared by its readers in a process.

    While readers wait, one thread waits for commits by long polls. It ends when no reader has
    waited for a while. Waiting readers get final errors at once, an outage of the gateway and other
    errors that may pass after `grace_s`.
    """

    def __init__(
        self,
        calls: LedgerCalls,
        connection: Connection,
        *,
        grace_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(connection)
        self._calls = calls
        self._partitions = connection.partitions
        self._grace_s = grace_s
        self._monotonic = monotonic
        self._etag: str | None = None
        self._at: datetime | None = None
        self._held_back_by: str | None = None
        # The main thread only takes the lock: an interrupt in Python code of a Condition or an
        # Event would leave them locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._signals: weakref.WeakSet[Signal] = weakref.WeakSet()
        self._demand = Signal()
        self._follows = False
        self._failure: Exception | None = None
        self._failing_since_s: float | None = None

    @property
    def last_commit(self) -> KnownCommit | None:
        """The last commit of the known runs; None before the first one."""
        with self._lock:
            number, at = self.number, self._at
        return None if at is None else KnownCommit(number=number, at=at)

    def refresh(self) -> None:
        """Request all commits until now. Raises GatewayError, TopicGone.

        Raises Conflict `ledger_restored` if the gateway does not have the last commit any more.
        """
        self._request(self._calls, seen=self._etag, wait_s=0.0)

    def require(self, commit: KnownCommit) -> None:
        """Raise Conflict `ledger_restored` unless the gateway has this commit.

        Raises GatewayError.
        """
        self._request(self._calls, seen=None, wait_s=0.0, required=commit)

    def wait(self, number: int, timeout_s: float) -> bool:
        """Wait for an event after `number`; False after the timeout."""
        with self._lock:
            self._demand.set()
            follows = self._follows
        if not follows:
            call(self._follow)
        if self.number == number and timeout_s:
            call(lambda: self._await(number, timeout_s))
        with self._lock:
            failure = self._overdue
            if failure is not None:
                # The next wait tries again.
                self._failure = None
                raise failure
            return self.number != number

    def _follow(self) -> None:
        """Start the waiting thread."""
        with self._lock:
            if not self._follows:
                threading.Thread(
                    target=_follow,
                    args=(weakref.ref(self), self._calls.clone(), self._demand),
                    name="sluiceway-commits",
                    daemon=True,
                ).start()
                # Not before: without a new thread, the next wait tries again.
                self._follows = True

    def _await(self, number: int, timeout_s: float) -> None:
        with self._lock:
            self._changed.wait_for(
                lambda: self.number != number or self._overdue is not None, timeout_s
            )

    def held_back_by(self) -> str | None:
        """Request the open batches, and return the one that `stable` waits for."""
        # Without the ETag, which does not change when a batch is opened.
        self._request(self._calls, seen=None, wait_s=0.0)
        return self._held_back_by

    def acquire(self, arrived: Signal | None = None) -> None:
        """Add a reader that may wait; `arrived` is set after each commit or failure."""
        with self._lock:
            super().acquire()
            if arrived is not None:
                self._signals.add(arrived)

    def release(self) -> None:
        """Remove a reader; after the last one, stop waiting for commits."""
        with self._lock:
            super().release()
            if not self.users:
                self._demand.set()

    def follow_once(self, calls: LedgerCalls) -> None:
        """Wait for one change; runs in the waiting thread."""
        began_s = self._monotonic()
        try:
            self._request(calls, seen=self._etag, wait_s=_LONG_POLL_S)
        except Exception as error:
            if isinstance(error, GatewayError):
                clear_tracebacks(error)
            with self._lock:
                self._failure = error
                if self._failing_since_s is None:
                    self._failing_since_s = began_s
                self._notify()
            self._demand.wait(_PAUSE_S)
        else:
            self._failure = self._failing_since_s = None

    def leave(self) -> bool:
        """Whether the waiting thread may end because no reader waits."""
        with self._lock:
            self._follows = self.users > 0 and self._demand.is_set()
            return not self._follows

    @property
    def _overdue(self) -> Exception | None:
        """The failure to raise; one that may pass only after the grace period."""
        failure, since_s = self._failure, self._failing_since_s
        if isinstance(failure, GatewayError) and not failure.is_final and since_s is not None:
            return failure if self._monotonic() - since_s > self._grace_s else None
        return failure

    def _request(
        self,
        calls: LedgerCalls,
        *,
        seen: str | None,
        wait_s: float,
        required: KnownCommit | None = None,
    ) -> None:
        while True:
            starts = dict.fromkeys(range(self._partitions), 0) | self.runs.stable
            expected = required or self.last_commit
            response = calls.all_committed(
                self.channel,
                uid=self._uid,
                starts=starts,
                seen=seen,
                wait_s=wait_s,
                expected_number=None if expected is None else expected.number,
            )
            if response is None:
                return
            # A commit without a time was pruned, if there are later ones.
            if expected is not None and (
                response.number < expected.number or response.known_at not in (None, expected.at)
            ):
                raise self._restored(expected)
            self._check(response)
            added = response.stable.keys() - starts.keys()
            if not added:
                break
            # The channel has grown: repeat the request with the new partitions.
            self._partitions = max(added) + 1
            seen, wait_s = None, 0.0
        with self._lock:
            self.runs.add(response)
            if response.number >= self.number:
                self.visible_end = response.visible_end
                self._held_back_by = _holder(response)
                self.number, self._etag = response.number, response.etag
                self._at = response.at
            self.outdated = False
            self._notify()

    def _notify(self) -> None:
        """Wake waiting readers; with the lock held."""
        self._changed.notify_all()
        for arrived in self._signals:
            arrived.set()

    def _restored(self, commit: KnownCommit) -> Conflict:
        """Return the error for a ledger without a commit that this process knows."""
        self.outdated = True
        return Conflict(
            f"the gateway does not know the commit {commit.number} of the channel "
            f"{self.channel!r} that this reader has seen, of {commit.at}: its database was "
            "restored to an earlier state. Records that this reader has returned may be no longer "
            "committed, and be written again. Open a new reader, which continues at the committed "
            "positions",
            code="ledger_restored",
        )


def _follow(runs: "weakref.ref[CommittedRuns]", calls: LedgerCalls, demand: Signal) -> None:
    """Wait for a channel's commits while readers wait; closes `calls` at the end."""
    try:
        while True:
            demand.wait(_PARK_S)
            served = runs()
            if served is None or served.leave():
                return
            demand.clear()
            served.follow_once(calls)
            del served
    finally:
        calls.close()


def _holder(response: Committed) -> str | None:
    """Describe the open batch with the lowest begin that hides committed records, if any."""
    held = {p: end for p, end in response.visible_end.items() if end > response.stable.get(p, 0)}
    holders = [
        (
            sum(end - batch.begin[p] for p, end in held.items() if batch.begin.get(p, end) < end),
            batch,
        )
        for batch in response.open
    ]
    most, holder = max(holders, key=lambda candidate: candidate[0], default=(0, None))
    if not most or holder is None:
        return None
    return (
        f"the batch {holder.key!r} of {holder.owner!r}, open since "
        f"{holder.since:%Y-%m-%d %H:%M:%S%z},"
    )


_SHARED: "weakref.WeakValueDictionary[Hashable, CommittedRuns]" = weakref.WeakValueDictionary()


def visibility_of(
    calls: LedgerCalls,
    connection: Connection,
    *,
    grace_s: float,
    snapshot: int | datetime | None = None,
    present: bool = False,
    shared: bool = True,
) -> Visibility | None:
    """Return a reader's visibility; None for a channel whose records are visible at once.

    `present` is the snapshot of what is committed now. Without a snapshot, the readers of the
    process share one with its own connections; one that is not `shared` uses those of `calls`.
    Raises OptionError for a `snapshot` of such a channel, GatewayError, TopicGone.
    """
    if connection.delivery != "exactly_once":
        if snapshot is None:
            return None
        raise OptionError(
            f"the channel {connection.channel_name!r} has no snapshots: its delivery is "
            f"{connection.delivery}, which has no commits. Create a channel with "
            "delivery='exactly_once' for snapshots"
        )
    if snapshot is not None or present:
        return Snapshot(calls, connection, snapshot)
    if not shared:
        runs = CommittedRuns(calls, connection, grace_s=grace_s)
        runs.refresh()
        return runs
    key = (this_process(), calls.identity, grace_s, connection.channel_uid, connection.topic_id)
    visibility = _SHARED.get(key)
    if visibility is None or visibility.outdated:
        _SHARED.pop(key, None)
        # The caller may close its own connections before other readers of the process end.
        own = calls.clone()
        visibility = CommittedRuns(own, connection, grace_s=grace_s)
        weakref.finalize(visibility, own.close).atexit = False
        visibility = _SHARED.setdefault(key, visibility)
    visibility.refresh()
    return visibility
