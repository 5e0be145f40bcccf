"""A request that every Kafka broker answers, to tell brokers from other servers."""

import socket
import struct
from typing import Final

__all__ = ["RESPONSE", "is_kafka", "probe", "speaks_kafka"]

_CORRELATION_ID: Final = 0x534C5557
# SaslHandshake, version 1, with an empty mechanism: brokers answer it at least with an error.
_REQUEST: Final = struct.pack(">ihhihh", 12, 17, 1, _CORRELATION_ID, -1, 0)
RESPONSE: Final = struct.Struct(">iih")
"""The beginning of a response: its size, the correlation id and the error code."""


def probe(connection: socket.socket) -> bytes:
    """Send the request and return the first bytes of the response that arrive."""
    connection.sendall(_REQUEST)
    response = b""
    while len(response) < RESPONSE.size:
        more = connection.recv(RESPONSE.size - len(response))
        if not more:
            break
        response += more
    return response


def is_kafka(response: bytes | None) -> bool:
    """Return whether a response of `probe` is a broker's."""
    if response is None or len(response) != RESPONSE.size:
        return False
    return bool(RESPONSE.unpack(response)[1] == _CORRELATION_ID)


def speaks_kafka(host: str, port: int, timeout_s: float) -> bool:
    """Return whether the server is a Kafka broker without TLS."""
    try:
        with socket.create_connection((host, port), timeout_s) as plain:
            return is_kafka(probe(plain))
    except OSError:
        return False
