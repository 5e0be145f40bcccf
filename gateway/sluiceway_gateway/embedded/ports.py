"""Free TCP ports on the loopback interface."""

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """Return `count` different ports of 127.0.0.1 that nothing listened on just now.

    Somebody else may take one before it is used: whoever binds it must be ready to ask again.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
