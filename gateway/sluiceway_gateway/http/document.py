"""The OpenAPI document: FastAPI's, with our problems and the token."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sluiceway_gateway.http.guard import PUBLIC
from sluiceway_gateway.http.problems import Problem


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
        app.openapi_schema = made
    return app.openapi_schema
