"""The OpenAPI document: FastAPI's, with our problems and the token."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sluiceway_gateway.http.auth import PUBLIC
from sluiceway_gateway.http.params import INT64_MAX
from sluiceway_gateway.http.problems import Problem

_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the document; it is made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
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


def _restore_integers(part: Any) -> None:
    """Make the bounds of integers integers again; FastAPI's model of the document has floats."""
    for each in part.values() if isinstance(part, dict) else part:
        if isinstance(each, dict | list):
            _restore_integers(each)
    if isinstance(part, dict) and part.get("type") == "integer":
        for name in _BOUNDS & part.keys():
            bound = part[name]
            # Rounded up; no float is as near to it.
            part[name] = INT64_MAX if bound == float(INT64_MAX) else int(bound)
