"""Whether the topic is still the one that the channel was opened with."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from sluiceway.errors import KafkaUnavailable, TopicGone
from sluiceway.kafka.complaints import Complaints
from sluiceway.kafka.failures import is_gone, is_unavailable, made, translated
from sluiceway.kafka.properties import admin_config
from sluiceway.pauses import Pauses
from sluiceway.protocol import Connection

__all__ = ["TopicIdentity"]

# Kafka writes topic ids in the base64 that is safe in URLs, librdkafka in the other one.
_URL_SAFE = str.maketrans("+/", "-_")

_SPREAD_S = 3.0
_PAUSE_S = 0.05
_DOING = "looking at the topic"


class TopicIdentity:
    """Compares the topic in Kafka with the id that a connection names.

    A topic that was deleted and made anew has the same name and other data, so positions in the
    one mean nothing in the other. `config` has the Kafka properties of the writer or reader that
    asks, of which those count that concern the connection.
    """

    def __init__(self, connection: Connection, config: Mapping[str, object] | None = None) -> None:
        self._connection = connection
        properties = admin_config(connection.kafka, config)
        self._complaints = Complaints(properties)
        self._admin = made(AdminClient, properties.over({"error_cb": self._complaints.note}))
        self._verified_at_s = float("-inf")

    def verify(self, *, timeout_s: float, max_age_s: float = 0.0) -> None:
        """Return if it is the same topic and each partition has a leader.

        A look that is younger than `max_age_s` counts. Raises TopicGone or KafkaUnavailable, and
        KafkaAccessFailed as soon as it is seen that brokers let nobody in.
        """
        if time.monotonic() - self._verified_at_s < max_age_s:
            return
        name = self._connection.topic_name
        found = self._found(timeout_s)
        present = str(found.topic_id).translate(_URL_SAFE)
        expected = self._connection.topic_id and self._connection.topic_id.translate(_URL_SAFE)
        if expected is not None and present != expected:
            raise TopicGone(
                f"the topic {name} is not the one that was opened: its id was {expected} and is "
                f"{present} now. Open the channel anew; positions in the old topic mean nothing "
                "in this one"
            )
        leaderless = [each.id for each in found.partitions if each.leader is None]
        if leaderless:
            raise KafkaUnavailable(
                f"partition {leaderless[0]} of the topic {name} has no leader; "
                "try again when its brokers are back"
            )
        self._verified_at_s = time.monotonic()

    def ends(self, partitions: Iterable[int], *, timeout_s: float) -> dict[int, int]:
        """Return the offset after the last message of each partition. Raises KafkaUnavailable."""
        name = self._connection.topic_name
        asked = {TopicPartition(name, p): OffsetSpec.latest() for p in partitions}
        try:
            found = self._admin.list_offsets(asked, request_timeout=timeout_s)
            return {at.partition: self._answer(found[at], timeout_s).offset for at in asked}
        except KafkaException as error:
            raise translated(error.args[0], doing=_DOING, topic=name) from error
        except TimeoutError as error:
            raise KafkaUnavailable(
                f"Kafka did not tell the ends of the topic {name} within {timeout_s:g} s; "
                "try again when the brokers are back"
            ) from error

    def _found(self, timeout_s: float) -> Any:
        """Describe the topic; a new one may not have come to every broker's ears yet."""
        name = self._connection.topic_name
        grace_s = _SPREAD_S if self._verified_at_s == float("-inf") else 0.0
        pauses = Pauses(min(grace_s, timeout_s), longest_s=_PAUSE_S)
        while True:
            try:
                described = self._admin.describe_topics(
                    TopicCollection([name]), request_timeout=timeout_s
                )[name]
                found = self._answer(described, timeout_s + _SPREAD_S)
                self._complaints.forget()
            except KafkaException as error:
                if not is_gone(error.args[0]) or not pauses.wait():
                    if is_unavailable(error.args[0]):
                        self._complaints.refuse(_DOING, name, at_last=True)
                    raise translated(error.args[0], doing=_DOING, topic=name) from error
            except TimeoutError as error:
                raise KafkaUnavailable(
                    f"Kafka did not describe the topic {name} within {timeout_s:g} s; "
                    "try again when the brokers are back"
                ) from error
            else:
                return found

    def _answer(self, future: "Future[Any]", timeout_s: float) -> Any:
        """Wait for an answer, or for complaints that leave no hope of one."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return future.result(_PAUSE_S)
            except TimeoutError:
                if time.monotonic() > deadline_s:
                    raise
            self._admin.poll(0)
            self._complaints.refuse(_DOING, self._connection.topic_name)
