"""Reads of the audit trail."""

from sluiceway_gateway.audit import store as audit_store
from sluiceway_gateway.audit.model import AuditEntry
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.errors import ChannelNotFound


class AuditTrail:
    """The audit trail of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, name: str, *, before: int | None, limit: int) -> tuple[list[AuditEntry], bool]:
        """Return entries of channels of this name, the last first, and whether more follow.

        Deleted channels have entries too. Raises ChannelNotFound if there never was one.
        """
        with self._database.read() as tx:
            found = audit_store.page(tx, name, before=before, limit=limit + 1)
            if not found and before is None and channels_store.find(tx, name) is None:
                raise ChannelNotFound(
                    f"There is no channel {name!r}, and there are no changes of one."
                )
        return found[:limit], len(found) > limit
