"""PostgreSQL: connections limited in time on the client's side.

The server's own timeouts end nothing when the server stands still or its packets are lost, so each
wait has a limit on this side too.
"""

import threading
import time
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL

from sluiceway_gateway.db.breaker import CircuitBreaker
from sluiceway_gateway.errors import WrongEncoding

# Within a transaction nothing but the database is waited for. One that is idle for so long is of a
# gateway that stands still, paused or stopped, and whose locks would keep the others from its work.
_IDLE_MS = 5_000
#: What a statement may take besides waiting for locks, and then its answer on the way.
_WORK_MS = 2_000
_WAY_MS = 1_000
#: Within which a connection shows that it is alive when it is taken from the pool.
_PING_S = 2.0
#: The shortest limit that psycopg and libpq have for a connection attempt.
_ATTEMPT_S = 2.0
_ENCODING = "UTF8"

Result = TypeVar("Result")


def connect_arguments(url: URL, *, wait_ms: int) -> dict[str, Any]:
    """Return the arguments for libpq besides the URL, which goes first in what it says of TCP.

    `wait_ms` is how long to wait for a lock.
    """
    tcp = {
        "connect_timeout": round(_attempt_s(url, wait_ms)),
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": round(_patience_s(wait_ms) * 1000),
    }
    server = {
        "lock_timeout": wait_ms,
        "statement_timeout": wait_ms + _WORK_MS,
        "idle_in_transaction_session_timeout": _IDLE_MS,
        # The server would count lost connections as used for hours.
        "tcp_keepalives_idle": 30,
        "tcp_keepalives_interval": 10,
        "tcp_keepalives_count": 3,
    }
    return {
        **{name: value for name, value in tcp.items() if name not in url.query},
        "client_encoding": _ENCODING,
        "application_name": "sluiceway-gateway",
        "options": " ".join(f"-c {name}={value}" for name, value in server.items()),
    }


def _patience_s(wait_ms: int) -> float:
    return max(_ATTEMPT_S, wait_ms / 1000)


def _attempts(url: URL) -> int:
    """Return how many addresses to allow for; a name often has one of IPv4 and one of IPv6."""
    named = url.query.get("host", url.host or "/")
    hosts = ",".join([named] if isinstance(named, str) else named).split(",")
    return 1 if all(each.startswith("/") for each in hosts) else max(2, len(hosts))


def _attempt_s(url: URL, wait_ms: int) -> float:
    return max(_ATTEMPT_S, _patience_s(wait_ms) // _attempts(url))


class _Connection(psycopg.Connection[Any]):
    """A connection that is closed when the server says nothing for `silence_s`."""

    silence_s: float | None = _PING_S
    """None: wait for as long as it takes."""
    breaker: CircuitBreaker | None = None
    """Tripped by a silence; None while the connection is in the pool, where others may be well."""

    def wait(self, gen: Generator[Any, Any, Result], *args: Any, **options: Any) -> Result:
        """Do as psycopg does, within the limit; raises OperationalError beyond it."""
        return super().wait(self._limited(gen), *args, **options)

    def _limited(self, gen: Generator[Any, Any, Result]) -> Generator[Any, Any, Result]:
        """Run psycopg's `gen`, which yields what it waits for and is sent whether it came."""
        heard_s = time.monotonic()
        try:
            awaited = next(gen)
            while True:
                # Every tenth of a second psycopg sends that nothing came.
                came = yield awaited
                awaited = gen.send(came)
                now_s = time.monotonic()
                if came:
                    heard_s = now_s
                elif self.silence_s is not None and now_s - heard_s > self.silence_s:
                    self._give_up()
        except StopIteration as end:
            result: Result = end.value
            return result

    def _give_up(self) -> None:
        # A late answer is never taken for that of the next statement.
        self.pgconn.finish()
        if self.breaker is not None:
            self.breaker.trip()
        raise psycopg.OperationalError("the server does not answer")


def wait_without_limit(connection: Connection) -> None:
    """Have a connection's statements take as long as they do, as those of a migration may."""
    driver: Any = connection.connection.dbapi_connection
    driver.silence_s = None


class Connector:
    """Opens an engine's connections, and limits what is waited for on them."""

    def __init__(self, engine: Engine, *, wait_ms: int, most: int) -> None:
        """Serve an engine whose pool pings what it lends; connect at most `most` at a time."""
        url = engine.url
        self.breaker = CircuitBreaker(self._try)
        self._limit_s = max(_patience_s(wait_ms), _attempts(url) * _attempt_s(url, wait_ms))
        self._silence_s = (wait_ms + _WORK_MS + _WAY_MS) / 1000
        self._places = threading.BoundedSemaphore(most)
        arguments, options = engine.dialect.create_connect_args(url)
        self._trial = (list(arguments), {**options, **connect_arguments(url, wait_ms=wait_ms)})
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "checkout", self._lend)
        event.listen(engine, "checkin", self._take_back)

    def _try(self) -> None:
        """Connect, which the server has to answer; raises an error if it does not in time."""
        self._opened(*self._trial).close()

    def _connect(
        self, _dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]
    ) -> _Connection:
        self.breaker.check()
        try:
            connection = self._opened(arguments, options)
        except (TimeoutError, psycopg.errors.ConnectionTimeout) as error:
            self.breaker.trip()
            raise psycopg.OperationalError("the server takes no connection in time") from error
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in (None, _ENCODING):
            connection.close()
            raise WrongEncoding(
                f"the database's encoding is {encoding}, this gateway needs {_ENCODING}: create "
                f"another with CREATE DATABASE name TEMPLATE template0 ENCODING '{_ENCODING}' "
                "LOCALE 'C' and set SLUICEWAY_DATABASE_URL to it"
            )
        return connection

    def _opened(self, arguments: list[Any], options: dict[str, Any]) -> _Connection:
        """Return a new connection, or raise TimeoutError.

        It is opened in a thread, because there is no limit to a wait for a name server.
        """
        deadline_s = time.monotonic() + self._limit_s
        if not self._places.acquire(timeout=self._limit_s):
            raise TimeoutError
        opened: Future[_Connection] = Future()
        threading.Thread(
            target=self._open, args=(opened, arguments, options), name="connect", daemon=True
        ).start()
        try:
            return opened.result(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            if opened.cancel():
                raise
            return opened.result()

    def _open(
        self, opened: "Future[_Connection]", arguments: list[Any], options: dict[str, Any]
    ) -> None:
        """Connect, for whoever waits for `opened`, or for nobody if that took too long."""
        try:
            connection = _Connection.connect(*arguments, **options)
            if opened.set_running_or_notify_cancel():
                opened.set_result(connection)
            else:
                connection.close()
        except Exception as error:
            if opened.set_running_or_notify_cancel():
                opened.set_exception(error)
        finally:
            self._places.release()

    def _lend(self, driver: _Connection, *_: object) -> None:
        driver.silence_s, driver.breaker = self._silence_s, self.breaker

    def _take_back(self, driver: _Connection | None, *_: object) -> None:
        if driver is not None:
            driver.silence_s, driver.breaker = _PING_S, None
