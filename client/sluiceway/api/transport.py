"""HTTP transport: retries within a deadline, error responses as exceptions."""

import ipaddress
import math
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from functools import partial
from typing import Any, NoReturn, Self, TypeAlias, TypeVar
from urllib.request import getproxies, proxy_bypass

import httpx

from sluiceway import __version__
from sluiceway.api.arguments import check_seconds, checked_url
from sluiceway.api.auth import Token, TokenSource
from sluiceway.api.kafka_probe import speaks_kafka
from sluiceway.api.parsing import JsonNode, Page, parse, problem, to_json
from sluiceway.api.tls import certificate_fault, speaks_tls, tls_error, trusted
from sluiceway.concurrency import this_process
from sluiceway.errors import (
    EndpointClosed,
    Forbidden,
    GatewayAccessFailed,
    GatewayError,
    GatewayUnavailable,
    IncompatibleGateway,
    OptionError,
    clear_tracebacks,
)
from sluiceway.runtime.threads import call
from sluiceway.tracing import carrier, child_span, request_ids

__all__ = ["DEFAULT_URL", "Backoff", "Params", "Transport", "proxy_of"]

T = TypeVar("T")
Params: TypeAlias = Mapping[str, str | int | bool | None]

#: Sent to the gateway, which refuses clients without a feature that a channel needs.
_FEATURES = "exactly-once, partitioners"
DEFAULT_URL = "http://127.0.0.1:8900"
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 2.0
_LEAST_S = 1.0
_PROBE_S = 5.0
# A job's own `random.seed` would align the jitter of its processes.
_JITTER = random.SystemRandom()


class Transport:
    """Sends requests to one gateway, with retries.

    A request without a response, or with 503 or a proxy's 429 or 5xx, is retried with growing
    pauses for `timeout_s`; each attempt gets the remaining time, but at least a second. So every
    request must be safe to repeat. All attempts have the same `X-Request-Id`, which the gateway
    logs, and the W3C trace context of the current span, or else of the variable TRACEPARENT. The
    proxies of the environment (HTTPS_PROXY, NO_PROXY and the like) are used, except for loopback.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | Token | None = None,
        ca: str | None = None,
        timeout_s: float = 30.0,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        token = Token.of(token)
        self.url = checked_url(url or os.environ.get("SLUICEWAY_URL") or DEFAULT_URL)
        address = httpx.URL(self.url)
        self._proxy = proxy_of(address)
        self._server = {
            "server.address": address.host,
            "server.port": address.port or (443 if address.scheme == "https" else 80),
        }
        check_seconds("timeout_s", timeout_s, 0.001)
        self._token = TokenSource(token)
        self._ca = ca or os.environ.get("SLUICEWAY_CA_FILE")
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._monotonic = monotonic
        self._open()

    def __reduce__(self) -> NoReturn:
        """Raise TypeError, before httpx does so without advice."""
        self._process.__reduce__()

    @property
    def identity(self) -> Hashable:
        """A key that is equal for transports to one gateway, as one principal."""
        return (self.url, self._token.origin, self._ca, self._timeout_s)

    def clone(self) -> Self:
        """Return a transport to the same gateway with its own connections."""
        return type(self)(
            self.url, token=self._token.argument, ca=self._ca, timeout_s=self._timeout_s
        )

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        body: object = None,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
        in_job: bool = False,
    ) -> httpx.Response:
        """Send a request; return the response if it is a success or 304.

        Parameters that are None are omitted. `body` is a dataclass or a JSON object. `wait_s` is
        the time of a long poll, and extends the timeout. `timeout_s` replaces the transport's own.
        `in_job`: it is the request of a running job, so it is also repeated after a refused token,
        a fault of the gateway and the response of a proxy, which may pass.
        Raises GatewayError for other responses, GatewayAccessFailed at once for a certificate or
        protocol that does not match, and EndpointClosed if the transport was closed.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        backoff = Backoff(
            timeout_s + wait_s,
            first_s=_FIRST_PAUSE_S,
            longest_s=_MAX_PAUSE_S,
            sleep=self._sleep,
            monotonic=self._monotonic,
        )
        up = "; `sluiceway up` runs one on this machine" if self.url == DEFAULT_URL else ""
        if self._process.forked:
            # After a fork, the connections and the ids belong to the parent.
            self._open()
        headers = {"X-Request-Id": next(self._request_ids), **(headers or {})}
        params = {name: value for name, value in (params or {}).items() if value is not None}
        json = to_json(body) if is_dataclass(body) else body
        failure: GatewayError
        cause: Exception | None = None
        attempts = 0
        while True:
            pause_s = 0.0
            # The last attempt needs enough time for the response of a running gateway.
            left_s = min(timeout_s, max(backoff.left_s, _LEAST_S))
            try:
                response = call(
                    partial(
                        self._attempt,
                        method,
                        path,
                        attempts,
                        headers,
                        params=params,
                        json=json,
                        timeout=httpx.Timeout(left_s, read=left_s + wait_s),
                    )
                )
            except httpx.TransportError as error:
                clear_tracebacks(error)
                self._raise_if_final(error, first=cause is None)
                cause = error
                failure = GatewayUnavailable(
                    f"the gateway at {self.url} does not answer within {timeout_s:.3g} s"
                    f"{self._via}: {str(error).rstrip('.') or type(error).__name__}. Check that "
                    f"it is running, and the URL (url=, --url or SLUICEWAY_URL){up}"
                )
            else:
                if response.is_success or response.status_code == 304:
                    return response
                refusal = problem(response, via=self._via)
                if not (isinstance(refusal, GatewayUnavailable) or (in_job and _passes(refusal))):
                    raise refusal
                failure, cause = refusal, None
                pause_s = _retry_after_s(response)
            if not backoff.wait(at_least_s=pause_s):
                raise failure from cause
            attempts += 1

    def fetch(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        """Send a request, with the options of `request`; return the response as a `kind`."""
        return self.parse(kind, self.request(method, path, **options))

    def poll(
        self,
        kind: type[T],
        path: str,
        *,
        params: Params | None = None,
        seen: str | None,
        wait_s: float,
        timeout_s: float | None = None,
        **local: object,
    ) -> T | None:
        """Return the response of a GET; None if it still has the ETag `seen` after `wait_s`.

        `local` are further fields of the `kind`.
        """
        headers = None if seen is None else {"If-None-Match": seen}
        if seen is not None and wait_s:
            params = {**(params or {}), "wait": max(1, min(60, math.ceil(wait_s)))}
        response = self.request(
            "GET", path, params=params, headers=headers, wait_s=wait_s, timeout_s=timeout_s
        )
        return None if response.status_code == 304 else self.parse(kind, response, **local)

    def items(
        self, page: type[Page[T]], path: str, params: Params, *, timeout_s: float | None = None
    ) -> Iterator[T]:
        """Yield the items of a list, page by page."""
        cursor = None
        while True:
            query = params if cursor is None else {**params, "cursor": cursor}
            part = self.fetch(page, "GET", path, params=query, timeout_s=timeout_s)
            yield from part.items
            cursor = part.next_cursor
            if cursor is None:
                return

    def lines(self, path: str, *, params: Params, silence_s: float) -> Iterator[str]:
        """Yield the lines of a response as they come. Not repeated.

        Raises GatewayError, GatewayUnavailable also after `silence_s` without a line.
        """
        params = {name: value for name, value in params.items() if value is not None}
        timeout = httpx.Timeout(self._timeout_s, read=silence_s)
        token = self._token.current
        auth = None if token is None else token.authorize
        try:
            with (
                self._using_connections(),
                self._http.stream("GET", path, params=params, auth=auth, timeout=timeout) as stream,
            ):
                if not stream.is_success:
                    stream.read()
                    raise problem(stream, via=self._via)
                yield from stream.iter_lines()
        except httpx.TransportError as error:
            clear_tracebacks(error)
            raise GatewayUnavailable(
                f"the gateway at {self.url} broke off its response{self._via}: "
                f"{error or type(error).__name__}. Send the request again"
            ) from error

    def parse(self, kind: type[T], response: httpx.Response, **local: object) -> T:
        """Return a response as a `kind`, with its ETag. Raises IncompatibleGateway."""
        try:
            node = JsonNode(response.json())
        except ValueError as error:
            clear_tracebacks(error)
            raise IncompatibleGateway(
                f"{response.request.url} did not respond with JSON{self._via}. Check that "
                f"{self.url} is the gateway's URL",
                status=response.status_code,
            ) from error
        return parse(kind, node, etag=response.headers.get("ETag"), **local)

    def close(self) -> None:
        """Close the connections, once the requests of other threads have ended."""
        call(self._close)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            if not self._requests:
                self._http.close()

    def _open(self) -> None:
        self._http = self._new_client()
        # httpx leaks a connection that is being established while its client is closed, so the last
        # request closes the client.
        self._lock = threading.Lock()
        self._requests = 0
        self._closed = False
        self._request_ids = request_ids()
        # Last, because other threads of a forked child check it before they use the new client.
        self._process = this_process()

    def _new_client(self) -> httpx.Client:
        headers = {
            "User-Agent": f"sluiceway/{__version__}",
            "Accept": "application/json",
            "Sluiceway-Features": _FEATURES,
        }
        verify = trusted(self.url, self._ca)
        try:
            return httpx.Client(
                base_url=self.url,
                verify=httpx.create_ssl_context() if verify is True else verify,
                headers=headers,
                proxy=self._proxy,
                # The proxy is chosen above; httpx would also use one for loopback.
                trust_env=False,
            )
        except (httpx.InvalidURL, ValueError, ImportError) as error:
            # The text of InvalidURL may quote a password.
            reason = "escape special characters" if isinstance(error, httpx.InvalidURL) else error
            raise OptionError(
                f"the gateway at {self.url} cannot be reached{self._via}: {reason}"
            ) from None

    @property
    def _via(self) -> str:
        """The proxy in use, as a part of error messages; empty without one."""
        if self._proxy is None:
            return ""
        try:
            proxy = httpx.URL(self._proxy)
            name = f"{proxy.scheme}://{proxy.netloc.decode()}"
        except httpx.InvalidURL:
            name = "of an invalid URL"
        return (
            f" through the proxy {name} (HTTP_PROXY, HTTPS_PROXY or ALL_PROXY; NO_PROXY lists "
            "hosts without a proxy)"
        )

    def _raise_if_final(self, error: httpx.TransportError, *, first: bool) -> None:
        """Raise GatewayAccessFailed for an error that a retry cannot fix."""
        url = httpx.URL(self.url)
        fault = None
        match tls_error(error):
            case ssl.SSLCertVerificationError() as refused:
                fault = certificate_fault(refused, url.host, "ca=... or SLUICEWAY_CA_FILE")
            case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
                pass
            case ssl.SSLError() as failed:
                fault = f"the TLS handshake failed ({failed.reason}); try http:// in the URL"
            case None if (
                first
                and self._proxy is None
                and url.scheme == "http"
                and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
            ):
                port = url.port or 80
                if speaks_tls(url.host, port, _PROBE_S):
                    fault = "it uses TLS; use https:// instead of http://"
                elif speaks_kafka(url.host, port, _PROBE_S):
                    fault = (
                        "a Kafka broker answers there. Give the gateway's URL (url=, --url or "
                        f"SLUICEWAY_URL), by default {DEFAULT_URL}; it names Kafka's address"
                    )
        if fault is not None:
            raise GatewayAccessFailed(
                f"no connection to the gateway at {self.url}{self._via}: {fault}"
            ) from error

    def _attempt(
        self, method: str, path: str, resent: int, headers: Mapping[str, str], **options: Any
    ) -> httpx.Response:
        attributes = {
            **self._server,
            "http.request.method": method,
            "http.request.resend_count": resent,
            "url.full": f"{self.url}{path}",
        }
        with self._using_connections(), child_span(method, attributes) as span:
            # Within the span, so the gateway's span becomes its child.
            options["headers"] = {**headers, **carrier()}
            while True:
                token = self._token.current
                # Not in `headers`: httpx keeps them in locals, and masks only its own headers.
                auth = None if token is None else token.authorize
                response = self._http.request(method, path, auth=auth, **options)
                if response.status_code != 401 or not self._token.refresh(token):
                    span.set("http.response.status_code", response.status_code)
                    if response.is_error:
                        span.fail(str(response.status_code))
                    return response

    @contextmanager
    def _using_connections(self) -> Iterator[None]:
        """Keep the connections open for the block. Raises EndpointClosed."""
        with self._lock:
            if self._closed:
                raise EndpointClosed(
                    f"the Gateway for {self.url} was closed. Open a new one and the channel again. "
                    "Keep it open while its channels are in use and while readers may need new "
                    "schemas"
                )
            self._requests += 1
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        with self._lock:
            self._requests -= 1
            if self._closed and not self._requests:
                self._http.close()


def proxy_of(url: httpx.URL) -> str | None:
    """Return the proxy of the environment for a gateway; None for loopback and without one.

    A proxy would look for loopback on its own machine, and get the token.
    """
    loopback = url.host == "localhost" or url.host.endswith(".localhost")
    with suppress(ValueError):
        loopback = ipaddress.ip_address(url.host).is_loopback
    if loopback or proxy_bypass(url.host):
        return None
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def _passes(refusal: GatewayError) -> bool:
    """Whether a repeat of a running job's request may succeed."""
    return not (refusal.is_final or refusal.retriable or isinstance(refusal, Forbidden))


def _retry_after_s(response: httpx.Response) -> float:
    try:
        return min(float(response.headers.get("Retry-After", "0")), _MAX_PAUSE_S)
    except ValueError:
        return 0.0


class Backoff:
    """Growing pauses between the attempts of one operation, for `timeout_s` in all."""

    def __init__(
        self,
        timeout_s: float,
        *,
        first_s: float = 0.05,
        longest_s: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sleep, self._monotonic = sleep, monotonic
        self._deadline_s = monotonic() + timeout_s
        self._next_s = first_s
        self._longest_s = longest_s

    @property
    def left_s(self) -> float:
        """The time left, at least 0."""
        return max(0.0, self._deadline_s - self._monotonic())

    def wait(self, *, at_least_s: float = 0.0) -> bool:
        """Sleep before the next attempt; return False at once if no time would remain."""
        pause_s = max(self._next_s, at_least_s)
        if pause_s >= self.left_s:
            return False
        self._sleep(pause_s * _JITTER.uniform(0.8, 1.0))
        self._next_s = min(2 * pause_s, self._longest_s)
        return True
