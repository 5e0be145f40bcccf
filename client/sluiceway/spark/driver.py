"""The Spark application in the user's driver: its session and its endpoints.

What cannot be found out is not seen by others, and that is all.
"""

import atexit
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from sluiceway.endpoint.heartbeat import HeartbeatSession
from sluiceway.errors import GatewayError, OptionError, SluicewayError
from sluiceway.rest.channels import Control
from sluiceway.rest.endpoints import EndpointCalls
from sluiceway.rest.parsing import JsonNode, JsonPath
from sluiceway.rest.transport import Transport
from sluiceway.spark.endpoints import Job
from sluiceway.spark.options import WriteOptions
from sluiceway.spark.queries import NotYet, Queries, QueryListener, Sink

_WRITES_TO_A_TABLE = "WriteToMicroBatchDataSource"


class SparkInternals:
    """One Spark session, of this process's Spark or, over Spark Connect, of a server's."""

    def __init__(self, spark: SparkSession, control: Control) -> None:
        self._spark: Any = spark
        self._control = control

    def application(self) -> tuple[str, str]:
        """Return the application's name and id."""
        try:
            conf = self._spark.conf
            return conf.get("spark.app.name", "Spark"), conf.get("spark.app.id", "")
        except Exception:
            LOGGER.debug("Spark does not tell the application's name", exc_info=True)
            return "Spark", ""

    def is_stopped(self) -> bool:
        """Whether Spark was stopped."""
        context = getattr(self._spark, "_sc", None)
        if context is None:
            return bool(getattr(self._spark, "is_stopped", False))
        return context._jsc is None  # noqa: SLF001 - nothing public tells

    def listen(self, listener: StreamingQueryListener) -> None:
        """Have a listener hear of streaming queries, where Spark lets it."""
        try:
            self._spark.streams.addListener(listener)
        except Exception:
            LOGGER.warning(
                "streaming queries are not seen by others: Spark tells of none", exc_info=True
            )

    def query(self, id_: str) -> Any:
        """Return Spark's handle of a query that runs; None if none does."""
        try:
            return self._spark.streams.get(id_)
        except Exception:
            LOGGER.debug("Spark does not know the query %s", id_, exc_info=True)
            return None

    def progress(self, handle: Any) -> Mapping[str, Any] | None:
        """Return what a query last told, in events or not."""
        try:
            last = None if handle is None else handle.lastProgress
            progress: Mapping[str, Any] | None = None if last is None else json.loads(last.json)
        except Exception:
            LOGGER.debug("Spark does not tell a query's progress", exc_info=True)
            return None
        return progress

    def sink(self, handle: Any) -> Sink | None:
        """Return the channel that a query writes to. Raises NotYet, GatewayError."""
        inner = getattr(handle, "_jsq", None)
        if inner is None:
            return None
        try:
            plan = inner.streamingQuery().logicalPlan()
        except Exception as error:
            raise NotYet from error
        try:
            if plan.getClass().getSimpleName() != _WRITES_TO_A_TABLE:
                return None
            if plan.table().name() != "channel":
                return None
            given = plan.writeOptions().iterator()
            options = {}
            while given.hasNext():
                pair = given.next()
                options[str(pair._1())] = str(pair._2())  # noqa: SLF001 - Scala's name
            wanted = WriteOptions.parse(options, streaming=True)
        except OptionError:
            return None
        except Exception:
            LOGGER.warning(
                "a query's writer is not seen by others: Spark does not tell where it writes to",
                exc_info=True,
            )
            return None
        found = self._control.channel(wanted.channel)
        return Sink(channel=found.name, uid=found.uid, group=wanted.group, kafka=wanted.kafka)


LOGGER = logging.getLogger(__name__)

_TIMEOUT_S: Final = 5.0
_GRACE_S: Final = 60.0
_MOST_FAREWELLS: Final = 3
_ENDED: Final = "the Spark application ended"
_SILENT: Final = "no task reports any more"


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """An endpoint that lives by the application's beats."""

    id: str
    channel: Annotated[str, JsonPath("channel", "name")]
    uid: Annotated[str, JsonPath("channel", "uid")]
    role: str
    epoch: int
    heartbeat_timeout_ms: int
    reported_at: str | None


class Application:
    """The session of an application, and what only the user's driver can tell the gateway.

    Planning attaches the endpoints of batch jobs in this session's name; writes close theirs,
    and the gateway closes reads whose tasks are done. Reads that are given up have no end: those
    are closed here, when no task has reported for the channel's heartbeat timeout. When Spark
    stops, or the program ends, so do all of them.
    """

    def __init__(
        self,
        spark: SparkSession,
        gateway_url: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        listener = os.environ.get("SLUICEWAY_LISTENER")
        control = Control(Transport(gateway_url), listener=listener, grace_s=_GRACE_S)
        self.listener: QueryListener
        self.gateway_url = gateway_url
        self.session = HeartbeatSession.of(control.endpoints, grace_s=control.grace_s)
        transport = Transport(gateway_url, timeout_s=_TIMEOUT_S)
        self._calls = EndpointCalls(transport, listener=listener)
        self._inside = SparkInternals(spark, Control(transport, listener=listener))
        self._monotonic = monotonic
        self._heard: dict[str, tuple[str | None, float]] = {}
        self._ending = self._retired = False
        self._farewells = 0
        self._process = os.getpid()
        self.job = Job.of(self.session.id, *self._inside.application())
        self.queries = Queries(self.session, self._calls, spark=self._inside)

    @property
    def goes_on(self) -> bool:
        """Whether it beats, and will."""
        return not self._ending and not self._retired

    def begin(self, before: "Application | None" = None) -> None:
        """Begin to beat, and to hear of the streaming queries that start from now on.

        In the place of one at another gateway, which goes on until nothing of it is at work.
        """
        if before is None:
            self.listener = QueryListener(self.queries)
            self._inside.listen(self.listener)
        else:
            self.listener = before.listener
            self.listener.queries = self.queries
            before.retire()
        self.session.add_extension(self)
        atexit.register(self.end)

    def retire(self) -> None:
        """Begin nothing new, and beat until all is over."""
        self._retired = True

    def end(self) -> None:
        """Tell the gateway that all is over."""
        if self._ending or os.getpid() != self._process:
            return
        self._ending = True
        try:
            self.session.send(self._calls)
        except SluicewayError as error:
            LOGGER.warning("the gateway was not told that %s: %s", _ENDED, error)

    def fields(self) -> Mapping[str, Any]:
        """Ask for all that lives by these beats, after a look at what became of queries."""
        if not self._ending and self._inside.is_stopped():
            self._ending = True
        if self._ending:
            self.queries.end(_ENDED)
            self._farewells += 1
        else:
            self.queries.advance()
        given_up = self._retired and self.queries.are_over and self.session.outage is not None
        if given_up or self._farewells > _MOST_FAREWELLS:
            self._part()
            return {}
        return {"keeps": True}

    def on_answer(self, answer: JsonNode) -> None:
        """Close what is over."""
        own = self.session.ids
        kept = [
            each
            for each in (item.read(_Kept) for item in answer.items("kept"))
            if each.id not in own
        ]
        now_s = self._monotonic()
        self._heard = {each.id: self._last_heard(each, now_s) for each in kept}
        for each in kept:
            if self._ending:
                self._detach(each, "closed" if each.role == "reader" else "error", _ENDED)
            elif (
                each.role == "reader"
                and now_s - self._heard[each.id][1] > each.heartbeat_timeout_ms / 1000
            ):
                self._detach(each, "closed", _SILENT)
        if self._ending or (self._retired and not kept and self.queries.are_over):
            self._part()

    def on_rejected(self, error: GatewayError) -> None:
        """Learn that the gateway is an older one, or the token of no use."""
        LOGGER.warning("the jobs of this application go on, but others do not see them: %s", error)
        self._ending = True
        self._part()

    def _last_heard(self, kept: _Kept, now_s: float) -> tuple[str | None, float]:
        before = self._heard.get(kept.id)
        if before is None or before[0] != kept.reported_at:
            return kept.reported_at, now_s
        return before

    def _detach(self, kept: _Kept, state: str, cause: str) -> None:
        body = {"uid": kept.uid, "epoch": kept.epoch, "state": state, "cause": cause}
        try:
            self._calls.detach(kept.channel, kept.id, body, timeout_s=_TIMEOUT_S)
        except GatewayError as error:
            LOGGER.warning(
                "channel %r: the gateway was not told that %s: %s", kept.channel, cause, error
            )

    def _part(self) -> None:
        atexit.unregister(self.end)
        self.session.remove_extension(self)
        self._calls.close()


__all__ = ["Application", "SparkInternals"]
