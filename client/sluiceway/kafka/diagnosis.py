"""Diagnosis of refused Kafka connections: TLS, authentication, protocol, address.

librdkafka tells an expired certificate, a foreign one and one of another host by the same words,
and of a port that speaks something else it says little but that it timed out.
"""

import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from confluent_kafka import KafkaError

from sluiceway.errors import KafkaAccessFailed
from sluiceway.rest.tls import certificate_fault, speaks_tls

_MOST_SERVERS = 3
# A broker that has much to do may take more than a second for one handshake.
_LOOK_S = 6.0
#: How many connections a look at one server makes at most, one after the other.
_KNOCKS = 2
# What a broker answers to anybody, be it with an error: the beginning of a login (SaslHandshake,
# version 1) by a mechanism without a name, and with a number that comes back.
_NUMBER = 0x534C5557
_GREETING = struct.pack(">ihhihh", 12, 17, 1, _NUMBER, -1, 0)
_ANSWER = struct.Struct(">iih")
_UNKNOWN_MECHANISM = 33
_CERTIFICATES = ("ssl.certificate.pem", "ssl.certificate.location", "ssl.keystore.location")


class AccessProblem(StrEnum):
    """What of the Kafka properties and the broker does not go together."""

    CREDENTIALS = "credentials"
    CERTIFICATE = "certificate"
    PROTOCOL = "protocol"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What keeps Kafka shut; `words` say it and what to do, alike as long as it is the same."""

    misfit: AccessProblem
    words: str


def diagnosis(properties: Mapping[str, object], *, timeout_s: float = _LOOK_S) -> Finding | None:
    """Say what keeps these Kafka properties from working, and what to do; None: nothing is seen.

    A broker that is not there is no finding. Credentials are not tried. Looks at the first few
    bootstrap servers, for about `timeout_s` in all. Raises TimeoutError where none has told
    anything and one did not answer in time: whatever was seen before may still be so.
    """
    deadline_s = time.monotonic() + timeout_s
    addresses = _addresses(str(properties.get("bootstrap.servers", "")))
    slow = []
    for seen, (host, port) in enumerate(addresses):
        # A timeout of zero would not be one: such a socket does not wait.
        share_s = max(deadline_s - time.monotonic(), 0.01) / (len(addresses) - seen)
        try:
            found = _Door(host, port, properties, share_s / _KNOCKS).fault()
        except TimeoutError:
            slow.append(f"{host}:{port}")
        else:
            if found is not None:
                return found
    if slow:
        raise TimeoutError(f"no answer from {', '.join(slow)}")
    return None


def _addresses(servers: str) -> list[tuple[str, int]]:
    addresses = []
    for server in servers.split(",")[:_MOST_SERVERS]:
        host, _, port = server.strip().rpartition("://")[2].rpartition(":")
        if host and port.isdigit():
            addresses.append((host.strip("[]"), int(port)))
    return addresses


class _Door:
    """One address of a broker, and what a client with these properties meets there.

    Waits `timeout_s` at most for each answer.
    """

    def __init__(
        self, host: str, port: int, properties: Mapping[str, object], timeout_s: float
    ) -> None:
        self._address = (host, port)
        self._place = f"{host}:{port}"
        self._properties = properties
        self._timeout_s = timeout_s
        protocol = str(properties.get("security.protocol", "plaintext")).upper()
        self._logs_in = protocol.startswith("SASL")
        self._is_secured = protocol.endswith("SSL")
        self._has = f"security.protocol is {protocol}"

    def fault(self) -> Finding | None:
        """Say what is wrong, or None; raises TimeoutError if it takes too long to tell."""
        return self._over_tls() if self._is_secured else self._in_clear()

    def _in_clear(self) -> Finding | None:
        answer = self._greeted_in_clear()
        spoken = not _is_kafkas(answer) and speaks_tls(*self._address, self._timeout_s)
        if spoken:
            fitting = "SASL_SSL" if self._logs_in else "SSL, or to SASL_SSL with a password"
            return _protocol(f"{self._place} speaks TLS, and {self._has}; set it to {fitting}")
        if answer is None or spoken is None:
            raise TimeoutError
        return self._understood(answer)

    def _over_tls(self) -> Finding | None:
        try:
            with (
                self._connected() as plain,
                _context(self._properties).wrap_socket(
                    plain, server_hostname=self._address[0]
                ) as secured,
            ):
                return self._understood(_greeted(secured))
        except ssl.SSLCertVerificationError as error:
            words = certificate_fault(error, self._place, "ssl.ca.pem or ssl.ca.location")
            return Finding(misfit=AccessProblem.CERTIFICATE, words=words)
        except OSError as error:
            return self._broken_off(error)

    def _broken_off(self, error: OSError) -> Finding | None:
        """Say why TLS came to nothing: there is none, or the broker wants it otherwise."""
        if _is_kafkas(self._greeted_in_clear()):
            return _protocol(
                f"{self._place} speaks without TLS, and {self._has}; name the port for TLS, or "
                f"set it to {self._named(tls=False)}"
            )
        if isinstance(error, TimeoutError):
            raise error
        if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):
            return None
        if "ALERT" not in (error.reason or ""):
            return _protocol(
                f"{self._place} does not speak TLS ({error.reason}); correct the address"
            )
        given = any(name in self._properties for name in _CERTIFICATES)
        does = "refuses this client's certificate" if given else "wants a client's certificate"
        words = (
            f"{self._place} {does} ({error.reason}); give one that it trusts, with its key, in "
            "ssl.certificate.pem and ssl.key.pem"
        )
        return Finding(misfit=AccessProblem.CERTIFICATE, words=words)

    def _understood(self, answer: bytes) -> Finding | None:
        """Say what is wrong by a broker's answer; nothing, if there was none."""
        if answer and not _is_kafkas(answer):
            return _protocol(f"what answers at {self._place} is not Kafka; correct the address")
        if answer and _ANSWER.unpack(answer)[2] == _UNKNOWN_MECHANISM and not self._logs_in:
            return _protocol(
                f"{self._place} wants a user and a password, and {self._has}; set it to "
                f"SASL_{self._named(tls=self._is_secured)}, with sasl.mechanism, sasl.username "
                "and sasl.password"
            )
        return None

    def _named(self, *, tls: bool) -> str:
        return ("SASL_" if self._logs_in else "") + ("SSL" if tls else "PLAINTEXT")

    def _connected(self) -> socket.socket:
        return socket.create_connection(self._address, self._timeout_s)

    def _greeted_in_clear(self) -> bytes | None:
        """Return the answer without TLS, b"" if there is none, None if it does not come in time."""
        try:
            with self._connected() as plain:
                return _greeted(plain)
        except TimeoutError:
            return None
        except OSError:
            return b""


def _protocol(words: str) -> Finding:
    return Finding(misfit=AccessProblem.PROTOCOL, words=words)


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


def _greeted(connection: socket.socket) -> bytes:
    """Send the greeting and return the beginning of the answer, as much as comes."""
    connection.sendall(_GREETING)
    answer = b""
    while len(answer) < _ANSWER.size:
        more = connection.recv(_ANSWER.size - len(answer))
        if not more:
            break
        answer += more
    return answer


def _is_kafkas(answer: bytes | None) -> bool:
    if answer is None or len(answer) != _ANSWER.size:
        return False
    return bool(_ANSWER.unpack(answer)[1] == _NUMBER)


_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's own codes have such names
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)
_WHENCE = (
    "Kafka properties come from the gateway, which has them in SLUICEWAY_KAFKA_CLIENT_PROPERTIES, "
    "and over these from SLUICEWAY_KAFKA_CREDENTIALS of this process"
)


class ConnectionErrors:
    """The errors of one client's connections; pass `note` as its `error_cb`, and serve it.

    Brokers that are away come back. That no broker lets the client in does not heal by itself:
    `refuse` raises it at once, and not after the time that a call may take.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = properties
        self._last: KafkaError | None = None
        self._down = False
        self._looked = False

    def note(self, error: KafkaError) -> None:
        """Take an error of librdkafka's."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._down = True
        else:
            self._last = error

    def forget(self) -> None:
        """Begin anew: a broker has answered."""
        self._last, self._down, self._looked = None, False, False

    def refuse(self, doing: str, topic: str, *, at_last: bool = False) -> None:
        """Raise KafkaAccessFailed if all brokers are down and it is seen that they stay so.

        Looks at the brokers until they have told what there is to see, and once more when it is
        `at_last`.
        """
        if not self._down and not at_last:
            return
        if self._last is not None and self._last.code() in _REFUSED:
            raise self._failure(
                f"{self._last.str()}; check sasl.username, sasl.password and sasl.mechanism",
                doing,
                topic,
            )
        if self._looked and not at_last:
            return
        try:
            found = diagnosis(self._properties)
        except TimeoutError:
            return
        self._looked = True
        if found is not None:
            raise self._failure(found.words, doing, topic)

    @staticmethod
    def _failure(why: str, doing: str, topic: str) -> KafkaAccessFailed:
        return KafkaAccessFailed(
            f"Kafka lets nobody in while {doing} (topic {topic}): {why}. {_WHENCE}"
        )


__all__ = ["AccessProblem", "ConnectionErrors", "Finding", "diagnosis"]
