"""What is away."""

from typing import ClassVar

from sluiceway_gateway.domain.errors.root import SluicewayGatewayError


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
    """Kafka does not answer in time."""

    code = "kafka_unavailable"
    title = "Kafka is not available"
    retry_after_s = 2


class TooManyWaiters(Unavailable):
    """As many requests are waiting as this replica allows."""

    code = "too_many_waiters"
    title = "Too many waiting requests"
