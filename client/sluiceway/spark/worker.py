"""Spark's Python workers: pickled objects, connections that outlive a call, faster reuse."""

import ctypes
import gc
import logging
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Generic, Literal, TypeVar
from zipimport import zipimporter

import pyarrow as pa
from pyspark import cloudpickle

from sluiceway import Connection, Gateway, __version__
from sluiceway.errors import Conflict, GatewayError
from sluiceway.spi import Process, this_process, tracing

__all__ = ["ClientPool", "RefreshableConnection", "Shipped", "prepare_worker", "traced"]

LOGGER = logging.getLogger(__name__)

C = TypeVar("C")

_TIMEOUT_S: Final = 3.0
_RETRY_AFTER_S: Final = 15.0

_SPARK_ARCHIVE = re.compile(r"(pyspark|py4j-.*-src)\.zip|spark-core_.*\.jar")
"""File names of the archives that Spark puts on the import path of its workers."""

_malloc_trim: Callable[[int], int] | None = (
    getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
)
"""Returns free memory of glibc's heap, where librdkafka allocates, to the system."""

_frozen_in: Process | None = None


class Shipped:
    """Base of the data sources, readers and writers that Spark pickles.

    They are pickled to bytes with the code of `_unpickle`, because Python environments differ. A
    worker without the client, or with another major or minor version, raises ImportError with the
    command that installs it, instead of Spark's ModuleNotFoundError.
    """

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as a call of `_unpickle`."""
        # By value: the worker may not be able to import this module.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
        return _unpickle, (__version__, sys.executable, pickle.dumps((type(self), vars(self))))


def _unpickle(version: str, driver: str, pickled: bytes) -> object:
    """Return the object of a pickled class and attributes; raise ImportError.

    Only uses the standard library until the client of `version` is found. `driver` is the driver's
    Python.
    """
    import pickle
    import platform
    import sys

    worker = f"Spark's Python worker {sys.executable} on {platform.node()}"
    advice = (
        f"set PYSPARK_PYTHON to a Python that has it, such as {driver} in local mode, or install "
        f"sluiceway {version} there, from a checkout by `pip install .`, or ship an environment "
        "that has it: spark-submit --archives environment.tar.gz#environment "
        "--conf spark.pyspark.python=./environment/bin/python"
    )
    try:
        from sluiceway import __version__ as installed

        if installed.split(".")[:2] == version.split(".")[:2]:
            kind, attributes = pickle.loads(pickled)  # noqa: S301 - pickled by Spark's driver
            made: object = kind.__new__(kind)
            vars(made).update(attributes)
            return made
    except ImportError as error:
        raise ImportError(f"{worker} cannot load sluiceway: {error}; {advice}") from error
    raise ImportError(f"{worker} has sluiceway {installed}, the driver has {version}: {advice}")


def prepare_worker() -> None:
    """Prepare a reused Python worker of Spark for its next task; a no-op in other processes.

    Before each task, Spark invalidates the import caches, and Python reads the indexes of Spark's
    own archives again, which takes 0.1 s. These archives do not change, so this removes them from
    the caches. After each task, Spark runs the garbage collector, so this excludes the imported
    modules from collection. Memory freed by the previous task is returned to the system.
    """
    global _frozen_in
    if "SPARK_REUSE_WORKER" not in os.environ:
        return
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter) and _SPARK_ARCHIVE.fullmatch(
            Path(importer.archive).name
        ):
            del sys.path_importer_cache[path]
    pa.default_memory_pool().release_unused()
    if _malloc_trim is not None:
        _malloc_trim(0)
    if _frozen_in is None or _frozen_in.forked:
        _frozen_in = this_process()
        gc.freeze()


_FLUSH_S: Final = 2.0
_flush: Callable[[], object] | None = None


@contextmanager
def traced(
    operation: str, channel: str, trace: Mapping[str, str], *, kind: str | None = None
) -> Iterator[tracing.ActiveSpan]:
    """Trace a block in the trace of another process, or else in a new one.

    No application's code runs in Spark's workers, so this configures OpenTelemetry's SDK from its
    variables. Spans are exported at once, because Spark may kill an idle worker; after 2 s the
    export continues in the background.
    """
    global _flush
    _flush = tracing.configure("sluiceway-spark") or _flush
    try:
        with tracing.continued(trace), tracing.channel_span(operation, channel, kind=kind) as span:
            yield span
    finally:
        if _flush is not None:
            flushing = threading.Thread(target=_flush, name="traces", daemon=True)
            flushing.start()
            flushing.join(_FLUSH_S)


_MAX_IDLE: Final = 32


class ClientPool(Generic[C]):
    """Idle Kafka clients of this process by key; a borrowed client has one borrower.

    A new client costs a task 100 ms or more. A client is kept when its borrower succeeds, and
    closed when it fails, because its state is unknown then. Of more than 32 idle clients, the
    longest unused one is closed. Spark forks its workers and librdkafka does not survive a fork, so
    a child never uses its parent's clients.
    """

    def __init__(self, *, close: Callable[[C], object]) -> None:
        self._close = close
        # Of each process, the longest unused first.
        self._idle: dict[Process, list[tuple[Hashable, C]]] = {}

    @contextmanager
    def borrow(self, key: Hashable, make: Callable[[], C]) -> Iterator[C]:
        """Lend the idle client of `key`, or a new one."""
        idle = self._idle.setdefault(this_process(), [])
        pooled = next((entry for entry in reversed(idle) if entry[0] == key), None)
        if pooled is not None:
            idle.remove(pooled)
        client = make() if pooled is None else pooled[1]
        try:
            yield client
        except BaseException:
            self._close(client)
            raise
        idle.append((key, client))
        if len(idle) > _MAX_IDLE:
            self._close(idle.pop(0)[1])


class RefreshableConnection:
    """A channel's Connection, requested again when it may have changed. Picklable.

    `connection` is the latest one. While requests fail, it stays in use, and they pause for 15 s. A
    reader keeps the schema of its first Connection, because Spark's plan has its columns. Without a
    `gateway_url` the Connection never changes. `timeout_s` (None: 3 s) is the timeout of its
    requests.
    """

    def __init__(
        self,
        connection: Connection,
        access: Literal["read", "write"],
        *,
        gateway_url: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.connection = connection
        self.gateway_url = gateway_url
        self._access = access
        self._timeout_s = timeout_s
        self._refreshed_s = float("-inf")
        self._retry_at_s = float("-inf")

    def refresh(self, *, max_age_s: float = 0.0) -> bool:
        """Request a Connection unless the present one is younger than `max_age_s`.

        Returns whether `connection` is now that recent. It is False while the gateway's errors may
        pass; then the channel may have new schemas. Raises final ones: ChannelNotFound, Conflict
        (another channel has the name now) and InvalidRequest.
        """
        before, now_s = self.connection, time.monotonic()
        if self.gateway_url is None or now_s < self._refreshed_s + max_age_s:
            return True
        if now_s < self._retry_at_s:
            return False
        try:
            connection = self._requested(self.gateway_url)
        except GatewayError as error:
            if error.is_final:
                raise
            LOGGER.warning(
                "channel %r: %s. The query continues with the last known connection",
                before.channel_name,
                error,
            )
            self._retry_at_s = now_s + _RETRY_AFTER_S
            return False
        if self._access == "read":
            connection = replace(
                connection, schema_id=before.schema_id, schema_definition=before.schema_definition
            )
        self.connection = connection
        self._refreshed_s = now_s
        return True

    def _requested(self, gateway_url: str) -> Connection:
        name, uid = self.connection.channel_name, self.connection.channel_uid
        timeout_s = _TIMEOUT_S if self._timeout_s is None else self._timeout_s
        with Gateway(gateway_url, timeout_s=timeout_s) as gateway:
            channel = gateway.channel(name, wait_s=timeout_s)
            if channel.uid != uid:
                raise Conflict(
                    f"the channel {name!r} was deleted and recreated while this query ran: its "
                    f"uid was {uid} and is {channel.uid} now, with other records. Restart the "
                    "query",
                    code="uid_mismatch",
                )
            return channel.connection(self._access)
