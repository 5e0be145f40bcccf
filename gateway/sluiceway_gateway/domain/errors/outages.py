"""What is away."""

from typing import ClassVar

from sluiceway_gateway.domain.errors.root import SluicewayGatewayError
from sluiceway_gateway.domain.lockout import Lockout


class Unavailable(SluicewayGatewayError):
    """A part that the gateway needs is away; ask again after `retry_after_s`."""

    code = "unavailable"
    title = "Not available at the moment"
    retriable = True
    retry_after_s: ClassVar[int] = 1


class DatabaseUnavailable(Unavailable):
    """The database is locked, away, full or not migrated."""

    code = "database_unavailable"
    title = "The database is not available"


class KafkaUnavailable(Unavailable):
    """Kafka does not answer in time; `lockout` says why where it does not let the gateway in."""

    code = "kafka_unavailable"
    title = "Kafka is not available"
    retry_after_s = 2

    def __init__(self, detail: str, lockout: Lockout | None = None) -> None:
        super().__init__(detail)
        self.lockout = lockout


class TooManyConnections(Unavailable):
    """As many connections are busy as this replica allows."""

    code = "too_many_connections"
    title = "Too many connections"


class TooManyWaiters(Unavailable):
    """As many requests are waiting as this replica allows."""

    code = "too_many_waiters"
    title = "Too many waiting requests"
