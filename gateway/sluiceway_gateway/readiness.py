"""Readiness of the parts that the gateway needs, with reasons."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from anyio import CapacityLimiter, to_thread

from sluiceway_gateway.db import revision
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.errors import (
    DatabaseUnavailable,
    KafkaUnavailable,
    WrongEncoding,
    WrongRevision,
)
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.provisioning.status import away


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """For each part the word for why it is of no use; None where it answers.

    Anybody may see the words, so they name no address and no user.
    """

    database: str | None
    kafka: str | None
    loops: Mapping[str, str] = field(default_factory=dict)
    """Background loops that keep failing, each with the word; requests are answered anyway."""

    @property
    def ready(self) -> bool:
        """Whether database and Kafka answer."""
        return self.database is None and self.kafka is None


class Health:
    """Asks the database and Kafka, with few threads of its own, however often it is asked."""

    def __init__(
        self,
        database: Database,
        cluster: KafkaAdmin,
        *,
        timeout_s: float,
        failing: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`failing` returns the background loops that keep failing, each with the kind of error."""
        self._failing = failing
        self._database = database
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._threads = CapacityLimiter(4)

    async def readiness(self) -> Readiness:
        """Say which parts answer within the timeout."""
        database, kafka = await asyncio.gather(
            to_thread.run_sync(self._without_database, limiter=self._threads),
            to_thread.run_sync(self._without_kafka, limiter=self._threads),
        )
        return Readiness(database=database, kafka=kafka, loops=self._failing())

    def _without_database(self) -> str | None:
        try:
            revision.require_current(self._database)
            self._database.check()
        except (DatabaseUnavailable, WrongEncoding, WrongRevision) as error:
            return type(error).__name__
        return None

    def _without_kafka(self) -> str | None:
        try:
            self._cluster.describe_cluster(self._timeout_s)
        except KafkaUnavailable as error:
            return str(away(error.lockout))
        return None
