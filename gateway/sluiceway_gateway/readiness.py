"""Readiness of the database and Kafka, with the reasons of failures."""

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
from sluiceway_gateway.provisioning.status import unavailable_reason


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """For database and Kafka, why it cannot be used; None if it answers.

    The reasons are public, so they have no address and no user.
    """

    database: str | None
    kafka: str | None
    loops: Mapping[str, str] = field(default_factory=dict)
    """Reasons of background loops that keep failing; they do not affect readiness."""

    @property
    def ready(self) -> bool:
        """Whether database and Kafka answer."""
        return self.database is None and self.kafka is None


class ReadinessCheck:
    """Checks the database and Kafka, in at most four threads for any number of requests."""

    def __init__(
        self,
        database: Database,
        cluster: KafkaAdmin,
        *,
        timeout_s: float,
        failing: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`failing` returns the loops that keep failing, with the type of their errors."""
        self._failing = failing
        self._database = database
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._threads = CapacityLimiter(4)

    async def check(self) -> Readiness:
        """Check the database and Kafka."""
        database, kafka = await asyncio.gather(
            to_thread.run_sync(self._check_database, limiter=self._threads),
            to_thread.run_sync(self._check_kafka, limiter=self._threads),
        )
        return Readiness(database=database, kafka=kafka, loops=self._failing())

    def _check_database(self) -> str | None:
        try:
            revision.require_current(self._database)
            self._database.check()
        except (DatabaseUnavailable, WrongEncoding, WrongRevision) as error:
            return type(error).__name__
        return None

    def _check_kafka(self) -> str | None:
        try:
            self._cluster.describe_cluster(self._timeout_s)
        except KafkaUnavailable as error:
            return str(unavailable_reason(error.lockout))
        return None
