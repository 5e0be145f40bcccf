"""All tables: importing this module adds those of every package to `metadata`."""

import sluiceway_gateway.channels.tables
import sluiceway_gateway.core.audit.tables
import sluiceway_gateway.core.auth.tables
import sluiceway_gateway.core.db.tables
import sluiceway_gateway.core.kafka.tables
import sluiceway_gateway.endpoints.tables
import sluiceway_gateway.ledger.tables
import sluiceway_gateway.schemas.tables
import sluiceway_gateway.status.tables  # noqa: F401
from sluiceway_gateway.core.db.types import metadata

__all__ = ["metadata"]
