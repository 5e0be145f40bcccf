"""The way to the gateway: how requests reach it, and as whom."""

import os
from dataclasses import dataclass, field
from typing import Any

from sluiceway.errors import OptionError
from sluiceway.rest.auth import Token
from sluiceway.rest.transport import Transport

__all__ = ["SslConfig", "Way", "way_of"]


@dataclass(frozen=True)
class SslConfig:
    """The file of certificates that the gateway's is trusted by; it has tokens for the rest."""

    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A gateway's address and what it is asked with."""

    url: str
    ca: str | None = None
    token: Token | None = None
    listener: str | None = None

    def transport(self, timeout_s: float) -> Transport:
        """Return connections of their own. Raises OptionError."""
        return Transport(self.url, token=self.token, ca=self.ca, timeout_s=timeout_s)


def way_of(
    host: str,
    port: int,
    *,
    url: str | None,
    ssl_config: Any,
    token: Token | None,
    listener: str | None,
) -> Way:
    """Return the way to `url`, or to the gateway at this host and port. Raises OptionError."""
    cafile = getattr(ssl_config, "cafile", None)
    if getattr(ssl_config, "certfile", None) is not None:
        raise OptionError(
            "ssl_config has a certfile, and a gateway knows its clients by tokens: leave it out, "
            "and give token=, or set SLUICEWAY_TOKEN"
        )
    if url is None:
        if not isinstance(host, str) or not host:
            raise OptionError(f"host is {host!r}; it takes the gateway's, and port its port")
        scheme = "http" if ssl_config is None else "https"
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    return Way(
        url=url,
        ca=cafile,
        token=token,
        listener=listener or os.environ.get("SLUICEWAY_LISTENER"),
    )
