"""Diagnosis of refused Kafka connections: TLS, authentication, protocol, address.

librdkafka has one message for an expired certificate, an untrusted one and one for another host,
and reports little more than a timeout for a port with another protocol.
"""

import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from sluiceway.api.kafka_probe import RESPONSE, is_kafka, probe
from sluiceway.api.tls import certificate_fault, speaks_tls
from sluiceway.errors import KafkaAccessFailed

_MAX_SERVERS = 3
_METADATA_S = 2.0
_CONNECT_S = 1.0
# A busy broker may take more than a second for one handshake.
_PROBE_S = 6.0
#: The most connections of one probe, one after the other.
_MAX_CONNECTIONS = 2
_UNKNOWN_MECHANISM = 33
_CERTIFICATES = ("ssl.certificate.pem", "ssl.certificate.location", "ssl.keystore.location")


class AccessProblem(StrEnum):
    """The kind of mismatch between Kafka properties and a broker."""

    CREDENTIALS = "credentials"
    CERTIFICATE = "certificate"
    PROTOCOL = "protocol"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A refused connection; `message` has the cause and a remedy, and depends on these only."""

    problem: AccessProblem
    message: str


def diagnosis(properties: Mapping[str, object], *, timeout_s: float = _PROBE_S) -> Finding | None:
    """Return the reason why brokers refuse connections with these properties, or None.

    Probes the first few bootstrap servers, for about `timeout_s` in all, without credentials. An
    unreachable broker is no finding. Raises TimeoutError if there is none and a server did not
    answer in time.
    """
    deadline_s = time.monotonic() + timeout_s
    addresses = _addresses(str(properties.get("bootstrap.servers", "")))
    slow = []
    for index, (host, port) in enumerate(addresses):
        # A timeout of 0 would make the socket non-blocking.
        share_s = max(deadline_s - time.monotonic(), 0.01) / (len(addresses) - index)
        try:
            finding = _BrokerProbe(host, port, properties, share_s / _MAX_CONNECTIONS).finding()
        except TimeoutError:
            slow.append(f"{host}:{port}")
        else:
            if finding is not None:
                return finding
    if slow:
        raise TimeoutError(f"no response from {', '.join(slow)}")
    return None


def unreachable_broker(servers: str, client: Any, topic: str) -> str | None:
    """Return an address that Kafka names to its clients but this host does not reach, and why.

    One of the bootstrap `servers` tells the admin client the addresses. None without a finding, as
    in an outage of all.
    """
    if all(_refusal(*address) for address in _addresses(servers)):
        return None
    try:
        brokers = client.list_topics(topic, timeout=_METADATA_S).brokers.values()
    except KafkaException:
        return None
    for broker in list(brokers)[:_MAX_SERVERS]:
        if refusal := _refusal(broker.host, broker.port):
            return f"{broker.host}:{broker.port} ({refusal})"
    return None


def _refusal(host: str, port: int) -> str | None:
    """Return why no connection to an address is possible, or None."""
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _addresses(servers: str) -> list[tuple[str, int]]:
    addresses = []
    for server in servers.split(",")[:_MAX_SERVERS]:
        host, _, port = server.strip().rpartition("://")[2].rpartition(":")
        if host and port.isdigit():
            addresses.append((host.strip("[]"), int(port)))
    return addresses


class _BrokerProbe:
    """Connects to one address like a client with these properties.

    Waits `timeout_s` at most for each response.
    """

    def __init__(
        self, host: str, port: int, properties: Mapping[str, object], timeout_s: float
    ) -> None:
        self._address = (host, port)
        self._where = f"{host}:{port}"
        self._properties = properties
        self._timeout_s = timeout_s
        protocol = str(properties.get("security.protocol", "plaintext")).upper()
        self._uses_sasl = protocol.startswith("SASL")
        self._uses_tls = protocol.endswith("SSL")
        self._setting = f"security.protocol is {protocol}"

    def finding(self) -> Finding | None:
        """Return the reason for a refused connection, or None. Raises TimeoutError."""
        return self._over_tls() if self._uses_tls else self._in_plaintext()

    def _in_plaintext(self) -> Finding | None:
        response = self._plaintext_response()
        tls = not is_kafka(response) and speaks_tls(*self._address, self._timeout_s)
        if tls:
            fitting = "SASL_SSL" if self._uses_sasl else "SSL, or to SASL_SSL with a password"
            return _protocol(f"{self._where} uses TLS, but {self._setting}; set it to {fitting}")
        if response is None or tls is None:
            raise TimeoutError
        return self._interpret(response)

    def _over_tls(self) -> Finding | None:
        try:
            with (
                self._connected() as plain,
                _context(self._properties).wrap_socket(
                    plain, server_hostname=self._address[0]
                ) as secured,
            ):
                return self._interpret(probe(secured))
        except ssl.SSLCertVerificationError as error:
            message = certificate_fault(error, self._where, "ssl.ca.pem or ssl.ca.location")
            return Finding(problem=AccessProblem.CERTIFICATE, message=message)
        except OSError as error:
            return self._tls_failure(error)

    def _tls_failure(self, error: OSError) -> Finding | None:
        """Return the reason of a TLS failure: no TLS at the broker, or a missing certificate."""
        if is_kafka(self._plaintext_response()):
            return _protocol(
                f"{self._where} does not use TLS, but {self._setting}; use the port for TLS, or "
                f"set it to {self._protocol_name(tls=False)}"
            )
        if isinstance(error, TimeoutError):
            raise error
        if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):
            return None
        if "ALERT" not in (error.reason or ""):
            return _protocol(
                f"{self._where} does not use TLS ({error.reason}); correct the address"
            )
        has_certificate = any(name in self._properties for name in _CERTIFICATES)
        does = (
            "refuses this client's certificate"
            if has_certificate
            else "requires a client certificate"
        )
        message = (
            f"{self._where} {does} ({error.reason}); give one that it trusts, with its key, in "
            "ssl.certificate.pem and ssl.key.pem"
        )
        return Finding(problem=AccessProblem.CERTIFICATE, message=message)

    def _interpret(self, response: bytes) -> Finding | None:
        """Return the finding from a broker's response; None without a response."""
        if response and not is_kafka(response):
            return _protocol(f"the server at {self._where} is not Kafka; correct the address")
        if response and RESPONSE.unpack(response)[2] == _UNKNOWN_MECHANISM and not self._uses_sasl:
            return _protocol(
                f"{self._where} requires a user and a password, but {self._setting}; set it to "
                f"SASL_{self._protocol_name(tls=self._uses_tls)}, with sasl.mechanism, "
                "sasl.username and sasl.password"
            )
        return None

    def _protocol_name(self, *, tls: bool) -> str:
        return ("SASL_" if self._uses_sasl else "") + ("SSL" if tls else "PLAINTEXT")

    def _connected(self) -> socket.socket:
        return socket.create_connection(self._address, self._timeout_s)

    def _plaintext_response(self) -> bytes | None:
        """Return the response without TLS; b"" if there is none, None after the timeout."""
        try:
            with self._connected() as plain:
                return probe(plain)
        except TimeoutError:
            return None
        except OSError:
            return b""


def _protocol(message: str) -> Finding:
    return Finding(problem=AccessProblem.PROTOCOL, message=message)


def _context(properties: Mapping[str, object]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    path, text = properties.get("ssl.ca.location"), properties.get("ssl.ca.pem")
    if path is None and text is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(
            cafile=None if path is None else str(path), cadata=None if text is None else str(text)
        )
    if str(properties.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    return context


_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
_SOURCES = (
    "Kafka properties come from the gateway's SLUICEWAY_KAFKA_CLIENT_PROPERTIES and this process's "
    "SLUICEWAY_KAFKA_CREDENTIALS, which takes precedence"
)


class ConnectionErrors:
    """The connection errors of one client, whose `error_cb` is `on_error`.

    Unavailable brokers may recover, but refused access is permanent, so `raise_refused` raises it
    at once instead of after the timeout of a call.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = properties
        self._last: KafkaError | None = None
        self._down = False
        self._diagnosed = False

    def on_error(self, error: KafkaError) -> None:
        """Record an error of librdkafka."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._down = True
        else:
            self._last = error

    def clear(self) -> None:
        """Forget earlier errors: a broker has answered."""
        self._last, self._down, self._diagnosed = None, False, False

    def raise_refused(self, doing: str, topic: str, *, final: bool = False) -> None:
        """Raise KafkaAccessFailed if all brokers are down because they refuse access.

        Runs the diagnosis until it has a result, and again for the `final` call.
        """
        if not self._down and not final:
            return
        if self._last is not None and self._last.code() in _REFUSED:
            raise self._failure(
                f"{self._last.str()}; check sasl.username, sasl.password and sasl.mechanism",
                doing,
                topic,
            )
        if self._diagnosed and not final:
            return
        try:
            finding = diagnosis(self._properties)
        except TimeoutError:
            return
        self._diagnosed = True
        if finding is not None:
            raise self._failure(finding.message, doing, topic)

    @staticmethod
    def _failure(reason: str, doing: str, topic: str) -> KafkaAccessFailed:
        return KafkaAccessFailed(
            f"Kafka refuses access while {doing} (topic {topic}): {reason}. {_SOURCES}"
        )


__all__ = ["AccessProblem", "ConnectionErrors", "Finding", "diagnosis", "unreachable_broker"]
