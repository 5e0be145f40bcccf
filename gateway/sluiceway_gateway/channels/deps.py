"""Dependencies of routes on the services of channels."""

from typing import Annotated

from sluiceway_gateway.api.deps import part
from sluiceway_gateway.channels.service import Channels
from sluiceway_gateway.channels.watch import Watch

ChannelsDep = Annotated[Channels, part("channels")]
WatchDep = Annotated[Watch, part("watch")]
