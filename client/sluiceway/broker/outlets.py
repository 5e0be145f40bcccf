"""The writers that stand for what a Broker produces: readers see them, and where they ended."""

import atexit
import os
import sys
import threading
from collections.abc import Callable

from sluiceway.broker.connection import RequestHandler
from sluiceway.endpoint.handle import Attachment
from sluiceway.endpoint.heartbeat import Session
from sluiceway.errors import DeliveryFailed, KafkaFailure, SluicewayError, TopicGone
from sluiceway.rest.models import Connection

__all__ = ["Outlets"]

_GRACE_S = 10.0
_LAST_WORD_S = 5.0
_OPEN: set["Outlets"] = set()


class Outlets:
    """One writer for each channel that a Broker produces to, from its first message on.

    Closing says where the records end. A process that ends without that closes them too, as
    failed ones if an exception ended it: what it was told to be written is there. `flush` waits
    for what nobody waited for.
    """

    def __init__(self, handler: RequestHandler) -> None:
        self.handler = handler
        self.flush: Callable[[], None] = _nothing
        self._process = os.getpid()
        self._lost: dict[str, tuple[int, str]] = {}
        self._lock = threading.Lock()
        self._writers: dict[str, tuple[Connection, Attachment]] = {}

    def open(self, connection: Connection) -> None:
        """Have a writer at the channel; raises GatewayError, EndpointClosed."""
        with self._lock:
            known = self._writers.get(connection.channel_uid)
            if known is not None:
                known[1].check()
                # It has the partitions that the channel has got since.
                self._writers[connection.channel_uid] = connection, known[1]
                return
            attachment = Attachment.open(
                Session.of(self.handler.control.endpoints, grace_s=_GRACE_S),
                channel=connection.channel_name,
                uid=connection.channel_uid,
                role="writer",
                membership=None,
                timeout_s=self.handler.timeout_s,
                close_timeout_s=0,
            )
            self._writers[connection.channel_uid] = connection, attachment
            _OPEN.add(self)

    def note(self, connection: Connection, messages: int) -> None:
        """Count messages that were sent."""
        _, attachment = self._writers[connection.channel_uid]
        attachment.start(attachment.movement.records + messages)

    def lose(self, connection: Connection, reason: str) -> None:
        """Note a message that was not written, and that nobody has waited for."""
        lost, first = self._lost.get(connection.channel_uid, (0, reason))
        self._lost[connection.channel_uid] = (lost + 1, first)

    def lose_all(self, reason: str) -> None:
        """Note that of messages to any channel it is not known whether they are written."""
        for connection, _ in self._writers.values():
            self.lose(connection, reason)

    def close(self, error: BaseException | None = None, *, timeout_s: float | None = None) -> None:
        """Close all writers; raises what the first that was not closed met, after all others."""
        if os.getpid() != self._process:
            return
        self.flush()
        timeout_s = self.handler.timeout_s if timeout_s is None else timeout_s
        with self._lock:
            writers, self._writers = list(self._writers.values()), {}
            _OPEN.discard(self)
        failures: list[SluicewayError] = []
        for connection, attachment in writers:
            try:
                self._leave(connection, attachment, error, timeout_s)
            except SluicewayError as failure:
                attachment.fail(failure)
                failures.append(failure)
        if failures:
            raise failures[0]

    def _leave(
        self,
        connection: Connection,
        attachment: Attachment,
        error: BaseException | None,
        timeout_s: float,
    ) -> None:
        lost, reason = self._lost.pop(connection.channel_uid, (0, ""))
        if lost:
            written = attachment.movement.records - lost
            error = error or DeliveryFailed(
                partition=None, reason=reason, written_records=written, failed_records=lost
            )
        if error is not None:
            attachment.fail(error)
            return
        identity = self.handler.identity(connection)
        try:
            found = identity.all_ends(timeout_s=timeout_s, least=connection.partitions)
        except KafkaFailure:
            try:
                identity.verify(timeout_s=timeout_s)
            except TopicGone as gone:
                # What was written is deleted, and whoever would hear of it with it.
                attachment.fail(gone)
                return
            raise
        attachment.leave(ends={partition: end for partition, end in found.items() if end})


def _nothing() -> None:
    """Nothing was sent yet."""


@atexit.register
def _close_all() -> None:
    error = getattr(sys, "last_value", None)
    for each in list(_OPEN):
        try:
            each.close(error, timeout_s=_LAST_WORD_S)
        except SluicewayError:
            # It was written to the log; nobody is there to hear more.
            continue
