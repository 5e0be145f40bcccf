"""Readable offsets: the offsets that planning may read, from Kafka or from the commits."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from sluiceway.errors import (
    CheckpointMismatch,
    Conflict,
    GatewayError,
    GatewayUnavailable,
    OffsetOutOfRange,
    OptionError,
)
from sluiceway.spark.offsets import OffsetRange
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.worker import RefreshableConnection
from sluiceway.spi import (
    Control,
    Interval,
    KnownCommit,
    Transport,
    Visibility,
    Watermarks,
    open_stream,
    visibility_of,
)

__all__ = ["ReadableOffsets"]

LOGGER = logging.getLogger(__name__)

_FOLLOWED_S: Final = 1.0
"""With calls at a shorter interval than this, a background long poll requests commits."""
_RETRY_AFTER_S: Final = 15.0
_OPEN_TIMEOUT_S: Final = 30.0
_GRACE_S: Final = 60.0
_RESTORED: Final = (
    "the gateway's database was restored from an earlier state. Also restore the checkpoint of "
    "that time, or give the query a new checkpointLocation"
)


class ReadableOffsets:
    """The offsets of a channel that a read may plan.

    Those of an exactly-once channel end at `stable`, or in a bounded read at the end of the last
    batch until now, and `visible` returns the committed ones.
    Those of other channels are Kafka's. The ledger is requested before Kafka's first offsets,
    because the gateway prunes commits of records that Kafka has deleted.
    """

    def __init__(
        self,
        source: RefreshableConnection,
        options: ReadOptions,
        config: Mapping[str, object],
        *,
        timeout_s: float,
        gateway_timeout_s: float,
        bounded: bool = False,
        followed_s: float = _FOLLOWED_S,
        open_timeout_s: float = _OPEN_TIMEOUT_S,
    ) -> None:
        """Request the commits; `bounded` only those until now, each batch wholly.

        Without a gateway, this is repeated for `open_timeout_s`. `follow` waits for commits in the
        background if its calls are less than `followed_s` apart.

        Raises OptionError, GatewayError, TopicGone.
        """
        connection = source.connection
        self.stream = open_stream(connection, config, timeout_s=timeout_s)
        self._channel = connection.channel_name
        self._followed_s = followed_s
        self._control: Control | None = None
        self._visibility: Visibility | None = None
        self._last_follow_s = self._retry_at_s = float("-inf")
        try:
            self._visibility = self._open(
                source, options.snapshot, gateway_timeout_s, open_timeout_s, bounded=bounded
            )
        except BaseException:
            self.close()
            raise
        if self._visibility is not None:
            self._visibility.acquire()

    @property
    def partitions(self) -> int:
        """The number of partitions with committed records; 0 for other channels."""
        return 0 if self._visibility is None else self._visibility.partitions

    def close(self) -> None:
        """Close the connections, and stop waiting for commits."""
        self.stream.close()
        visibility, self._visibility = self._visibility, None
        if visibility is not None:
            visibility.release()
        if self._control is not None:
            self._control.close()

    @property
    def last_commit(self) -> KnownCommit | None:
        """The last known commit of an exactly-once channel, for the checkpoint."""
        return None if self._visibility is None else self._visibility.last_commit

    def refresh(self) -> None:
        """Request all commits until now. Raises CheckpointMismatch, GatewayError, TopicGone."""
        if self._visibility is not None:
            with self._advice(self.last_commit):
                self._visibility.refresh()

    def require(self, commit: KnownCommit) -> None:
        """Raise CheckpointMismatch unless the gateway has the commit of a checkpoint.

        Raises GatewayError.
        """
        if self._visibility is not None:
            with self._advice(commit):
                self._visibility.require(commit)

    @contextmanager
    def _advice(self, commit: KnownCommit | None) -> Iterator[None]:
        """Raise errors of the ledger with the advice for a query, which is at `commit`."""
        try:
            yield
        except Conflict as error:
            if error.code == "ledger_repaired":
                error.add_note(
                    "Restart the query, or run the job again: a query continues at its checkpoint"
                )
            if error.code != "ledger_restored" or commit is None:
                raise
            raise CheckpointMismatch(
                f"the query has read the channel {self._channel!r} as of the commit "
                f"{commit.number} of {commit.at}, which the gateway does not have: {_RESTORED}"
            ) from error

    def follow(self) -> None:
        """Update the commits for a query that calls this repeatedly.

        With calls every few milliseconds, a long poll in the background waits for commits; with
        rarer calls, each sends a request. After an error that may pass, the known commits stay
        valid. Raises CheckpointMismatch, TopicGone and final errors of the gateway.
        """
        if self._visibility is None:
            return
        now_s = time.monotonic()
        followed = now_s - self._last_follow_s < self._followed_s
        self._last_follow_s = now_s
        try:
            with self._advice(self.last_commit):
                if followed or now_s < self._retry_at_s:
                    self._visibility.wait(self._visibility.number, 0.0)
                else:
                    self._visibility.refresh()
        except GatewayError as error:
            if error.is_final:
                raise
            self._retry_at_s = now_s + _RETRY_AFTER_S
            LOGGER.warning(
                "channel %r: %s. The query waits for further commits", self._channel, error
            )

    def final_ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the ends of all committed records, which `stable` may not have reached yet."""
        if self._visibility is None:
            return self.stream.ends(partitions)
        self.refresh()
        return {p: self._visibility.visible_end.get(p, 0) for p in partitions}

    def removed_records(self, marks: Mapping[int, Watermarks]) -> Mapping[int, OffsetOutOfRange]:
        """Return an error for each partition of a snapshot whose first records are gone."""
        if self._visibility is None:
            return {}
        return self._visibility.removed_records(
            {partition: watermarks.begin for partition, watermarks in marks.items()}
        )

    def await_stable(
        self, ends: Mapping[int, int], *, timeout_s: float, on_timeout: Callable[[str], None]
    ) -> None:
        """Wait until `stable` has reached these ends; else call `on_timeout` with the reason.

        Committed records are not readable while a batch that was opened before them is open.
        """
        visibility = self._visibility
        if visibility is None:
            return
        deadline_s = time.monotonic() + timeout_s
        while True:
            # The number first: a change in between then ends the wait.
            number = visibility.number
            if all(visibility.runs.stable_of(partition) >= end for partition, end in ends.items()):
                return
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                holder = visibility.held_back_by() or "a batch"
                on_timeout(
                    f"committed records of the channel {self._channel!r} are not readable after "
                    f"{timeout_s:g} s, because {holder} began before them and has not ended"
                )
                return
            with self._advice(self.last_commit):
                visibility.wait(number, left_s)

    def watermarks(
        self, partitions: Collection[int], ends: Mapping[int, int] | None = None
    ) -> dict[int, Watermarks]:
        """Return the first offsets in Kafka, and `ends`, by default those readable now."""
        if ends is None:
            if self._visibility is None:
                return self.stream.watermarks(partitions)
            ends = {p: self._visibility.runs.stable_of(p) for p in partitions}
        begins = self.stream.begins(partitions)
        # Retention may have removed all committed messages and uncommitted ones after them.
        return {p: Watermarks(begin=begins[p], end=max(begins[p], ends[p])) for p in partitions}

    def ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the last known offsets up to which a query may read."""
        if self._visibility is None:
            return self.stream.ends(partitions)
        return {p: mark.end for p, mark in self.watermarks(partitions).items()}

    def checkpoint_watermarks(self, offsets: Mapping[int, int]) -> dict[int, Watermarks]:
        """Return the watermarks of partitions whose checkpoint is at these offsets.

        Raises CheckpointMismatch for a checkpoint that is ahead of the channel's commits.
        """
        visibility = self._visibility
        if visibility is not None and any(
            end > visibility.runs.stable_of(partition) for partition, end in offsets.items()
        ):
            self.refresh()
        marks = self.watermarks(offsets)
        for partition, end in offsets.items() if visibility is not None else ():
            if end > marks[partition].end:
                raise CheckpointMismatch(
                    f"the checkpoint has read partition {partition} of the channel "
                    f"{self._channel!r} up to {end}, but it is committed only up "
                    f"to {marks[partition].end}: {_RESTORED}"
                )
        return marks

    def visible(self, offsets: OffsetRange) -> tuple[Interval, ...] | None:
        """Return the committed intervals of a range; None if everything is visible at once."""
        if self._visibility is None:
            return None
        return self._visibility.runs.between(offsets.partition, offsets.start, offsets.end)

    def _open(
        self,
        source: RefreshableConnection,
        snapshot: int | datetime | None,
        timeout_s: float,
        open_timeout_s: float,
        *,
        bounded: bool,
    ) -> Visibility | None:
        connection = source.connection
        if connection.delivery != "exactly_once" and snapshot is None:
            return None
        if source.gateway_url is None:
            raise OptionError(
                f"the channel {connection.channel_name!r} has the delivery exactly_once, so reads "
                'need the gateway: read it with format("channel")'
            )
        self._control = Control(Transport(source.gateway_url, timeout_s=timeout_s))
        calls = self._control.ledger
        if snapshot is not None:
            return visibility_of(calls, connection, grace_s=_GRACE_S, snapshot=snapshot)
        # A query's requests are short. Without this one it cannot start, so it outlasts a restart
        # of the gateway.
        deadline_s = time.monotonic() + open_timeout_s
        while True:
            try:
                # Not a shared one, because its connections are closed with this object.
                return visibility_of(
                    calls, connection, grace_s=_GRACE_S, present=bounded, shared=False
                )
            except GatewayUnavailable as error:
                if not error.retriable or time.monotonic() >= deadline_s:
                    raise
