"""API reference: the OpenAPI document with its examples and links, and the page of error codes."""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi import Path as PathParameter
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, JSONResponse

from sluiceway_gateway.api.auth import PUBLIC
from sluiceway_gateway.api.models import INT64_MAX
from sluiceway_gateway.api.openapi_examples import EXAMPLES, LINKS
from sluiceway_gateway.api.problems import Problem
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.core.errors import (
    NotFound,
    RegistryError,
    SluicewayGatewayError,
    StartupRefused,
)

router = APIRouter(route_class=StrictRoute)

_DIRECTORY = Path(__file__).parent / "swagger_ui"
_TYPES = {
    "favicon-32x32.png": "image/png",
    "page.css": "text/css",
    "start.js": "text/javascript",
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
}
_HEADERS = {
    # Swagger UI sets styles by itself and draws its icons from data: URLs.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # Another version of the gateway has other files under these names.
    "Cache-Control": "private, max-age=600",
}
DESCRIPTION = """
Typed data channels on Kafka. Records move between jobs and Kafka; these requests manage the rest.

Send `Authorization: Bearer TOKEN` once the gateway has tokens (**Authorize**). Bodies are JSON.
Errors are `application/problem+json` with a stable `code`: see the [error codes](docs/errors).
Every change can be repeated. `X-Request-Id` and `traceparent` of a request appear in the
gateway's log; every response has an `X-Request-Id`.
"""
TAGS = (
    *("channels", "schemas", "endpoints", "ledger", "messages", "status"),
    *("tokens", "cluster", "health"),
)
"""In the order of the document; the order of routes is that in which requests are matched."""

_ERRORS_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Error codes - Sluiceway</title>
<link rel="icon" type="image/png" href="../docs/favicon-32x32.png">
<link rel="stylesheet" href="../docs/page.css">
</head>
<body>
<h1>Error codes</h1>
<p>An error response is <code>application/problem+json</code> (RFC 9457). Its <code>code</code> is
stable. <code>retriable</code> means that the same request can succeed later. <code>detail</code>
says what is wrong with this request and what to do.</p>
<table><tr><th>code</th><th>status</th><th>retriable</th><th>meaning</th><th>what to do</th></tr>
{rows}</table>
</body>
</html>
"""


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    return JSONResponse(request.app.openapi())


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """Show the OpenAPI document."""
    return FileResponse(_DIRECTORY / "index.html", headers=_HEADERS, media_type="text/html")


@router.get("/docs/errors", include_in_schema=False)
async def errors_page() -> Response:
    """Show the error codes."""
    rows = "".join(
        f'<tr id="{error.code}"><td><code>{error.code}</code></td><td>{error.status}</td>'
        f"<td>{'yes' if error.retriable else 'no'}</td>"
        f"<td>{escape(error.meaning)}</td><td>{escape(error.advice)}</td></tr>\n"
        for error in error_codes()
    )
    return Response(_ERRORS_PAGE.format(rows=rows), headers=_HEADERS, media_type="text/html")


@router.get("/docs/{file}", include_in_schema=False)
async def docs_file(file: Annotated[str, PathParameter(max_length=100)]) -> Response:
    """Return a file of the page; raises NotFound."""
    if file not in _TYPES:
        raise NotFound(f"The documentation has no file {file!r}; it is at /docs.")
    return FileResponse(_DIRECTORY / file, headers=_HEADERS, media_type=_TYPES[file])


_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the document; built once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
        )
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        _share(Problem.model_json_schema(ref_template="#/components/schemas/{model}"), schemas)
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        for path, operations in made["paths"].items():
            for operation in operations.values():
                if path in PUBLIC:
                    operation["security"] = []
                _add_links(operation)
                if "requestBody" in operation:
                    content = operation["requestBody"]["content"]["application/json"]
                    content["example"] = EXAMPLES[operation["operationId"]]
                    if "$ref" not in content["schema"]:
                        content["schema"] = _share(content["schema"], schemas)
        _restore_integers(made)
        app.openapi_schema = made
    return app.openapi_schema


def _share(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, str]:
    """Add a model's schema, and those it refers to, to `schemas`; return the reference to it."""
    schemas.update(schema.pop("$defs", {}))
    schemas[schema["title"]] = schema
    return {"$ref": f"#/components/schemas/{schema['title']}"}


def _add_links(operation: dict[str, Any]) -> None:
    """Add the links of `LINKS` to the operation's responses without an error."""
    for link in LINKS.get(operation["operationId"], ()):
        described: dict[str, Any] = {"operationId": link.operation}
        if link.parameters:
            described["parameters"] = link.parameters
        if link.body:
            described["requestBody"] = link.body
        for status, response in operation["responses"].items():
            if status in ("200", "201"):
                response.setdefault("links", {})[link.operation] = described


def _restore_integers(part: Any) -> None:
    """Convert integer bounds back to integers; FastAPI's model of the document has floats."""
    for child in part.values() if isinstance(part, dict) else part:
        if isinstance(child, dict | list):
            _restore_integers(child)
    if isinstance(part, dict) and part.get("type") == "integer":
        for name in _BOUNDS & part.keys():
            bound = part[name]
            # As a float it was rounded up to 2**63.
            part[name] = INT64_MAX if bound == float(INT64_MAX) else int(bound)


class ErrorCode(NamedTuple):
    """A code of the HTTP interface."""

    code: str
    status: int
    retriable: bool
    meaning: str
    advice: str


def error_codes() -> list[ErrorCode]:
    """Return every code that a problem can have, by name; the registry has codes of its own."""
    kinds = {kind.code: kind for kind in _tree(SluicewayGatewayError)}
    return [
        ErrorCode(code, kind.status, kind.retriable, kind.title, kind.advice)
        for code, kind in sorted(kinds.items())
    ]


def _tree(kind: type[SluicewayGatewayError]) -> Iterator[type[SluicewayGatewayError]]:
    """Yield the classes of errors that responses can have."""
    if not issubclass(kind, (StartupRefused, RegistryError)):
        yield kind
        for subclass in kind.__subclasses__():
            yield from _tree(subclass)
