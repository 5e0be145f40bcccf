"""Routes of the dashboard: the page at `/`, and its files below `/ui/`."""

import gzip
import hashlib
import re
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse

from sluiceway import __version__
from sluiceway_gateway.api.params import Conditions
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.core.errors import NotFound
from sluiceway_gateway.core.preconditions import Precondition

router = APIRouter(route_class=StrictRoute)

_DIRECTORY = Path(__file__).parent / "static"
_PAGE = "index.html"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Served files; licences and checksums are in the package only."""
_LINKS = {
    "/docs": "API reference",
    "/docs/errors": "error codes",
    "/openapi.json": "OpenAPI document",
    "/v1/channels": "channels",
    "/v1/status": "status of all channels",
    "/v1/cluster": "Kafka's brokers",
    "/metrics": "metrics for Prometheus",
    "/livez": "liveness",
    "/readyz": "readiness",
}
_IMPORT_MAP = re.compile(rb'<script type="importmap">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True)
class _File:
    """A file as it is served."""

    body: bytes
    compressed: bytes
    etag: str
    media_type: str


@cache
def _files() -> dict[str, _File]:
    """Return the served files by their path below `/ui/`, read and compressed once."""
    return {
        path.relative_to(_DIRECTORY).as_posix(): _read(path)
        for path in sorted(_DIRECTORY.rglob("*"))
        if path.suffix in _TYPES
    }


def _read(path: Path) -> _File:
    body = path.read_bytes()
    return _File(
        body=body,
        compressed=gzip.compress(body, 9, mtime=0),
        etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        media_type=_TYPES[path.suffix],
    )


@cache
def _headers() -> dict[str, str]:
    """Return the headers of all files; the page's import map is allowed by its hash."""
    (import_map,) = _IMPORT_MAP.findall(_files()[_PAGE].body)
    allowed = b64encode(hashlib.sha256(import_map).digest()).decode()
    return {
        "Content-Security-Policy": (
            f"default-src 'none'; script-src 'self' 'sha256-{allowed}'; style-src 'self'; "
            "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'; require-trusted-types-for 'script'"
        ),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        # Another version of the gateway has other files under these names.
        "Cache-Control": "no-cache",
    }


@router.get("/", include_in_schema=False)
async def index(request: Request, precondition: Conditions) -> Response:
    """Return the dashboard to browsers, and a list of addresses as JSON to programs."""
    if "text/html" in request.headers.get("accept", ""):
        response = _response(_files()[_PAGE], request, precondition)
        response.headers["Vary"] = "Accept, Accept-Encoding"
        return response
    body = {"service": "sluiceway", "version": __version__, "links": _LINKS}
    return JSONResponse(body, headers={"Vary": "Accept"})


@router.get("/ui/{file:path}", include_in_schema=False)
async def ui_file(
    file: Annotated[str, PathParameter(max_length=200)], request: Request, precondition: Conditions
) -> Response:
    """Return a file of the page; raises NotFound."""
    page_file = _files().get(file)
    if page_file is None:
        raise NotFound(f"The dashboard has no file {file!r}; it is at the gateway's address.")
    return _response(page_file, request, precondition)


def _response(file: _File, request: Request, precondition: Precondition) -> Response:
    headers = {**_headers(), "ETag": file.etag, "Vary": "Accept-Encoding"}
    if precondition.names(file.etag):
        return Response(status_code=304, headers=headers)
    body = file.body
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = file.compressed, "gzip"
    return Response(body, headers=headers, media_type=file.media_type)
