"""Whether the topic is still the one that the channel was opened with."""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from sluiceway.errors import KafkaUnavailable, TopicGone
from sluiceway.fork_guard import ForkGuard
from sluiceway.kafka.config import MaskedProperties, admin_config
from sluiceway.kafka.diagnosis import ConnectionErrors
from sluiceway.kafka.errors import is_gone, is_unavailable, made, translated, with_retries
from sluiceway.rest.models import Connection
from sluiceway.rest.transport import Backoff

__all__ = ["EARLIEST", "LATEST", "TopicIdentity"]

T = TypeVar("T")

LATEST, EARLIEST = -1, -2
"""What Kafka's ListOffsets takes in the place of a time."""

# Kafka writes topic ids in the base64 that is safe in URLs, librdkafka in the other one.
_URL_SAFE = str.maketrans("+/", "-_")

_SPREAD_S = 3.0
_PAUSE_S = 0.05
_MAX_LOOK_S = 2.0
_DOING = "looking at the topic"
_ISOLATION = {False: IsolationLevel.READ_UNCOMMITTED, True: IsolationLevel.READ_COMMITTED}


@dataclass(frozen=True, kw_only=True)
class _Look:
    """A topic as it was seen."""

    topic_id: str
    partitions: int
    leaderless: int | None
    at_s: float


class _Inquiry:
    """A client of Kafka's that asks about topics, with what brokers complained of to it.

    `looks` has what it saw last, by topic: a look at a thousand partitions takes its time, and
    those who bear with one that is not new need not each take their own.
    """

    def __init__(self, properties: MaskedProperties) -> None:
        self.looks: dict[str, _Look] = {}
        self.turn = threading.Lock()
        self.complaints = ConnectionErrors(properties)
        self.admin = made(AdminClient, properties.over({"error_cb": self.complaints.note}))


_INQUIRIES: "weakref.WeakValueDictionary[tuple[ForkGuard, MaskedProperties], _Inquiry]" = (
    weakref.WeakValueDictionary()
)
"""Of this process, as a program may have a thousand readers; one that failed is asked no more."""


class TopicIdentity:
    """Compares the topic in Kafka with the id that a connection names.

    A topic that was deleted and made anew has the same name and other data, so positions in the
    one mean nothing in the other. `config` has the Kafka properties of the writer or reader that
    asks, of which those count that concern the connection.
    """

    def __init__(self, connection: Connection, config: Mapping[str, object] | None = None) -> None:
        self._connection = connection
        properties = admin_config(connection.kafka, config)
        self._key = (ForkGuard(), properties)
        self._inquiry = _INQUIRIES.get(self._key) or _INQUIRIES.setdefault(
            self._key, _Inquiry(properties)
        )
        self._complaints, self._admin = self._inquiry.complaints, self._inquiry.admin
        self._verified = False

    def verify(self, *, timeout_s: float, max_age_s: float = 0.0) -> None:
        """Return if it is the same topic and each partition has a leader.

        A look that is younger than `max_age_s` counts, whoever in this process took it. Raises
        TopicGone or KafkaUnavailable, and KafkaAccessFailed as soon as it is seen that brokers let
        nobody in.
        """
        name = self._connection.topic_name
        since_s = time.monotonic() - max_age_s
        look = self._inquiry.looks.get(name)
        if look is None or look.at_s <= since_s:
            look = self._shared_look(timeout_s, since_s) if max_age_s else self._look(timeout_s)
        present = look.topic_id.translate(_URL_SAFE)
        expected = self._connection.topic_id and self._connection.topic_id.translate(_URL_SAFE)
        if expected is not None and present != expected:
            raise TopicGone(
                f"the topic {name} is not the one that was opened: its id was {expected} and is "
                f"{present} now. Open the channel anew; positions in the old topic mean nothing "
                "in this one"
            )
        if look.leaderless is not None:
            raise KafkaUnavailable(
                f"partition {look.leaderless} of the topic {name} has no leader; "
                "try again when its brokers are back"
            )
        self._verified = True

    def all_ends(self, *, timeout_s: float, least: int) -> dict[int, int]:
        """Return `ends` of all partitions that the topic has by now.

        There are `least` of them at the least: a broker may not have heard of the last ones yet.
        """

        def ask(left_s: float) -> dict[int, int]:
            partitions = range(max(least, self._look(left_s).partitions))
            return self._listed(dict.fromkeys(partitions, LATEST), left_s, committed=False)

        return self.with_retries(ask, timeout_s=timeout_s)

    def ends(
        self, partitions: Iterable[int], *, timeout_s: float, committed: bool = False
    ) -> dict[int, int]:
        """Return the offset after the last message of each partition. Raises KafkaUnavailable.

        `committed`: as far as no transaction is open, which is how far readers can read.
        """
        times = dict.fromkeys(partitions, LATEST)
        return self.offsets(times, timeout_s=timeout_s, committed=committed)

    def offsets(
        self, times: Mapping[int, int], *, timeout_s: float, committed: bool
    ) -> dict[int, int]:
        """Return the first offset not older than each partition's time (ms); -1 if there is none.

        EARLIEST and LATEST are times, too. Raises KafkaUnavailable and TopicGone.
        """
        return self.with_retries(
            lambda left_s: self._listed(times, left_s, committed=committed), timeout_s=timeout_s
        )

    def with_retries(self, ask: Callable[[float], T], *, timeout_s: float) -> T:
        """Return what `ask` returns; call it again while leaders are away, or change.

        `ask` is given the seconds that are left. Raises TopicGone on a broker's word only, as
        librdkafka calls topics unknown that it could not ask about, and KafkaUnavailable when the
        time is up.
        """
        name = self._connection.topic_name

        def checked(left_s: float) -> T:
            try:
                return ask(left_s)
            except TopicGone as error:
                self.verify(timeout_s=min(left_s, _MAX_LOOK_S))
                raise KafkaUnavailable(
                    f"Kafka does not lead all partitions of the topic {name} yet; try again when "
                    "its brokers are back"
                ) from error

        def refresh(left_s: float) -> None:
            # After an election, librdkafka would ask with the epoch of the leader before.
            with contextlib.suppress(KafkaUnavailable):
                self.verify(timeout_s=min(left_s, _MAX_LOOK_S))

        return with_retries(checked, timeout_s=timeout_s, refresh=refresh)

    def _listed(
        self, times: Mapping[int, int], timeout_s: float, *, committed: bool
    ) -> dict[int, int]:
        """Ask once for the offsets of these times."""
        name = self._connection.topic_name
        asked = {TopicPartition(name, p): _spec(time_ms) for p, time_ms in times.items()}
        try:
            found = self._admin.list_offsets(
                asked, isolation_level=_ISOLATION[committed], request_timeout=timeout_s
            )
            return {at.partition: self._answer(found[at], timeout_s).offset for at in asked}
        except KafkaException as error:
            if error.args[0].code() == KafkaError._NOENT:  # noqa: SLF001 - a public code
                # What librdkafka says of partitions without a leader that it could ask.
                raise KafkaUnavailable(
                    f"no broker leads the partitions of the topic {name} now; try again when the "
                    "brokers are back"
                ) from error
            raise translated(error.args[0], doing=_DOING, topic=name) from error
        except TimeoutError as error:
            raise KafkaUnavailable(
                f"Kafka did not tell the offsets of the topic {name} within {timeout_s:g} s; "
                "try again when the brokers are back"
            ) from error

    def _shared_look(self, timeout_s: float, since_s: float) -> _Look:
        """Return a look that began after `since_s`; of many who want one, one takes it for all."""
        deadline_s = time.monotonic() + timeout_s
        turn = self._inquiry.turn
        has_turn = turn.acquire(timeout=timeout_s)
        try:
            look = self._inquiry.looks.get(self._connection.topic_name)
            if look is not None and look.at_s > since_s:
                return look
            return self._look(max(_PAUSE_S, deadline_s - time.monotonic()))
        finally:
            if has_turn:
                turn.release()

    def _look(self, timeout_s: float) -> _Look:
        name, began_s = self._connection.topic_name, time.monotonic()
        try:
            found = self._found(timeout_s)
        except BaseException:
            self._inquiry.looks.pop(name, None)
            # What it has noted so far is old news to whoever comes next.
            if _INQUIRIES.get(self._key) is self._inquiry:
                _INQUIRIES.pop(self._key, None)
            raise
        leaderless = next((each.id for each in found.partitions if each.leader is None), None)
        look = _Look(
            topic_id=str(found.topic_id),
            partitions=len(found.partitions),
            leaderless=leaderless,
            at_s=began_s,
        )
        self._inquiry.looks[name] = look
        return look

    def _found(self, timeout_s: float) -> Any:
        """Describe the topic; a new one may not have come to every broker's ears yet."""
        name = self._connection.topic_name
        grace_s = 0.0 if self._verified else _SPREAD_S
        pauses = Backoff(min(grace_s, timeout_s), longest_s=_PAUSE_S)
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


def _spec(time_ms: int) -> OffsetSpec:
    if time_ms == LATEST:
        return OffsetSpec.latest()
    return OffsetSpec.earliest() if time_ms == EARLIEST else OffsetSpec.for_timestamp(time_ms)
