"""Endpoints of Spark jobs and queries."""

import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sluiceway.endpoint.heartbeat import HeartbeatSession
from sluiceway.errors import GatewayError, GatewayUnavailable, SluicewayError, cause_of
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.rest.endpoint_models import AttachResult, HeartbeatResult, Membership, Role
from sluiceway.rest.endpoints import EndpointCalls
from sluiceway.rest.models import Connection
from sluiceway.rest.transport import Transport

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
class JobEndpoint:
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
    heartbeat_interval_ms: int
    took_over: bool

    @classmethod
    def attach(
        cls,
        job: Job | None,
        gateway_url: str,
        connection: Connection,
        role: Role,
        group: str | None = None,
    ) -> "JobEndpoint | None":
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
            heartbeat_interval_ms=attached.heartbeat_interval_ms,
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
class TaskSlice:
    """A part of an endpoint's work; plain data. `parts`: of how many, where that is planned."""

    work: JobEndpoint
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


class QueryEndpoint:
    """A query at a channel that it reads or writes; a member of the driver's session.

    It observes: nothing of the query depends on it. Where another query has taken its place, it
    says so in the log and tells the gateway no more.
    """

    def __init__(
        self,
        session: HeartbeatSession,
        calls: EndpointCalls,
        *,
        channel: str,
        uid: str,
        role: Role,
        group: str,
        title: str,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.records = 0
        self.offsets: Mapping[int, int] = {}
        self._session = session
        self._calls = calls
        self._channel = channel
        self._uid = uid
        self._role: Role = role
        self._group = group
        self._title = title
        self._attached: AttachResult | None = None
        self._over = self._silent = False
        self._reported: Mapping[int, int] = {}
        self._telling: Mapping[int, int] = {}

    @property
    def is_there(self) -> bool:
        """Whether the gateway knows it, or has no more to hear of it."""
        return self._over or self._attached is not None

    def attach(self) -> None:
        """Take the query's place. Raises GatewayUnavailable; may be repeated."""
        try:
            attached = self._calls.attach(
                self._channel,
                uid=self._uid,
                instance=self.id,
                session=self._session.id,
                role=self._role,
                membership=Membership(group=self._group, index=0, size=1),
                title=self._title,
            )
        except GatewayUnavailable:
            raise
        except GatewayError as error:
            self._over = True
            LOGGER.warning(
                "%s of the channel %r goes on, but is not seen by others: %s",
                *(self._title, self._channel, error),
            )
            return
        self._attached = attached
        self._session.register(self)
        self._session.require_interval(attached.heartbeat_interval_ms)

    def report(self) -> dict[str, Any] | None:
        """Return what a beat says of it."""
        attached = self._attached
        if attached is None or self._over or self._silent:
            return None
        told: dict[str, Any] = {
            "id": self.id,
            "epoch": attached.epoch,
            "state": "started",
            "counters": {"records": self.records},
        }
        self._telling = self.offsets
        if self._telling != self._reported:
            told |= self._positions(attached)
        return told

    def on_heartbeat(self, heard: HeartbeatResult) -> None:
        """Take the answer to a beat."""
        if heard.status in ("fenced", "gone") and not self._over:
            LOGGER.warning(
                "%s of the channel %r in the group %r goes on, but is not seen any more: %s",
                *(self._title, self._channel, self._group, heard.reason),
            )
            self._over = True
            self._session.unregister(self)
        else:
            self._reported = self._telling

    def close(self, *, cause: str | None, kafka: Mapping[str, str]) -> None:
        """Report that the query ended, well or for a `cause`. Raises GatewayUnavailable.

        May be repeated then. What it wrote ends, at the latest, where its channel's topic does.
        """
        attached = self._attached
        if attached is None or self._over:
            return
        body: dict[str, Any] = {"state": "closed", "cause": None}
        if cause is None and self._role == "writer":
            try:
                identity = TopicIdentity(attached.connection, kafka)
                ends = identity.ends(range(attached.connection.partitions), timeout_s=_TIMEOUT_S)
                body["ends"] = {str(p): end for p, end in ends.items() if end}
            except SluicewayError as error:
                unknown = "it ended well, but where its records end is not known"
                cause = f"{unknown}: {cause_of(error)}"
        if cause is not None:
            body = {"state": "error", "cause": cause[:_MAX_CAUSE_CHARACTERS]}
        body |= {"uid": self._uid, "epoch": attached.epoch}
        body |= {"counters": {"records": self.records}} | self._positions(attached)
        # A beat on its way that tells of a state before would undo an error.
        self._silent = True
        self._session.wait_idle(_TIMEOUT_S)
        try:
            self._calls.detach(self._channel, self.id, body, timeout_s=_TIMEOUT_S)
        except GatewayUnavailable:
            raise
        except GatewayError as error:
            LOGGER.warning(
                "the gateway did not take it that %s of the channel %r ended: %s",
                *(self._title, self._channel, error),
            )
        self._over = True
        self._session.unregister(self)

    def _positions(self, attached: AttachResult) -> dict[str, Any]:
        """Return how far a reader has come, for a gateway that takes it."""
        if not self.offsets or "positions" not in attached.takes:
            return {}
        return {"positions": {str(p): [offset, 0] for p, offset in self.offsets.items()}}


__all__ = ["Job", "JobEndpoint", "QueryEndpoint", "TaskSlice"]
