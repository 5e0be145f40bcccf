"""Dependencies of routes: services of the application that serves a request."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from sluiceway_gateway.api.json import ResponseCache
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.changes import Changes
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.settings import Settings


@dataclass(frozen=True)
class Service:
    """The dependency on the application's service of this name, in `app.state.parts`.

    Equal ones are one dependency, also in `dependency_overrides`.
    """

    name: str

    async def __call__(self, request: Request) -> Any:
        """Return the service."""
        return getattr(request.app.state.parts, self.name)


ChangesDep = Annotated[Changes, Depends(Service("changes"))]
KafkaDep = Annotated[KafkaAdmin, Depends(Service("kafka"))]
RenderedDep = Annotated[ResponseCache, Depends(Service("rendered"))]
SettingsDep = Annotated[Settings, Depends(Service("settings"))]
TokensDep = Annotated[Tokens, Depends(Service("tokens"))]
