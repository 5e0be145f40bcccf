"""What librdkafka says aside of its connections, where its answers only say that they timed out."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError

from sluiceway.errors import KafkaAccessFailed
from sluiceway.kafka.diagnosis import diagnosis

__all__ = ["Complaints"]

_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's own codes have such names
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)
_WHENCE = (
    "Kafka properties come from the gateway, which has them in SLUICEWAY_KAFKA_CLIENT_PROPERTIES, "
    "and over these from SLUICEWAY_KAFKA_CREDENTIALS of this process"
)


class Complaints:
    """The errors of one client's connections; pass `note` as its `error_cb`, and serve it.

    Brokers that are away come back. That no broker lets the client in does not heal by itself:
    `refuse` raises it at once, and not after the time that a call may take.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = properties
        self._last: KafkaError | None = None
        self._down = False
        self._looked = False

    def note(self, error: KafkaError) -> None:
        """Take an error of librdkafka's."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._down = True
        else:
            self._last = error

    def forget(self) -> None:
        """Begin anew: a broker has answered."""
        self._last, self._down, self._looked = None, False, False

    def refuse(self, doing: str, topic: str, *, at_last: bool = False) -> None:
        """Raise KafkaAccessFailed if all brokers are down and it is seen that they stay so.

        Looks at the brokers until they have told what there is to see, and once more when it is
        `at_last`.
        """
        if not self._down and not at_last:
            return
        if self._last is not None and self._last.code() in _REFUSED:
            raise self._failure(
                f"{self._last.str()}; check sasl.username, sasl.password and sasl.mechanism",
                doing,
                topic,
            )
        if self._looked and not at_last:
            return
        try:
            found = diagnosis(self._properties)
        except TimeoutError:
            return
        self._looked = True
        if found is not None:
            raise self._failure(found.words, doing, topic)

    @staticmethod
    def _failure(why: str, doing: str, topic: str) -> KafkaAccessFailed:
        return KafkaAccessFailed(
            f"Kafka lets nobody in while {doing} (topic {topic}): {why}. {_WHENCE}"
        )
