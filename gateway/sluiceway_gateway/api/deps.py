"""Dependencies of routes: services of the application that serves a request."""

from typing import Annotated, Any

from fastapi import Depends, Request

from sluiceway_gateway.api.json import ResponseCache
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.settings import Settings


def part(name: str) -> Any:
    """Return the dependency on the application's service of this name, in `app.state.parts`."""

    def part_of(request: Request) -> Any:
        return getattr(request.app.state.parts, name)

    return Depends(part_of)


KafkaDep = Annotated[KafkaAdmin, part("kafka")]
RenderedDep = Annotated[ResponseCache, part("rendered")]
SettingsDep = Annotated[Settings, part("settings")]
TokensDep = Annotated[Tokens, part("tokens")]
