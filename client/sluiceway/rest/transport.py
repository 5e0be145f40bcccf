"""HTTP transport: retries within a deadline, problem responses as exceptions, paths."""

import json
import os
import random
import re
import ssl
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import httpx

from sluiceway._version import __version__
from sluiceway.errors import (
    ChannelClosed,
    ChannelNotFound,
    ChannelNotReady,
    Conflict,
    EndpointClosed,
    Fenced,
    Forbidden,
    GatewayAccessFailed,
    GatewayError,
    GatewayUnavailable,
    IncompatibleGateway,
    InvalidRequest,
    OptionError,
    StaleGeneration,
    Unauthenticated,
)
from sluiceway.fork_guard import ForkGuard
from sluiceway.rest.auth import Token, TokenSource, forget_frames
from sluiceway.rest.tls import certificate_fault, speaks_tls

BY_CODE: Mapping[str, type[GatewayError]] = {
    "body_too_large": InvalidRequest,
    "channel_adopted": Conflict,
    "channel_closed": ChannelClosed,
    "channel_deleting": Conflict,
    "channel_not_found": ChannelNotFound,
    "channel_not_ready": ChannelNotReady,
    "channel_pinned": Conflict,
    "concurrent_change": Conflict,
    "config_not_allowed": InvalidRequest,
    "conflict": Conflict,
    "database_unavailable": GatewayUnavailable,
    "endpoint_id_reused": Conflict,
    "endpoint_not_found": Conflict,
    "endpoints_live": Conflict,
    "fenced": Fenced,
    "forbidden": Forbidden,
    "goes_back": Conflict,
    "group_larger_than_pinned": Conflict,
    "group_mode": Conflict,
    "group_not_found": Conflict,
    "group_size": Conflict,
    "headers_too_large": InvalidRequest,
    "idempotency_key_reused": Conflict,
    "illegal_transition": Conflict,
    "immutable_field": Conflict,
    "internal_error": GatewayError,
    "invalid_request": InvalidRequest,
    "invalid_schema": InvalidRequest,
    "kafka_unavailable": GatewayUnavailable,
    "malformed_http": InvalidRequest,
    "members_open": Conflict,
    "method_not_allowed": IncompatibleGateway,
    "no_group": Conflict,
    "not_assigned": Conflict,
    "not_found": IncompatibleGateway,
    "partitions_shrink": Conflict,
    "position_moved": Conflict,
    "precondition_failed": Conflict,
    "replication_exceeds_brokers": Conflict,
    "request_timeout": GatewayUnavailable,
    "schema_incompatible": Conflict,
    "stale_generation": StaleGeneration,
    "too_many_connections": GatewayUnavailable,
    "too_many_schemas": Conflict,
    "topic_changed": Conflict,
    "topic_not_found": Conflict,
    "topic_taken": Conflict,
    "too_many_waiters": GatewayUnavailable,
    "unauthenticated": Unauthenticated,
    "unavailable": GatewayUnavailable,
    "uid_mismatch": Conflict,
    "unread_data": Conflict,
    "url_too_long": InvalidRequest,
}
"""Every code that a gateway of this version can answer; newer ones go by their status."""

_BY_STATUS: Mapping[int, type[GatewayError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: IncompatibleGateway,
    405: IncompatibleGateway,
    409: Conflict,
    412: Conflict,
    502: GatewayUnavailable,
    503: GatewayUnavailable,
    504: GatewayUnavailable,
}


def problem(answer: httpx.Response) -> GatewayError:
    """Return the exception for an answer that is not a success."""
    status = answer.status_code
    try:
        told = answer.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        told = None
    if not isinstance(told, dict) or not isinstance(told.get("code"), str):
        # Not the gateway's words: a proxy's, or another server's.
        kind = _BY_STATUS.get(status, IncompatibleGateway)
        return kind(
            f"{answer.request.url} answered {status} {answer.reason_phrase} and not as a gateway "
            "of Sluiceway does; is the URL the gateway's?",
            status=status,
        )
    code = told["code"]
    kind = BY_CODE.get(code) or _BY_STATUS.get(
        status, InvalidRequest if status < 500 else GatewayError
    )
    errors = [
        {"pointer": str(each.get("pointer", "")), "message": str(each.get("message", ""))}
        for each in told.get("errors") or ()
        if isinstance(each, dict)
    ]
    places = "".join(f"; {each['pointer']}: {each['message']}" for each in errors)
    return kind(
        f"{told.get('detail') or told.get('title') or code}{places}",
        status=status,
        code=code,
        retriable=told.get("retriable") is True,
        errors=errors,
    )


DEFAULT_URL = "http://127.0.0.1:8900"
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 2.0
_KNOCK_S = 5.0
# Many repeat at once, and are to spread; what a job seeds `random` with would keep them together.
_LOTS = random.SystemRandom()


class Transport:
    """Sends requests to one gateway.

    What may heal (no connection, no answer, 503) is repeated with growing pauses for `timeout_s`
    in all. So requests are made such that repeating them does no harm.
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
        self.url = _checked_url(url or os.environ.get("SLUICEWAY_URL") or DEFAULT_URL)
        if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= 86_400:
            raise OptionError(f"timeout_s is {timeout_s!r}; it takes seconds up to 86400")
        self._token = TokenSource(token)
        self._ca = ca or os.environ.get("SLUICEWAY_CA_FILE")
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._monotonic = monotonic
        self._http = self._connected()

    @property
    def identity(self) -> Hashable:
        """What is equal for transports that speak to one gateway as one principal."""
        return (self.url, self._token.origin, self._ca, self._timeout_s)

    def another(self) -> "Transport":
        """Return a transport to the same gateway with connections of its own."""
        return Transport(self.url, token=self._token.given, ca=self._ca, timeout_s=self._timeout_s)

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> httpx.Response:
        """Return a successful answer, or 304; raise GatewayError for the others.

        GatewayAccessFailed says that a certificate or the protocol does not fit: at once. A
        transport that was closed raises EndpointClosed. `wait_s` is how long the gateway was asked
        to wait before it answers, `timeout_s` takes the place of the transport's own.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline_s = self._monotonic() + timeout_s + wait_s
        pause_s = _FIRST_PAUSE_S
        cause: Exception | None = None
        while True:
            try:
                answer = self._attempt(
                    method, path, params, headers, body, timeout_s=timeout_s, wait_s=wait_s
                )
            except httpx.TransportError as error:
                forget_frames(error)
                self._refuse(error, first=cause is None)
                cause = error
                failure = GatewayUnavailable(
                    f"the gateway at {self.url} does not answer: {error or type(error).__name__}. "
                    "Is it running, and is the URL right?"
                )
            except RuntimeError as error:
                if not self._http.is_closed:
                    raise
                raise EndpointClosed(
                    f"the Gateway of {self.url} was closed. Open a new one, and the channel anew; "
                    "let it be open as long as its channels are used, and readers that may meet "
                    "a new schema"
                ) from error
            else:
                if answer.is_success or answer.status_code == 304:
                    return answer
                told = problem(answer)
                if not isinstance(told, GatewayUnavailable):
                    raise told
                failure, cause = told, None
                pause_s = max(pause_s, _retry_after_s(answer))
            left_s = deadline_s - self._monotonic()
            if left_s <= pause_s:
                raise failure from cause
            self._sleep(pause_s * _LOTS.uniform(0.8, 1.0))
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)

    def answer(self, response: httpx.Response) -> Any:
        """Return the JSON of an answer."""
        try:
            return response.json()
        except ValueError as error:
            forget_frames(error)
            raise IncompatibleGateway(
                f"{response.request.url} answered no JSON; is {self.url} the gateway's URL?",
                status=response.status_code,
            ) from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _connected(self) -> httpx.Client:
        self._fork_guard = ForkGuard()
        return httpx.Client(
            base_url=self.url,
            verify=_trust(self.url, self._ca),
            headers={"User-Agent": f"sluiceway/{__version__}", "Accept": "application/json"},
        )

    def _refuse(self, error: httpx.TransportError, *, first: bool) -> None:
        """Raise GatewayAccessFailed if the failure is one that repeating does not heal."""
        url = httpx.URL(self.url)
        fault = None
        match _tls_error(error):
            case ssl.SSLCertVerificationError() as told:
                fault = certificate_fault(told, url.host, "ca=... or SLUICEWAY_CA_FILE")
            case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
                pass
            case ssl.SSLError() as told:
                fault = f"it does not speak TLS like this ({told.reason}); is the URL http://...?"
            case None if first and url.scheme == "http" and _hung_up(error):
                if speaks_tls(url.host, url.port or 80, _KNOCK_S):
                    fault = "it speaks TLS; write https:// in the place of http://"
        if fault is not None:
            raise GatewayAccessFailed(
                f"the gateway at {self.url} cannot be talked to: {fault}"
            ) from error

    def _attempt(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        body: Any,
        *,
        timeout_s: float,
        wait_s: float,
    ) -> httpx.Response:
        if self._fork_guard.forked:
            # After a fork the old connections are the parent's.
            self._http = self._connected()
        while True:
            token = self._token.current()
            response = self._http.request(
                method,
                path,
                params=params,
                headers=headers,
                # Not one of the headers here: httpx has these in locals, and masks its own.
                auth=None if token is None else token.authorize,
                json=body,
                timeout=httpx.Timeout(timeout_s, read=timeout_s + wait_s),
            )
            if response.status_code != 401 or not self._token.refresh():
                return response


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise OptionError(f"the gateway's URL is {url!r}: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
        raise OptionError(
            "the gateway's URL is http://HOST:PORT or https://HOST:PORT, without a user; "
            f"it is {parsed!r}"
        )
    return url.rstrip("/")


def _trust(url: str, ca: str | None) -> ssl.SSLContext | bool:
    """Return whom to trust."""
    if ca is None and url.startswith("http:"):
        # Nobody: to read the system's authorities takes 20 ms, and nobody asks for them.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"the file {ca!r} holds no certificates to trust: {error}") from error


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """Return the failure of TLS that this one came of, if it did."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _hung_up(error: httpx.TransportError) -> bool:
    return isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)


def _retry_after_s(answer: httpx.Response) -> float:
    try:
        return min(float(answer.headers.get("Retry-After", "0")), _MAX_PAUSE_S)
    except ValueError:
        return 0.0


class Backoff:
    """The pauses between tries of one thing, for `timeout_s` in all from now on."""

    def __init__(self, timeout_s: float, *, first_s: float = 0.05, longest_s: float = 1.0) -> None:
        self._deadline_s = time.monotonic() + timeout_s
        self._next_s = first_s
        self._longest_s = longest_s

    @property
    def left_s(self) -> float:
        """How long there is still time; 0 if there is none."""
        return max(0.0, self._deadline_s - time.monotonic())

    def wait(self) -> bool:
        """Pause before the next try; False, at once, if the time would be up then."""
        if self._next_s >= self.left_s:
            return False
        time.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, self._longest_s)
        return True


_NAME = re.compile(r"[a-z0-9._-]+")
_GROUP = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,199}")


def channel_path(name: str) -> str:
    """Return the path of a channel. Raises InvalidRequest."""
    # What is none of these characters could become another path on the way.
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidRequest(
            "a channel's name is made of a-z, 0-9, '.', '_' and '-' and begins with a letter or a "
            f"digit; it is {name!r}"
        )
    return f"/v1/channels/{name}"


def group_path(channel: str, group: str) -> str:
    """Return the path of a group at a channel. Raises InvalidRequest, OptionError."""
    if not isinstance(group, str) or not _GROUP.fullmatch(group):
        raise OptionError(
            "a group's name is made of a-z, A-Z, 0-9, '.', '_' and '-', 200 at most, and begins "
            f"with a letter or a digit; it is {group!r}"
        )
    return f"{channel_path(channel)}/groups/{group}"


__all__ = ["Backoff", "Transport", "channel_path", "group_path"]
