"""An endpoint of a Spark job: attached by the driver's planning, worked for by tasks."""

import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sluiceway.errors import GatewayError, SluicewayError
from sluiceway.errors.root import cause_of
from sluiceway.rest.endpoint_models import Membership, Role
from sluiceway.rest.endpoints import EndpointCalls
from sluiceway.rest.models import Connection
from sluiceway.rest.transport import Transport

__all__ = ["Job", "Part", "Work"]

LOGGER = logging.getLogger(__name__)

_TIMEOUT_S: Final = 5.0
_MAX_TITLE_CHARACTERS: Final = 200
_MAX_CAUSE_CHARACTERS: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Job:
    """What endpoints of a Spark application have in common; plain data, nothing of it secret.

    They live by the beats of `session`, which is that of the user's driver.
    """

    session: str
    title: str

    @classmethod
    def of(cls, session: str, name: str, id_: str) -> "Job":
        """Return that of the application `name`."""
        return cls(session=session, title=f"{name} ({id_})"[:_MAX_TITLE_CHARACTERS])


@dataclass(frozen=True, kw_only=True)
class Work:
    """An endpoint as those know it that work for it; plain data, shipped to tasks.

    That the gateway does not hear of something is written to the log, and is no failure of the
    job: its records do not depend on who knows of it.
    """

    gateway_url: str
    channel: str
    uid: str
    role: Role
    endpoint: str
    epoch: int
    beat_ms: int
    took_over: bool

    @classmethod
    def attach(
        cls,
        job: Job | None,
        gateway_url: str,
        connection: Connection,
        role: Role,
        group: str | None = None,
    ) -> "Work | None":
        """Attach an endpoint for a job; None where nobody sees it, for the reason in the log.

        A writer with a `group` has the place of the one before that had it.
        """
        if job is None:
            return None
        channel, uid = connection.channel_name, connection.channel_uid
        instance = uuid.uuid4().hex
        member = None if group is None else Membership(group=group, index=0, size=1)
        try:
            with _calls(gateway_url) as calls:
                attached = calls.attach(
                    channel,
                    uid=uid,
                    instance=instance,
                    session=job.session,
                    role=role,
                    membership=member,
                    title=job.title,
                )
        except SluicewayError as error:
            LOGGER.warning(
                "channel %r: this %s is not seen by others, the gateway did not take it: %s",
                channel,
                "read" if role == "reader" else "write",
                error,
            )
            return None
        return cls(
            gateway_url=gateway_url,
            channel=channel,
            uid=uid,
            role=role,
            endpoint=instance,
            epoch=attached.epoch,
            beat_ms=attached.beat_ms,
            took_over=attached.took_over,
        )

    def close(self, *, records: int, tasks: int, ends: Callable[[], Mapping[int, int]]) -> None:
        """Report that a write ended well, with what it wrote, and where that `ends`.

        Where Kafka does not tell the ends it is reported as failed: readers that wait for the end
        would take it for one that wrote nothing.
        """
        found: Mapping[int, int] | None = None
        if records or self.took_over:
            try:
                found = {partition: end for partition, end in ends().items() if end}
            except SluicewayError as error:
                self.fail(f"all is written, but where it ends is not known: {cause_of(error)}")
                return
        counters = {"records": records, "tasks_done": tasks, "tasks_running": 0}
        told = None if found is None else {str(p): end for p, end in found.items()}
        self._detach({"state": "closed", "ends": told, "counters": counters})

    def fail(self, cause: str) -> None:
        """Report that it failed."""
        self._detach({"state": "error", "cause": cause[:_MAX_CAUSE_CHARACTERS]})

    def _detach(self, how: Mapping[str, Any]) -> None:
        body = {"uid": self.uid, "epoch": self.epoch, **how}
        try:
            with _calls(self.gateway_url) as calls:
                calls.detach(self.channel, self.endpoint, body, timeout_s=_TIMEOUT_S)
        except GatewayError as error:
            LOGGER.warning(
                "channel %r: the gateway was not told of the write's end: %s", self.channel, error
            )


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of an endpoint's work; plain data. `parts`: of how many, where that is planned."""

    work: Work
    number: int
    parts: int | None = None


@contextmanager
def _calls(gateway_url: str) -> Iterator[EndpointCalls]:
    """Give the calls to a gateway for a moment."""
    listener = os.environ.get("SLUICEWAY_LISTENER")
    calls = EndpointCalls(Transport(gateway_url, timeout_s=_TIMEOUT_S), listener=listener)
    try:
        yield calls
    finally:
        calls.close()
