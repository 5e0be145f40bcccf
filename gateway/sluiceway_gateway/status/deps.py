"""The dependency of routes on the service of status."""

from typing import Annotated

from fastapi import Depends

from sluiceway_gateway.api.deps import Service
from sluiceway_gateway.status.service import Statuses

StatusesDep = Annotated[Statuses, Depends(Service("statuses"))]
