"""PostgreSQL: connections with client-side timeouts, and the circuit breaker behind them.

Server-side timeouts do not help when the server hangs or packets are lost.
"""

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import psycopg
import structlog
from psycopg.conninfo import make_conninfo, timeout_from_conninfo
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL

from sluiceway_gateway.core.errors import DatabaseUnavailable, InvalidSettings, WrongEncoding
from sluiceway_gateway.core.tracing import statement

_log = structlog.get_logger(__name__)

# Transactions wait only for the database, except those that allow pauses. One that is idle for
# longer belongs to a paused gateway, and its locks would block other replicas.
_IDLE_MS = 5_000
#: Time for a statement in addition to lock waits, and for its result on the network.
_WORK_MS = 2_000
_NETWORK_MS = 1_000
#: Timeout of the liveness check when a connection leaves the pool.
_PING_S = 2.0
#: Shortest connect timeout of psycopg and libpq.
_ATTEMPT_S = 2.0
_ENCODING = "UTF8"
_NO_ANSWER = "the server accepts no connection in time"

Result = TypeVar("Result")


def check_parameters(url: URL) -> None:
    """Raise InvalidSettings for parameters in the URL that libpq does not have."""
    parameters: dict[str, Any] = {
        name: value if isinstance(value, str) else ",".join(value)
        for name, value in url.query.items()
    }
    try:
        make_conninfo(**parameters)
        timeout_from_conninfo(parameters)
    except psycopg.ProgrammingError as error:
        raise InvalidSettings(
            f"SLUICEWAY_DATABASE_URL has a wrong parameter ({str(error).strip()}); it takes those "
            "of libpq, such as sslmode"
        ) from None


def connect_arguments(url: URL, *, wait_ms: int) -> dict[str, Any]:
    """Return libpq's connection arguments; parameters in the URL take precedence.

    `wait_ms` is the lock timeout.
    """
    tcp = {
        "connect_timeout": round(_attempt_s(url, wait_ms)),
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": round(_timeout_s(wait_ms) * 1000),
    }
    server = {
        "lock_timeout": wait_ms,
        "statement_timeout": wait_ms + _WORK_MS,
        "idle_in_transaction_session_timeout": _IDLE_MS,
        # By default the server keeps lost connections for hours.
        "tcp_keepalives_idle": 30,
        "tcp_keepalives_interval": 10,
        "tcp_keepalives_count": 3,
    }
    own: dict[str, Any] = {**tcp, "application_name": "sluiceway-gateway"}
    options = [f"-c {name}={value}" for name, value in server.items()]
    # The last value of an option applies.
    options += [str(url.query["options"])] if "options" in url.query else []
    return {
        **{name: value for name, value in own.items() if name not in url.query},
        "client_encoding": _ENCODING,
        "options": " ".join(options),
    }


def _timeout_s(wait_ms: int) -> float:
    return max(_ATTEMPT_S, wait_ms / 1000)


def _attempts(url: URL) -> int:
    """Return the expected number of addresses; a name often has an IPv4 and an IPv6 address."""
    named = url.query.get("host", url.host or "/")
    hosts = ",".join([named] if isinstance(named, str) else named).split(",")
    return 1 if all(host.startswith("/") for host in hosts) else max(2, len(hosts))


def _attempt_s(url: URL, wait_ms: int) -> float:
    return max(_ATTEMPT_S, _timeout_s(wait_ms) // _attempts(url))


#: Time that calls wait for the first probe, which a healthy database answers within milliseconds.
_GRACE_S = 0.5
_PAUSE_S = 0.1


class CircuitBreaker:
    """Rejects calls after a timeout, while a thread probes the database until it answers.

    Without it each call would wait for its own timeout on one of few threads, and queued calls for
    the sum of these timeouts.
    """

    def __init__(self, probe: Callable[[], None]) -> None:
        """`probe` raises an error if the database does not answer in time."""
        self._probe = probe
        self._lock = threading.Lock()
        self._tripped_s = 0.0
        self._answers = threading.Event()
        self._answers.set()
        self._stopping = threading.Event()

    def check(self) -> None:
        """Raise DatabaseUnavailable while the breaker is open."""
        if self._answers.is_set():
            return
        remaining_s = self._tripped_s + _GRACE_S - time.monotonic()
        if not self._answers.wait(max(0.0, remaining_s)):
            raise DatabaseUnavailable(
                "The database does not answer, or another process has it locked; "
                "try again in a moment."
            )

    def trip(self) -> None:
        """Open the breaker after a timeout."""
        with self._lock:
            if self._answers.is_set() and not self._stopping.is_set():
                _log.warning("the database does not answer")
                # First, because it fails where no thread is left: nothing would close the breaker.
                threading.Thread(target=self._run, name="database-probe", daemon=True).start()
                self._tripped_s = time.monotonic()
                self._answers.clear()

    def close(self) -> None:
        """Stop probing and close the breaker."""
        self._stopping.set()

    def _run(self) -> None:
        last_reason = ""
        while not self._stopping.is_set():
            try:
                self._probe()
            except Exception as error:
                if (reason := " ".join(str(error).split())) != last_reason:
                    _log.warning("the database still does not answer", reason=reason)
                    last_reason = reason
                self._stopping.wait(_PAUSE_S)
            else:
                _log.info("the database answers again")
                break
        with self._lock:
            self._answers.set()


class _Connection(psycopg.Connection[Any]):
    """A connection that closes itself when the server is silent for `silence_s`."""

    silence_s: float | None = _PING_S
    """None for no limit."""
    breaker: CircuitBreaker | None = None
    """Tripped by a silent server; None while pooled, because other connections may work."""

    def wait(self, gen: Generator[Any, Any, Result], *args: Any, **options: Any) -> Result:
        """Wait as psycopg does; raises OperationalError after `silence_s`."""
        return super().wait(self._limited(gen), *args, **options)

    def _limited(self, gen: Generator[Any, Any, Result]) -> Generator[Any, Any, Result]:
        """Wrap psycopg's `gen`, which yields awaited events and receives ready ones."""
        active_s = time.monotonic()
        try:
            awaited = next(gen)
            while True:
                # psycopg sends 0 every tenth of a second while no event is ready.
                ready = yield awaited
                awaited = gen.send(ready)
                now_s = time.monotonic()
                if ready:
                    active_s = now_s
                elif self.silence_s is not None and now_s - active_s > self.silence_s:
                    self._give_up()
        except StopIteration as end:
            result: Result = end.value
            return result

    def _give_up(self) -> None:
        # Otherwise a late result could be read as the next statement's.
        self.pgconn.finish()
        if self.breaker is not None:
            self.breaker.trip()
        raise psycopg.OperationalError("the server does not answer")


class _TracedCursor(psycopg.Cursor[Any]):
    """A cursor whose statements are spans."""

    def execute(self, text: Any, *arguments: Any, **options: Any) -> Self:  # type: ignore[override]
        with statement("postgresql", str(text)):
            return super().execute(text, *arguments, **options)

    def executemany(self, text: Any, rows: Any, **options: Any) -> None:  # type: ignore[override]
        with statement("postgresql", str(text), sets=len(rows)):
            super().executemany(text, rows, **options)


def wait_without_limit(connection: Connection) -> None:
    """Remove the client-side limit of a connection, for migrations."""
    driver: Any = connection.connection.dbapi_connection
    driver.silence_s = None


class Connector:
    """Opens an engine's connections with client-side timeouts."""

    def __init__(self, engine: Engine, *, wait_ms: int, max_concurrent: int) -> None:
        """Serve an engine with `pool_pre_ping`; `max_concurrent` limits connection attempts."""
        url = engine.url
        self.breaker = CircuitBreaker(self._probe)
        self._limit_s = max(_timeout_s(wait_ms), _attempts(url) * _attempt_s(url, wait_ms))
        self._silence_s = (wait_ms + _WORK_MS + _NETWORK_MS) / 1000
        self._slots = threading.BoundedSemaphore(max_concurrent)
        arguments, options = engine.dialect.create_connect_args(url)
        self._own_arguments = (
            list(arguments),
            {**options, **connect_arguments(url, wait_ms=wait_ms)},
        )
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "checkout", self._check_out)
        event.listen(engine, "checkin", self._check_in)

    def open(self) -> "psycopg.Connection[Any]":
        """Open a connection outside of the pool; raises psycopg's errors.

        It fails if the server is silent for two seconds.
        """
        try:
            return self._open(*self._own_arguments)
        except TimeoutError as error:
            raise psycopg.OperationalError(_NO_ANSWER) from error

    def _probe(self) -> None:
        """Open and close a connection; raises an error if the server does not answer in time."""
        self.open().close()

    def _connect(
        self, _dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]
    ) -> _Connection:
        self.breaker.check()
        try:
            connection = self._open(arguments, options)
        except (TimeoutError, psycopg.errors.ConnectionTimeout) as error:
            self.breaker.trip()
            raise psycopg.OperationalError(_NO_ANSWER) from error
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in (None, _ENCODING):
            connection.close()
            raise WrongEncoding(
                f"the database's encoding is {encoding}, this gateway needs {_ENCODING}: create "
                f"another with CREATE DATABASE name TEMPLATE template0 ENCODING '{_ENCODING}' "
                "LOCALE 'C' and set SLUICEWAY_DATABASE_URL to it"
            )
        return connection

    def _open(self, arguments: list[Any], options: dict[str, Any]) -> _Connection:
        """Return a new connection; raises TimeoutError.

        It is opened in a thread, because name resolution has no timeout.
        """
        deadline_s = time.monotonic() + self._limit_s
        if not self._slots.acquire(timeout=self._limit_s):
            raise TimeoutError
        opened: Future[_Connection] = Future()
        thread = threading.Thread(
            target=self._open_into, args=(opened, arguments, options), name="connect", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # No thread is left, so none releases the slot.
            self._slots.release()
            raise
        try:
            return opened.result(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            if opened.cancel():
                raise
            return opened.result()

    def _open_into(
        self, opened: "Future[_Connection]", arguments: list[Any], options: dict[str, Any]
    ) -> None:
        """Set the result of `opened`; close the connection if the caller gave up."""
        try:
            connection = _Connection.connect(*arguments, cursor_factory=_TracedCursor, **options)
            if opened.set_running_or_notify_cancel():
                opened.set_result(connection)
            else:
                connection.close()
        except Exception as error:
            if opened.set_running_or_notify_cancel():
                opened.set_exception(error)
        finally:
            self._slots.release()

    def _check_out(self, driver: _Connection, *_: object) -> None:
        driver.silence_s, driver.breaker = self._silence_s, self.breaker
        if driver.read_only is not None:
            # After a read, SQLAlchemy sets it to False. Each write would then begin as READ WRITE,
            # which a standby refuses as unsupported, and other servers obey if they are read-only.
            driver.read_only = None

    def _check_in(self, driver: _Connection | None, *_: object) -> None:
        if driver is not None:
            driver.silence_s, driver.breaker = _PING_S, None
