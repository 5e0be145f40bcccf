"""The services that routes depend on."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.channels.service import Channels
from sluiceway_gateway.cluster.service import ClusterService
from sluiceway_gateway.endpoints.heartbeats import HeartbeatService
from sluiceway_gateway.endpoints.service import AttachService, Endpoints
from sluiceway_gateway.groups.service import GroupService
from sluiceway_gateway.http.json import JsonCache, ResponseCache
from sluiceway_gateway.longpoll import Watch
from sluiceway_gateway.metrics import Metrics
from sluiceway_gateway.offsets.service import Acknowledgements, Offsets
from sluiceway_gateway.readiness import ReadinessCheck
from sluiceway_gateway.settings import Settings
from sluiceway_gateway.status.service import Statuses


@dataclass(frozen=True, kw_only=True)
class Services:
    """The services of one gateway."""

    settings: Settings
    tokens: Tokens
    channels: Channels
    attach: AttachService
    endpoints: Endpoints
    heartbeats: HeartbeatService
    offsets: Offsets
    acknowledgements: Acknowledgements
    statuses: Statuses
    rendered: ResponseCache
    fragments: JsonCache
    groups: GroupService
    watch: Watch
    cluster: ClusterService
    readiness: ReadinessCheck
    metrics: Metrics


def services_of(request: Request) -> Services:
    """Return the services of the application that serves this request."""
    parts = request.app.state.parts
    assert isinstance(parts, Services)  # noqa: S101
    return parts


Gateway = Annotated[Services, Depends(services_of)]
