"""Group commit: pending commits share one transaction."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from sluiceway_gateway.auth.model import Principal
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.batching import Batcher
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.service import require_channel
from sluiceway_gateway.clock import Clock
from sluiceway_gateway.db.engine import Database, WriteTransaction
from sluiceway_gateway.errors import DatabaseUnavailable, EndpointNotFound
from sluiceway_gateway.offsets import store as offsets_store
from sluiceway_gateway.offsets.model import Commit
from sluiceway_gateway.offsets.store import Outcome

#: Positions in one transaction, which others wait for.
_MOST_POSITIONS = 5_000
#: Commits that wait, each by itself, for whoever holds their endpoint.
_PATIENT = 4


@dataclass(frozen=True, kw_only=True)
class PendingCommit:
    """A commit, and its principal, which the commit's transaction authenticates once more."""

    commit: Commit
    by: Principal


class Committing:
    """The commits of one database.

    What is answered is durable. One that fails, or that has to wait for another transaction,
    neither fails nor holds up those beside it.
    """

    def __init__(self, database: Database, tokens: Tokens, *, clock: Clock) -> None:
        self._database = database
        self._tokens = tokens
        self._clock = clock
        self._convoy = Batcher(
            self._together,
            name="commit",
            # The second of an endpoint is judged by what the first one left.
            key=lambda asked: asked.commit.endpoint,
            weight=lambda asked: len(asked.commit.positions),
            most=_MOST_POSITIONS,
        )
        self._patient = ThreadPoolExecutor(_PATIENT, thread_name_prefix="patient-commit")

    def join(self, asked: PendingCommit) -> "Future[Outcome]":
        """Commit with those that wait; raises, in the future, what stands against it."""
        return self._convoy.join(asked)

    def close(self) -> None:
        """End when all is answered."""
        self._convoy.close()
        self._patient.shutdown()

    def _together(
        self, asked: Sequence[PendingCommit]
    ) -> "list[Outcome | Future[Outcome] | Exception]":
        try:
            with self._database.write() as tx:
                outcomes = self._commit(tx, asked, wait=False)
        except DatabaseUnavailable:
            raise
        except Exception:
            # Whose fault it is shows when each goes by itself.
            return [self._patient.submit(self._alone, each) for each in asked]
        return [
            # It is not there, or somebody holds it.
            self._patient.submit(self._alone, each)
            if isinstance(outcome.error, EndpointNotFound)
            else outcome.error or outcome
            for each, outcome in zip(asked, outcomes, strict=True)
        ]

    def _alone(self, asked: PendingCommit) -> Outcome:
        commit = asked.commit
        with self._database.write() as tx:
            (outcome,) = self._commit(tx, [asked], wait=True)
            if isinstance(outcome.error, EndpointNotFound):
                require_channel(
                    commit.channel, channels_store.find(tx, commit.channel), commit.channel_uid
                )
        if outcome.error is not None:
            raise outcome.error
        return outcome

    def _commit(
        self, tx: WriteTransaction, asked: Sequence[PendingCommit], *, wait: bool
    ) -> list[Outcome]:
        refusals = self._tokens.refusals(tx, {each.by for each in asked})
        allowed = [(each.commit, each.by) for each in asked if each.by not in refusals]
        results = iter(offsets_store.commit(tx, allowed, now=self._clock(), wait=wait))
        return [
            Outcome(error=refusals[each.by]) if each.by in refusals else next(results)
            for each in asked
        ]
