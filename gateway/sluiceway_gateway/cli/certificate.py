"""The certificate of HTTPS, which is read again when its files change."""

import ssl
from pathlib import Path
from typing import Any

import click
import structlog

from sluiceway_gateway.core.settings import Settings

_log = structlog.get_logger(__name__)


class Certificate:
    """The certificate of a TLS context; read again when its files change."""

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        """Watch the files, which the context has loaded."""
        self._context = context
        self._files = (certificate, key)
        self._seen = self._state()

    def reload(self) -> None:
        """Load changed files. The previous certificate stays if they cannot be used."""
        seen = self._state()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            # Into another context first, because a failure may leave half of the pair.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._context):
                _load_certificate(context, *self._files)
        except OSError as error:
            _log.error("the changed certificate cannot be used", reason=str(error))
        else:
            _log.info("the certificate was read again", file=str(self._files[0]))

    def _state(self) -> list[tuple[int, int] | None]:
        """Return what changes with the files' content; None for a file that cannot be read."""
        states: list[tuple[int, int] | None] = []
        for file in self._files:
            try:
                status = file.stat()
            except OSError:
                states.append(None)
            else:
                states.append((status.st_ino, status.st_mtime_ns))
        return states


def tls_options(settings: Settings) -> dict[str, Any]:
    """Return uvicorn's options for TLS. Raises ClickException if the files cannot be used."""
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    if certificate is None:
        return {}
    try:
        _load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
    except OSError as error:
        raise click.ClickException(
            f"cannot serve HTTPS with the certificate {certificate} and the key {key} ({error}): "
            "use PEM files, one with the certificate and its chain, one with the unencrypted key"
        ) from error
    return {"ssl_certfile": certificate, "ssl_keyfile": key}


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    # A password makes an encrypted key an error instead of a prompt on the terminal.
    context.load_cert_chain(certificate, key, password="-")  # noqa: S106
