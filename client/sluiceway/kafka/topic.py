"""Topic identity: detects that a channel's topic was deleted or created again."""

import contextlib
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from sluiceway.api.models import Connection
from sluiceway.api.transport import Backoff
from sluiceway.concurrency import Process, this_process
from sluiceway.errors import KafkaUnavailable, TopicGone
from sluiceway.kafka.config import MaskedProperties, admin_config
from sluiceway.kafka.diagnosis import ConnectionErrors, unreachable_broker
from sluiceway.kafka.errors import (
    create_client,
    is_gone,
    is_unavailable,
    translate_error,
    with_retries,
)
from sluiceway.runtime.threads import call

__all__ = ["EARLIEST", "LATEST", "TopicIdentity"]

LOGGER = logging.getLogger("sluiceway.kafka")

T = TypeVar("T")

LATEST, EARLIEST = -1, -2
"""Special times of Kafka's ListOffsets."""

# Kafka writes topic ids in URL-safe base64, librdkafka in the standard alphabet.
_URL_SAFE = str.maketrans("+/", "-_")

_PROPAGATION_S = 3.0
_POLL_S = 0.05
_MAX_VERIFY_S = 2.0
#: Leaves time for a retry at the next leader.
_MAX_LIST_S = 5.0
#: librdkafka may end the process if this time is over while it looks up the leaders.
_LEAST_LIST_S = 1.0
#: librdkafka keeps the leaders of a described topic for 15 minutes.
_LEADERS_MAX_AGE_S = 300.0
_LEAST_AGE_S = 1.0
"""The age from which a client that has replaced another one is replaced after a failure."""
_DOING = "describing the topic"
_SPECS = {LATEST: OffsetSpec.latest(), EARLIEST: OffsetSpec.earliest()}
_ISOLATION = {False: IsolationLevel.READ_UNCOMMITTED, True: IsolationLevel.READ_COMMITTED}


@dataclass(frozen=True, kw_only=True)
class _Description:
    """A topic as Kafka described it, in response to a request sent at `at_s`."""

    topic_id: str
    partitions: int
    leaderless: frozenset[int]
    at_s: float

    def lacks(self, partitions: Collection[int]) -> set[int]:
        """Return those of the partitions that have no leader or do not exist."""
        return {p for p in partitions if p >= self.partitions or p in self.leaderless}


class _AdminConnection:
    """An admin client with the errors of its connections.

    `descriptions` has the latest description of each topic. Describing a thousand partitions takes
    time, so callers that accept a recent description share it.
    """

    def __init__(self, properties: MaskedProperties) -> None:
        self.failed = False
        self.replaced_s = -math.inf
        """The time at which it replaced a failed client; minus infinity if it has replaced none."""
        self.descriptions: dict[str, _Description] = {}
        self.lock = threading.Lock()
        self.errors = ConnectionErrors(properties)
        clients = self._clients = [
            create_client(AdminClient, properties.over({"error_cb": self.errors.on_error}))
        ]
        # Destroyed where no interrupt comes, of which the binding makes a SystemError.
        this_process().finalize_in_thread(self, clients.clear).atexit = False

    @property
    def client(self) -> AdminClient:
        """The client."""
        return self._clients[0]


_ADMINS: "weakref.WeakValueDictionary[tuple[Process, MaskedProperties], _AdminConnection]" = (
    weakref.WeakValueDictionary()
)
"""Shared by all readers of a process; a connection that failed is replaced."""


class TopicIdentity:
    """Compares a topic's id with the one that a connection names.

    A recreated topic has the same name but other records, so positions in the old one are invalid.
    `config` has the Kafka properties of the writer or reader; only connection properties are used.
    """

    def __init__(self, connection: Connection, config: Mapping[str, object] | None = None) -> None:
        self._connection = connection
        properties = admin_config(connection.kafka, config)
        self._process = this_process()
        self._properties = properties
        self._key = (self._process, properties)
        # It keeps the shared connection alive.
        self._shared: _AdminConnection | None = None
        self._shared = self._admin
        self._verified = False
        # The number of delivered records whose topic was certainly this one.
        self._confirmed_records = 0

    @property
    def _admin(self) -> _AdminConnection:
        """The connection of this process: a new one after a failure.

        librdkafka does not reconnect after a response without brokers, as a broker that shuts down
        sends (confluentinc/librdkafka#5301).
        """
        admin = _ADMINS.get(self._key)
        if admin is None:
            admin = _ADMINS.setdefault(self._key, _AdminConnection(self._properties))
            if self._shared is not None and self._shared.failed:
                admin.replaced_s = time.monotonic()
        self._shared = admin
        return admin

    def verify(self, *, timeout_s: float, max_age_s: float = 0.0) -> None:
        """Return if the topic is the same and each of its partitions has a leader.

        A description that this process requested within `max_age_s` is reused. Raises
        TopicGone, KafkaUnavailable, and KafkaAccessFailed as soon as brokers refuse access.
        """
        self.count_partitions(timeout_s=timeout_s, max_age_s=max_age_s)

    def count_partitions(self, *, timeout_s: float, max_age_s: float = 0.0) -> int:
        """Return the topic's number of partitions, after the checks of `verify`."""
        name = self._connection.topic_name
        since_s = time.monotonic() - max_age_s
        description = self._admin.descriptions.get(name)
        if description is None or description.at_s <= since_s:
            if max_age_s:
                description = call(lambda: self._describe_shared(timeout_s, since_s))
            else:
                description = self._describe(timeout_s)
        self._require_same(description)
        if description.leaderless:
            raise KafkaUnavailable(
                f"partition {min(description.leaderless)} of the topic {name} has no leader; "
                "try again when its brokers are back"
            )
        self._verified = True
        return description.partitions

    def partitions(self, *, timeout_s: float) -> int:
        """Return the topic's current number of partitions. Raises TopicGone, KafkaUnavailable."""
        return self._describe(timeout_s).partitions

    def confirm_delivery(self, records: int, *, timeout_s: float) -> None:
        """Raise TopicGone unless the topic has the records that were delivered before this call.

        `records` is the number of all delivered so far; without new ones there is no request. If
        Kafka does not answer, they count, and the next call checks their topic. A topic with
        delivered messages exists, but not every broker may know a new one.
        """
        if records == self._confirmed_records:
            return
        try:
            self._require_same(self._describe(timeout_s, grace_s=_PROPAGATION_S))
        except KafkaUnavailable as error:
            LOGGER.info("the topic of delivered messages is checked later: %s", error)
        else:
            self._confirmed_records = records

    def leaderless(self, *, timeout_s: float) -> frozenset[int]:
        """Return the partitions without a leader. Raises TopicGone and KafkaUnavailable."""
        return self._describe(timeout_s).leaderless

    def all_ends(self, *, timeout_s: float, least: int) -> dict[int, int]:
        """Return `ends` of all current partitions, at least `least` of them.

        A broker may not know the latest partitions yet. Raises TopicGone for a topic that was
        created again, whose ends are others.
        """

        def request(left_s: float) -> dict[int, int]:
            description = self._describe(left_s)
            self._require_same(description)
            partitions = range(max(least, description.partitions))
            return self._list(dict.fromkeys(partitions, LATEST), left_s, committed=False)

        return self.with_retries(request, timeout_s=timeout_s)

    def ends(self, partitions: Iterable[int], *, timeout_s: float) -> dict[int, int]:
        """Return the offset after the last message of each partition. Raises KafkaUnavailable."""
        times = dict.fromkeys(partitions, LATEST)
        return self.offsets(times, timeout_s=timeout_s, committed=False)

    def offsets(
        self, times: Mapping[int, int], *, timeout_s: float, committed: bool
    ) -> dict[int, int]:
        """Return the first offset not older than each partition's time (ms); -1 if there is none.

        EARLIEST and LATEST are valid times. `committed`: LATEST is the last stable offset, up to
        which `read_committed` consumers read. Raises KafkaUnavailable and TopicGone.
        """
        return self.with_retries(
            lambda left_s: self._list(times, left_s, committed=committed), timeout_s=timeout_s
        )

    def with_retries(self, request: Callable[[float], T], *, timeout_s: float) -> T:
        """Return the result of `request`; retry it while leaders are unavailable or change.

        `request` gets the remaining seconds. Raises KafkaUnavailable after the timeout. librdkafka
        reports topics as unknown when its request failed, so TopicGone is raised only if a broker
        confirms it.
        """
        name = self._connection.topic_name

        def confirmed(left_s: float) -> T:
            try:
                return request(left_s)
            except TopicGone as error:
                self.verify(timeout_s=min(left_s, _MAX_VERIFY_S))
                raise KafkaUnavailable(
                    f"some partitions of the topic {name} have no leader yet; try again when its "
                    "brokers are back"
                ) from error

        def refresh(left_s: float) -> None:
            # After an election, librdkafka would send the epoch of the previous leader.
            with contextlib.suppress(KafkaUnavailable):
                self.verify(timeout_s=min(left_s, _MAX_VERIFY_S))

        return with_retries(confirmed, timeout_s=timeout_s, refresh=refresh)

    def _list(
        self, times: Mapping[int, int], timeout_s: float, *, committed: bool
    ) -> dict[int, int]:
        """Request the offsets of these times once, from leaders that the client has."""
        self._process.check("this reader or writer")
        name, admin = self._connection.topic_name, self._admin
        # librdkafka 2.16 looks up other leaders in the caller's thread, and may then crash the
        # process: a response with metadata continues the same lookup in another thread.
        self._require_leaders(admin, times, timeout_s)
        specs = {
            TopicPartition(name, p): _SPECS.get(time_ms) or OffsetSpec.for_timestamp(time_ms)
            for p, time_ms in times.items()
        }

        def request() -> dict[int, int]:
            futures = admin.client.list_offsets(
                specs,
                isolation_level=_ISOLATION[committed],
                request_timeout=max(_LEAST_LIST_S, min(timeout_s, _MAX_LIST_S)),
            )
            return {
                at.partition: self._result(admin, futures[at], timeout_s).offset for at in specs
            }

        try:
            offsets = call(request)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._NOENT:
                # librdkafka's code for partitions without a leader.
                raise KafkaUnavailable(
                    f"the partitions of the topic {name} have no leader now; try again when the "
                    "brokers are back"
                ) from error
            raise translate_error(error.args[0], doing=_DOING, topic=name) from error
        except TimeoutError as error:
            raise KafkaUnavailable(
                f"Kafka did not list the offsets of the topic {name} within {timeout_s:g} s; "
                "try again when the brokers are back"
            ) from error
        # OFFSET_INVALID is librdkafka's result for leaders that did not answer in time.
        silent = [partition for partition, offset in offsets.items() if offset == OFFSET_INVALID]
        if silent:
            raise KafkaUnavailable(
                f"the leader of partition {min(silent)} of the topic {name} does not answer; "
                "try again when its broker is back"
            )
        return offsets

    def _require_leaders(
        self, admin: _AdminConnection, partitions: Iterable[int], timeout_s: float
    ) -> None:
        """Describe the topic unless the client has the leaders. Raises KafkaUnavailable."""
        name, wanted = self._connection.topic_name, set(partitions)
        since_s = time.monotonic() - _LEADERS_MAX_AGE_S
        description = admin.descriptions.get(name)
        if description is None or description.at_s < since_s or description.lacks(wanted):
            description = self._describe(timeout_s, admin=admin)
        if silent := description.lacks(wanted):
            raise KafkaUnavailable(
                f"partition {min(silent)} of the topic {name} has no leader; try again when its "
                "brokers are back"
            )

    def _require_same(self, description: _Description) -> None:
        """Raise TopicGone for another topic of this name."""
        name = self._connection.topic_name
        actual = description.topic_id.translate(_URL_SAFE)
        expected = self._connection.topic_id and self._connection.topic_id.translate(_URL_SAFE)
        if expected is not None and actual != expected:
            raise TopicGone(
                f"the topic {name} is not the one that was opened: its id was {expected} and is "
                f"{actual} now. Open the channel again; positions in the old topic are invalid in "
                "this one"
            )

    def _describe_shared(self, timeout_s: float, since_s: float) -> _Description:
        """Return a description requested after `since_s`, shared by concurrent callers."""
        deadline_s, admin = time.monotonic() + timeout_s, self._admin
        locked = admin.lock.acquire(timeout=timeout_s)
        try:
            description = admin.descriptions.get(self._connection.topic_name)
            if description is not None and description.at_s > since_s:
                return description
            return self._describe(max(_POLL_S, deadline_s - time.monotonic()))
        finally:
            if locked:
                admin.lock.release()

    def _describe(
        self,
        timeout_s: float,
        *,
        grace_s: float | None = None,
        admin: _AdminConnection | None = None,
    ) -> _Description:
        self._process.check("this reader or writer")
        name, began_s, admin = self._connection.topic_name, time.monotonic(), admin or self._admin
        try:
            topic = call(lambda: self._request_description(admin, timeout_s, grace_s))
        except BaseException:
            admin.descriptions.pop(name, None)
            # Earlier connection errors must not mislead the next caller. But thousands of readers
            # must not have a client each in an outage.
            settled = time.monotonic() - admin.replaced_s > _LEAST_AGE_S
            if settled and _ADMINS.get(self._key) is admin:
                admin.failed = True
                _ADMINS.pop(self._key, None)
            raise
        admin.descriptions[name] = description = _Description(
            topic_id=str(topic.topic_id),
            partitions=len(topic.partitions),
            leaderless=frozenset(
                partition.id for partition in topic.partitions if partition.leader is None
            ),
            at_s=began_s,
        )
        return description

    def _request_description(
        self, admin: _AdminConnection, timeout_s: float, grace_s: float | None
    ) -> Any:
        """Describe the topic; a new one may not be known to every broker yet."""
        name = self._connection.topic_name
        if grace_s is None:
            grace_s = 0.0 if self._verified else _PROPAGATION_S
        backoff = Backoff(min(grace_s, timeout_s), longest_s=_POLL_S)
        while True:
            try:
                described = admin.client.describe_topics(
                    TopicCollection([name]), request_timeout=timeout_s
                )[name]
                topic = self._result(admin, described, timeout_s + _PROPAGATION_S)
            except KafkaException as error:
                if not is_gone(error.args[0]) or not backoff.wait():
                    if is_unavailable(error.args[0]):
                        admin.errors.raise_refused(_DOING, name, final=True)
                        self._raise_unreachable(admin)
                    raise translate_error(error.args[0], doing=_DOING, topic=name) from error
            except TimeoutError as error:
                self._raise_unreachable(admin)
                raise KafkaUnavailable(
                    f"Kafka did not describe the topic {name} within {timeout_s:g} s; "
                    "try again when the brokers are back"
                ) from error
            else:
                admin.errors.clear()
                return topic

    def _raise_unreachable(self, admin: _AdminConnection) -> None:
        """Raise KafkaUnavailable if Kafka names an address that this host does not reach.

        Not after a description: this host has reached the brokers, so it is an outage.
        """
        if self._verified:
            return
        name = self._connection.topic_name
        servers = str(self._properties.get("bootstrap.servers", ""))
        if (broker := unreachable_broker(servers, admin.client, name)) is not None:
            raise KafkaUnavailable(
                f"Kafka answers, but its broker at {broker} cannot be reached from here "
                f"({_DOING} {name}). If it is running, choose another listener, with "
                "Gateway(listener=…) or SLUICEWAY_LISTENER, or correct its advertised.listeners"
            )

    def _result(self, admin: _AdminConnection, future: "Future[Any]", timeout_s: float) -> Any:
        """Wait for a result, or raise KafkaAccessFailed for refused connections."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return future.result(_POLL_S)
            except TimeoutError:
                if time.monotonic() > deadline_s:
                    raise
            admin.client.poll(0)
            admin.errors.raise_refused(_DOING, self._connection.topic_name)
