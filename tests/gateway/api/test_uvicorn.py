"""The parts of uvicorn that it does not document, and that the gateway extends or reads.

After a new version of uvicorn was allowed in pyproject.toml, these tests name what has changed.
"""

import asyncio
import inspect
import re
from collections.abc import Iterator
from operator import attrgetter
from types import FunctionType

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from sluiceway_gateway.api.limits import LimitedProtocol
from sluiceway_gateway.cli import serve

# The server is part of the command, and nothing else uses it.
EXTENDED = [(LimitedProtocol, HttpToolsProtocol), (serve.Server, uvicorn.Server)]


class Transport(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None: ...
    def close(self) -> None: ...
    def is_closing(self) -> bool:
        return True


async def app(scope: object, receive: object, send: object) -> None:
    """Respond with nothing, to which uvicorn says 500."""


def changes(own: type, base: type) -> Iterator[str]:
    """Yield a sentence for each method of `own` that is no longer the one it extends."""
    for name, method in vars(own).items():
        if isinstance(method, FunctionType) and (name == "__init__" or name[0] != "_"):
            extended = getattr(base, name, None)
            where = f"{own.__name__}.{name} extends uvicorn's {base.__name__}.{name}"
            if extended is None:
                yield f"{where}, which uvicorn {uvicorn.__version__} does not have"
            elif name != "__init__" and parameters(method) != parameters(extended):
                yield f"{where}, which now takes {parameters(extended)}"


def parameters(method: FunctionType) -> list[str]:
    return list(inspect.signature(method).parameters)


def missing(own: type, base: object) -> Iterator[str]:
    """Yield a sentence for each attribute that methods of `own` read and `base` does not have."""
    attributes = re.findall(r"self\.((?:cycle|flow|config)\.\w+|[a-z]\w*)", inspect.getsource(own))
    for name in sorted(set(attributes) - vars(own).keys() - own.__annotations__.keys()):
        try:
            attrgetter(name)(base)
        except AttributeError:
            yield f"{own.__name__} reads {name}, which uvicorn {uvicorn.__version__} does not have"


@pytest.mark.parametrize(("own", "base"), EXTENDED)
def test_uvicorn_has_the_methods_that_the_gateway_extends(own: type, base: type) -> None:
    assert list(changes(own, base)) == []


def test_uvicorn_has_the_attributes_that_the_limits_read() -> None:
    async def protocol() -> HttpToolsProtocol:
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        protocol = HttpToolsProtocol(config, ServerState(), {})
        protocol.connection_made(Transport())
        protocol.data_received(b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.gather(*protocol.tasks)
        return protocol

    assert list(missing(LimitedProtocol, asyncio.run(protocol()))) == []


def test_uvicorn_has_the_attributes_that_the_server_reads() -> None:
    # As above.
    assert list(missing(serve.Server, uvicorn.Server(uvicorn.Config(app, log_config=None)))) == []


def test_a_changed_method_or_attribute_is_named() -> None:
    class Changed:
        flow = cycle = None

        def on_url(self, url: bytes, last: bool) -> None: ...

    sentences = [*changes(LimitedProtocol, Changed), *missing(LimitedProtocol, Changed())]
    version = uvicorn.__version__
    extends = "LimitedProtocol.on_{0} extends uvicorn's Changed.on_{0}, which"
    for sentence in (
        f"{extends.format('url')} now takes ['self', 'url', 'last']",
        f"{extends.format('body')} uvicorn {version} does not have",
        f"LimitedProtocol reads cycle.response_complete, which uvicorn {version} does not have",
        f"LimitedProtocol reads transport, which uvicorn {version} does not have",
    ):
        assert sentence in sentences
