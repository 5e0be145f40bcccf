"""The socket that the gateway serves on."""

import socket
from contextlib import ExitStack

__all__ = ["bound_socket"]


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address; a port of 0 takes a free one. Raises OSError.

    asyncio sends what there is at once (TCP_NODELAY) only where a socket names its protocol. On
    one that leaves it at 0, the body of an answer would wait for the client's kernel to
    acknowledge its head: 40 ms for each request.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    with ExitStack() as unless_bound:
        bound = unless_bound.enter_context(
            socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        )
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        unless_bound.pop_all()
    return bound
