"""The OpenAPI document, and Swagger UI.

Swagger UI's files are npm's `swagger-ui-dist`, unchanged, held against the sums beside them by a
test. The page takes them from the gateway, and its content security policy allows no other source.
"""

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi import Path as PathParameter
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, JSONResponse
from starlette.routing import BaseRoute

from sluiceway_gateway.errors import NotFound
from sluiceway_gateway.http.auth import PUBLIC, Anybody
from sluiceway_gateway.http.params import INT64_MAX
from sluiceway_gateway.http.problems import Problem
from sluiceway_gateway.http.route import GatewayRoute

router = APIRouter(route_class=GatewayRoute)

_DIRECTORY = Path(__file__).parent / "swagger_ui"
_TYPES = {
    "favicon-32x32.png": "image/png",
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


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request, _anybody: Anybody) -> Response:
    """Return the OpenAPI document."""
    return JSONResponse(request.app.openapi())


@router.get("/docs", include_in_schema=False)
async def docs(_anybody: Anybody) -> Response:
    """Show the OpenAPI document."""
    return FileResponse(_DIRECTORY / "index.html", headers=_HEADERS, media_type="text/html")


@router.get("/docs/{file}", include_in_schema=False)
async def docs_file(
    file: Annotated[str, PathParameter(max_length=100)], _anybody: Anybody
) -> Response:
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
        for path in PUBLIC:
            for operation in made["paths"][path].values():
                operation["security"] = []
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
