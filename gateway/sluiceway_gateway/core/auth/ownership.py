"""Use of groups, batches and keys by labels that do not own them: refused or permitted, audited."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.auth.model import Owned, OwnershipMode, Principal
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.failures import reason_of
from sluiceway_gateway.core.errors import DatabaseUnavailable, Forbidden

_log = structlog.get_logger(__name__)

#: A label's uses of one kind of a group or writer are audited and logged once in this time, so that
#: they displace no other entries.
_AUDITED_EVERY_S = 3600.0
_MOST_REMEMBERED = 10_000
_MOST_PENDING = 1_000


@dataclass(frozen=True, kw_only=True)
class _ForeignUse:
    """A use by another label than the owner."""

    owned: Owned
    principal: Principal
    action: str
    at: datetime


class Ownership:
    """The owners' rights in one database. Thread-safe."""

    def __init__(
        self,
        database: Database,
        *,
        mode: OwnershipMode,
        count: Callable[[str], None] = lambda _action: None,
        clock: Clock = system_clock,
    ) -> None:
        """`count` is called with the action of each use by another label than the owner."""
        self._database = database
        self._mode = mode
        self._count = count
        self._clock = clock
        self._lock = threading.Lock()
        self._audited: OrderedDict[tuple[object, ...], float] = OrderedDict()
        self._pending: deque[_ForeignUse] = deque(maxlen=_MOST_PENDING)

    def require(self, principal: Principal, owned: Owned, action: str) -> None:
        """Raise Forbidden if another label owns it, and owners' rights are enforced."""
        if principal.may_use(owned):
            return
        self._note(principal, owned, action)
        if self._mode is OwnershipMode.ENFORCE:
            raise Forbidden(
                f"The {owned.kind} {owned.name!r} of the channel {owned.channel!r} belongs to "
                "another owner. Use a token with the owner's label or with the scope manage, or "
                "have it transferred or shared with `sluiceway channels transfer`."
            )

    @property
    def pending(self) -> bool:
        """Whether uses wait for `write_pending`."""
        return bool(self._pending)

    def write_pending(self) -> None:
        """Write noted uses to the audit trail; call it outside of transactions."""
        with self._lock:
            uses = list(self._pending)
            self._pending.clear()
        if not uses:
            return
        outcome = "refused" if self._mode is OwnershipMode.ENFORCE else "permitted"
        try:
            with self._database.write() as tx:
                for use in uses:
                    audit_store.add(
                        tx,
                        audit_store.ChannelName(use.owned.channel, use.owned.channel_uid),
                        AuditedAction.FOREIGN_USE,
                        by=use.principal,
                        at=use.at,
                        target=use.owned.name,
                        new={use.action: outcome},
                    )
        except DatabaseUnavailable as error:
            # A later request writes them.
            self._pending.extendleft(reversed(uses))
            _log.warning("uses by other labels are not in the audit trail yet", **reason_of(error))

    def _note(self, principal: Principal, owned: Owned, action: str) -> None:
        self._count(action)
        key = (owned.channel_uid, owned.kind, owned.name, action, principal.subject)
        now_s = time.monotonic()
        with self._lock:
            last_s = self._audited.get(key)
            if last_s is not None and now_s - last_s < _AUDITED_EVERY_S:
                return
            self._audited[key] = now_s
            self._audited.move_to_end(key)
            if len(self._audited) > _MOST_REMEMBERED:
                self._audited.popitem(last=False)
            self._pending.append(
                _ForeignUse(owned=owned, principal=principal, action=action, at=self._clock())
            )
        _log.warning(
            f"use of a {owned.kind} of another owner",
            mode=str(self._mode),
            action=action,
            channel=owned.channel,
            target=owned.name,
            by=principal.subject or principal.id,
        )
