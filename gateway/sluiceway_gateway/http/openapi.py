"""The OpenAPI document, Swagger UI, and the page at `/`.

Swagger UI's files are npm's `swagger-ui-dist`, unchanged, held against the sums beside them by a
test. The page takes them from the gateway, and its content security policy allows no other source.
"""

from collections.abc import Sequence
from copy import copy
from html import escape
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi import Path as PathParameter
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, JSONResponse
from starlette.routing import BaseRoute

from sluiceway import __version__
from sluiceway_gateway.errors import NotFound
from sluiceway_gateway.http.auth import PUBLIC
from sluiceway_gateway.http.examples import EXAMPLES
from sluiceway_gateway.http.params import INT64_MAX
from sluiceway_gateway.http.problems import Problem
from sluiceway_gateway.http.route import GatewayRoute

router = APIRouter(route_class=GatewayRoute)

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
    # A later version of the gateway brings other files under these names.
    "Cache-Control": "private, max-age=600",
}
DESCRIPTION = """
Typed data channels on Kafka. Records move between jobs and Kafka; these requests agree on the rest.

Send `Authorization: Bearer TOKEN` once the gateway has tokens (**Authorize**). Bodies are JSON.
Errors are `application/problem+json` with a stable `code`: see the [error codes](docs/errors).
Every change can be repeated. `X-Request-Id` and `traceparent` of a request appear in the
gateway's log; every answer has an `X-Request-Id`.
"""
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


def page(title: str, body: str, *, up: str = "") -> Response:
    """Return an HTML page; `up` leads from its path to `/`."""
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)} - Sluiceway</title>\n"
        f'<link rel="icon" type="image/png" href="{up}docs/favicon-32x32.png">\n'
        f'<link rel="stylesheet" href="{up}docs/page.css">\n</head>\n<body>\n'
        f"<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )
    return Response(text, headers=_HEADERS, media_type="text/html")


@router.get("/", include_in_schema=False)
async def index(request: Request) -> Response:
    """List what is here: as HTML if the request prefers that, else as JSON."""
    if "text/html" in request.headers.get("accept", ""):
        items = "".join(
            f'<li><a href="{path[1:]}">{path}</a> {text}</li>\n' for path, text in _LINKS.items()
        )
        answer = page("Sluiceway gateway", f"<ul>\n{items}</ul>")
    else:
        answer = JSONResponse({"service": "sluiceway", "version": __version__, "links": _LINKS})
    answer.headers["Vary"] = "Accept"
    return answer


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    return JSONResponse(request.app.openapi())


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """Show the OpenAPI document."""
    return FileResponse(_DIRECTORY / "index.html", headers=_HEADERS, media_type="text/html")


@router.get("/docs/{file}", include_in_schema=False)
async def docs_file(file: Annotated[str, PathParameter(max_length=100)]) -> Response:
    """Return a file of the page; raises NotFound."""
    if file not in _TYPES:
        raise NotFound(f"The documentation has no file {file!r}; it is at /docs.")
    return FileResponse(_DIRECTORY / file, headers=_HEADERS, media_type=_TYPES[file])


_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}


def document(app: FastAPI, routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Return the document, with the routes in this order; built once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=[_without_head(each) for each in routes],
        )
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(problem.pop("$defs", {}))
        schemas["Problem"] = problem
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        for path, operations in made["paths"].items():
            for operation in operations.values():
                if path in PUBLIC:
                    operation["security"] = []
                if "requestBody" in operation:
                    example = EXAMPLES[operation["operationId"]]
                    operation["requestBody"]["content"]["application/json"]["example"] = example
        _restore_integers(made)
        app.openapi_schema = made
    return app.openapi_schema


def _without_head(route: BaseRoute) -> BaseRoute:
    """Return the route without HEAD, which every GET has and no document needs to repeat."""
    if not isinstance(route, GatewayRoute):
        return route
    documented = copy(route)
    documented.methods = (route.methods or set()) - {"HEAD"}
    return documented


def _restore_integers(part: Any) -> None:
    """Convert integer bounds back to integers; FastAPI's model of the document has floats."""
    for each in part.values() if isinstance(part, dict) else part:
        if isinstance(each, dict | list):
            _restore_integers(each)
    if isinstance(part, dict) and part.get("type") == "integer":
        for name in _BOUNDS & part.keys():
            bound = part[name]
            # Rounded up; no float is as near to it.
            part[name] = INT64_MAX if bound == float(INT64_MAX) else int(bound)
