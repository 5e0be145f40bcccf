"""The dependency of routes on the service of status."""

from typing import Annotated

from sluiceway_gateway.api.deps import part
from sluiceway_gateway.status.service import Statuses

StatusesDep = Annotated[Statuses, part("statuses")]
