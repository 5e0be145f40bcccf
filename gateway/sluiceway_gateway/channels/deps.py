"""The dependency of routes on the service of channels."""

from typing import Annotated

from fastapi import Depends

from sluiceway_gateway.api.deps import Service
from sluiceway_gateway.channels.service import Channels

ChannelsDep = Annotated[Channels, Depends(Service("channels"))]
