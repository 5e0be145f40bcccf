"""The Spark application in the user's driver process: its heartbeat session and endpoints."""

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession

from sluiceway.errors import GatewayError, SluicewayError
from sluiceway.spark.endpoints import Job, UnreportedEnds, control, heartbeat_session
from sluiceway.spark.queries import (
    Queries,
    active_jobs,
    is_driver_stopped,
    is_stopped,
    ui_address,
)
from sluiceway.spi import (
    Background,
    EndpointEnd,
    HeartbeatReply,
    KeptEndpoint,
    SessionReport,
    this_process,
    tracing,
)

__all__ = ["Application"]

LOGGER = logging.getLogger(__name__)

_TIMEOUT_S: Final = 5.0
_MAX_FINAL_HEARTBEATS: Final = 3
_MAX_RENEWED: Final = 1000
_ENDED: Final = "the Spark application ended"
_SILENT: Final = "no task reports any more"


class Application:
    """Heartbeats of a Spark application for the endpoints of its jobs and queries.

    Planning attaches the endpoints of batch jobs in this session. Writes close their own, or leave
    their end to be reported here, and the gateway closes reads when all tasks are done. Spark does
    not report the end of a read that it stops early: it is closed here when no task has reported
    for the heartbeat timeout. All endpoints end when Spark is stopped or the program exits.

    Other requests than heartbeats are sent in the background, so that no heartbeat waits for them,
    and Spark is asked for its jobs there, because its JVM may pause. The heartbeats also renew the
    open batches of running jobs and queries. They list the instances that may have batches: the
    endpoints of batch writes while Spark runs jobs, and runs of queries. The batches of ended runs,
    and of all writes once Spark is stopped, are aborted.
    """

    def __init__(self, spark: SparkSession, gateway_url: str) -> None:
        self.gateway_url = gateway_url
        self.session = heartbeat_session(gateway_url)
        self._spark = spark
        self._control = control(gateway_url)
        self._last_reports: dict[str, tuple[str | None, float]] = {}
        self._writes: list[str] = []
        self._ending = self._retired = self._over = self._closed = False
        self._to_detach: deque[tuple[KeptEndpoint, str, str]] = deque()
        self._unreported: UnreportedEnds | None = None
        # The ids of writes that left their end there.
        self._left: set[str] = set()
        self._background = Background()
        self._sampling = Background()
        self._jobs: Sequence[int] | None = None
        # Held while it reports, which the end of the program and the background do.
        self._reporting = threading.Lock()
        self._final_heartbeats = 0
        self._process = this_process()
        self.queries = Queries(spark, self.session, self._control)

    @property
    def is_active(self) -> bool:
        """Whether it accepts new jobs and queries."""
        return not self._ending and not self._retired

    @property
    def job(self) -> Job:
        """The shared part of its jobs' endpoints, once it has started."""
        conf = self._spark.conf
        name, id_ = conf.get("spark.app.name", "Spark"), conf.get("spark.app.id", "")
        return Job(
            session=self.session.id,
            title=f"{name} ({id_})"[:200],
            application=name,
            ui=ui_address(self._spark),
            renews=self.queries.is_listening and active_jobs(self._spark) is not None,
            # Spark Connect has another session class.
            remote=not isinstance(self._spark, SparkSession),
            trace=tracing.carrier(),
            unreported=self._unreported,
        )

    def start(self, *, replacing: "Application | None" = None) -> None:
        """Start heartbeats, and observe the streaming queries that start from now on.

        A replaced application, at another gateway, ends with its last job or query.
        """
        if replacing is not None:
            replacing.retire()
        try:
            self._unreported = UnreportedEnds.create()
        except OSError as error:
            LOGGER.warning("ends of writes that meet an outage are not reported later: %s", error)
        self.queries.listen()
        self.session.add_extension(self)
        atexit.register(self.end)

    def retire(self) -> None:
        """Accept no new jobs and queries, and end after the last one."""
        self._retired = True
        self.queries.retire()

    def end(self) -> None:
        """Report the end of all endpoints."""
        if self._closed or self._process.forked:
            return
        self._ending = True
        try:
            self.session.send(self._control.endpoints)
            self._report()
        except SluicewayError as error:
            # The background may have reported it, and closed the connections.
            if not self._closed:
                LOGGER.warning("the end of the Spark application was not reported: %s", error)
        finally:
            self._remove_left()

    def report(self) -> SessionReport | None:
        """Return the heartbeat's request for the kept endpoints, and report the queries."""
        if is_stopped(self._spark):
            self._ending = True
        if self._ending:
            self.queries.end(_ENDED, stopped=is_driver_stopped(self._spark))
            self._final_heartbeats += 1
        outage = self._retired and self.queries.all_ended and self.session.outage is not None
        self._over |= outage or self._final_heartbeats > _MAX_FINAL_HEARTBEATS
        self._background.run(self._report)
        if self._over:
            return None
        renews = [] if self._ending else self._running()
        return SessionReport(
            keeps=True,
            renews=tuple(renews[:_MAX_RENEWED]),
            ended=tuple(self._ended()[:_MAX_RENEWED]),
        )

    def on_response(self, response: HeartbeatReply) -> None:
        """Detach the kept endpoints that have ended."""
        queries = self.session.ids
        kept = [endpoint for endpoint in response.kept if endpoint.id not in queries]
        self._writes = [endpoint.id for endpoint in kept if endpoint.role == "writer"]
        now_s = time.monotonic()
        before, self._last_reports = self._last_reports, {}
        ends: deque[tuple[KeptEndpoint, str, str]] = deque()
        for kept_endpoint in kept:
            report = before.get(kept_endpoint.id)
            if report is None or report[0] != kept_endpoint.reported_at:
                report = (kept_endpoint.reported_at, now_s)
            self._last_reports[kept_endpoint.id] = report
            is_read = kept_endpoint.role == "reader"
            if self._ending:
                ends.append((kept_endpoint, "closed" if is_read else "error", _ENDED))
            elif is_read and now_s - report[1] > kept_endpoint.heartbeat_timeout_ms / 1000:
                ends.append((kept_endpoint, "closed", _SILENT))
        # The response lists again what the background has not detached yet.
        self._to_detach = ends
        self._over |= self._ending or (self._retired and not kept and self.queries.all_ended)
        if ends or self._over:
            self._background.run(self._report)

    def on_rejected(self, error: GatewayError) -> None:
        """End: the gateway has an older version."""
        LOGGER.warning("jobs of this application are not listed as endpoints: %s", error)
        self.retire()
        self.queries.drop()
        self._over = True
        self._background.run(self._report)

    def _report(self) -> None:
        """Report the queries and the ends of kept endpoints; close once everything is over."""
        with self._reporting:
            if self._closed:
                return
            # The last ends arrive before it is over. If that happens from here on, they are
            # reported by the next run.
            over = self._over
            self.queries.advance()
            waits = self._report_left()
            ends = self._to_detach
            while ends:
                self._detach(*ends.popleft())
            # What writes have left is reported for as long as this process lives.
            if over and not waits:
                self._close()

    def _sample_jobs(self) -> None:
        self._jobs = active_jobs(self._spark)

    def _running(self) -> list[str]:
        """Return the instances of running writes; none once Spark's driver has ended.

        It may be those of the last heartbeat: a lease lasts for three of them.
        """
        self._sampling.run(self._sample_jobs)
        jobs = self._jobs
        if jobs is None:
            return []
        # The end of a failed job may be unreported.
        return self.queries.running + (self._writes if jobs else [])

    def _ended(self) -> list[str]:
        """Return the instances of ended writes, whose open batches are aborted.

        At the end of this process, Spark's driver may continue, so that is no end of its writes.
        """
        ended = self.queries.ended
        return ended + self._writes if is_driver_stopped(self._spark) else ended

    def _report_left(self) -> bool:
        """Report the ends that writes have left; return whether some wait for the gateway."""
        unreported = self._unreported
        if unreported is None:
            return False
        ends = unreported.pending()
        self._left.update(end.id for end in ends)
        for end in ends:
            try:
                self._control.endpoints.detach(end.channel, end.id, end.end, timeout_s=_TIMEOUT_S)
            except GatewayError as error:
                if not error.is_final:
                    LOGGER.debug("channel %r: the end of a write waits: %s", end.channel, error)
                    return True
                LOGGER.warning(
                    "channel %r: the end of a write was not reported: %s", end.channel, error
                )
            else:
                LOGGER.info("channel %r: the end of a write is reported", end.channel)
            unreported.discard(end)
        return False

    def _remove_left(self) -> None:
        if self._unreported is not None:
            self._unreported.remove()

    def _detach(self, kept: KeptEndpoint, state: str, cause: str) -> None:
        if kept.id in self._left:
            return
        end = EndpointEnd(uid=kept.uid, epoch=kept.epoch, state=state, cause=cause)
        try:
            self._control.endpoints.detach(kept.channel, kept.id, end, timeout_s=_TIMEOUT_S)
        except GatewayError as error:
            LOGGER.warning(
                "channel %r: the end of a %s was not reported: %s", kept.channel, kept.role, error
            )

    def _close(self) -> None:
        if not self._ending:
            self.queries.stop_listening()
        # Those whose ends were not reported become lost.
        self.queries.drop()
        atexit.unregister(self.end)
        self.session.remove_extension(self)
        self._remove_left()
        self._closed = True
        self._control.endpoints.close()
