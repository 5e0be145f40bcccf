"""Dependencies of routes on the services of channels."""

from typing import Annotated

from fastapi import Depends

from sluiceway_gateway.api.deps import Service
from sluiceway_gateway.channels.service import Channels
from sluiceway_gateway.channels.watch import Watch

ChannelsDep = Annotated[Channels, Depends(Service("channels"))]
WatchDep = Annotated[Watch, Depends(Service("watch"))]
