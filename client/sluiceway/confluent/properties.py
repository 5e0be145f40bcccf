"""librdkafka's properties: passed on, ignored, fixed, or refused, with the reason.

Names and defaults are those of librdkafka's CONFIGURATION.md. tests/client/confluent/test_config.py
compares this table with the installed librdkafka.
"""

from collections.abc import Mapping
from typing import Final

from sluiceway.spi import CONNECTION, CONSUMER, PRODUCER

__all__ = [
    "CONSUMER_ONLY",
    "IGNORED",
    "KNOWN",
    "PASSED",
    "PASSED_BY_PRODUCERS",
    "PRODUCER_ONLY",
    "SETTLED",
    "refusal_of",
]

PASSED: Final = frozenset(
    {
        "broker.address.ttl",
        "connections.max.idle.ms",
        "debug",
        "enable.metrics.push",
        "enable.random.seed",
        "enable.sparse.connections",
        "log.connection.close",
        "log.thread.name",
        "log_level",
        "message.copy.max.bytes",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metadata.request.timeout.ms",
        "receive.message.max.bytes",
        "reconnect.backoff.jitter.ms",
        "socket.max.fails",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "ssl.curves.list",
        "ssl.key.password",
        "ssl.sigalgs.list",
        "statistics.interval.ms",
        "topic.metadata.propagation.max.ms",
        "topic.metadata.refresh.fast.cnt",
        "topic.metadata.refresh.fast.interval.ms",
        "topic.metadata.refresh.interval.ms",
        "topic.metadata.refresh.sparse",
    }
)
"""Passed on unchanged, besides the lists of native writers and readers."""

_PASSED_BY_PRODUCERS: Final = frozenset(
    {
        "compression.codec",
        "enable.gapless.guarantee",
        "max.in.flight",
        "partitioner",
        "queue.buffering.backpressure.threshold",
        "sticky.partitioning.linger.ms",
    }
)
_READ_BY_PRODUCERS: Final = frozenset(
    {
        "delivery.report.only.error",
        "delivery.timeout.ms",
        "dr_cb",
        "message.max.bytes",
        "message.timeout.ms",
        "on_delivery",
        "transactional.id",
    }
)
_READ_BY_CONSUMERS: Final = frozenset(
    {
        "auto.commit.enable",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",
        "heartbeat.interval.ms",
        "on_commit",
        "session.timeout.ms",
    }
)
_READ: Final = frozenset(
    {
        "allow.auto.create.topics",
        "bootstrap.servers",
        "default.topic.config",
        "error_cb",
        "log_cb",
        "logger",
        "metadata.broker.list",
        "stats_cb",
        "sluiceway.behaves.like",
        "sluiceway.ca",
        "sluiceway.listener",
        "sluiceway.token",
        "sluiceway.url",
        "throttle_cb",
    }
)

_GROUPS: Final = "the gateway's groups have no coordinator"
_SHARE: Final = "there are no share groups"
_LIBRARY: Final = "it has no effect here"
_IGNORED_BY_PRODUCERS: Final[Mapping[str, str]] = {
    "message.send.max.retries": "delivery.timeout.ms limits retries",
    "produce.offset.report": "offsets are always reported",
    "retries": "delivery.timeout.ms limits retries",
    "transaction.timeout.ms": "a batch ends with its producer's lease, or at the channel's limit",
}
_IGNORED_BY_CONSUMERS: Final[Mapping[str, str]] = {
    "check.crcs": "checksums are always checked",
    "consume.callback.max.messages": _LIBRARY,
    "coordinator.query.interval.ms": _GROUPS,
    "group.protocol": _GROUPS,
    "group.protocol.type": _GROUPS,
    "group.remote.assignor": _GROUPS,
    "max.poll.interval.ms": _GROUPS,
    "max.poll.records": _SHARE,
    "offset.store.sync.interval.ms": "the gateway stores offsets",
    "partition.assignment.strategy": _GROUPS,
    "share.acknowledgement.mode": _SHARE,
    "topic.blacklist": "a regex of channels has no exceptions",
}
IGNORED: Final[Mapping[str, str]] = {
    **_IGNORED_BY_PRODUCERS,
    **_IGNORED_BY_CONSUMERS,
    "api.version.fallback.ms": _LIBRARY,
    "api.version.request": _LIBRARY,
    "api.version.request.timeout.ms": _LIBRARY,
    "broker.version.fallback": _LIBRARY,
    "builtin.features": _LIBRARY,
    "client.software.name": _LIBRARY,
    "client.software.version": _LIBRARY,
    "internal.termination.signal": _LIBRARY,
    "log.queue": _LIBRARY,
    "socket.blocking.max.ms": _LIBRARY,
}
"""Accepted without effect, with the reason."""

SETTLED: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "acks": (("all", "-1"), "so that no message is lost"),
    "request.required.acks": (("all", "-1"), "so that no message is lost"),
    "enable.idempotence": (("true", "1"), "so that no message is lost, doubled or reordered"),
    "queuing.strategy": (("fifo",), "so that messages stay in order"),
    "enable.ssl.certificate.verification": (("true", "1"), "so that brokers are authenticated"),
    "offset.store.method": (("broker", "none"), "as the gateway stores offsets"),
}
"""Accepted values, of which the first one applies, and the reason."""

_OF_PRODUCERS: Final = frozenset(
    {"acks", "request.required.acks", "enable.idempotence", "queuing.strategy"}
)

_FILES: Final = "it reads files"
_CODE: Final = "it loads code"
_POINTER: Final = "it is for programs in C"
_CREDENTIALS: Final = (
    "credentials for Kafka come from the gateway's SLUICEWAY_KAFKA_CLIENT_PROPERTIES, or from "
    "SLUICEWAY_KAFKA_CREDENTIALS"
)
_REFUSED: Final[Mapping[str, str]] = {
    "enable.sasl.oauthbearer.unsecure.jwt": _CREDENTIALS,
    "https.ca.location": f"{_FILES}; {_CREDENTIALS}",
    "https.ca.pem": _CREDENTIALS,
    "oauth_cb": _CREDENTIALS,
    "offset.store.path": f"{_FILES}; the gateway stores offsets",
    "plugin.library.paths": _CODE,
    "sasl.jaas.config": _CREDENTIALS,
    "sasl.kerberos.keytab": f"{_FILES}; {_CREDENTIALS}",
    "sasl.kerberos.kinit.cmd": f"it runs a command; {_CREDENTIALS}",
    "sasl.kerberos.min.time.before.relogin": _CREDENTIALS,
    "sasl.kerberos.principal": _CREDENTIALS,
    "sasl.kerberos.service.name": _CREDENTIALS,
    "ssl.ca.certificate.stores": "give the certificates' text in ssl.ca.pem",
    "ssl.ca.location": f"{_FILES}; give the certificates' text in ssl.ca.pem",
    "ssl.certificate.location": f"{_FILES}; give the certificate's text in ssl.certificate.pem",
    "ssl.crl.location": _FILES,
    "ssl.engine.id": _CODE,
    "ssl.engine.location": _CODE,
    "ssl.key.location": f"{_FILES}; give the key's text in ssl.key.pem",
    "ssl.keystore.location": f"{_FILES}; give texts in ssl.certificate.pem and ssl.key.pem",
    "ssl.keystore.password": "it belongs to ssl.keystore.location, which reads files",
    "ssl.providers": _CODE,
    "ssl.truststore.location": f"{_FILES}; give the certificates' text in ssl.ca.pem",
    "test.mock.broker.rtt": "messages would go to no broker",
    "test.mock.num.brokers": "messages would go to no broker",
    **dict.fromkeys(
        (
            "background_event_cb",
            "closesocket_cb",
            "connect_cb",
            "consume_cb",
            "dr_msg_cb",
            "enabled_events",
            "interceptors",
            "oauthbearer_token_refresh_cb",
            "offset_commit_cb",
            "opaque",
            "open_cb",
            "partitioner_cb",
            "rebalance_cb",
            "resolve_cb",
            "socket_cb",
            "ssl.certificate.verify_cb",
            "ssl_engine_callback_data",
        ),
        _POINTER,
    ),
}
"""Refused, with the reason; further ones have the prefix."""
_REFUSED_PREFIX: Final = "sasl.oauthbearer."

_PRODUCERS: Final = PRODUCER | _PASSED_BY_PRODUCERS | _READ_BY_PRODUCERS
_CONSUMERS: Final = CONSUMER | _READ_BY_CONSUMERS
PRODUCER_ONLY: Final = _PRODUCERS | _OF_PRODUCERS | _IGNORED_BY_PRODUCERS.keys()
"""Meaningless for a consumer."""
CONSUMER_ONLY: Final = _CONSUMERS | {"offset.store.method"} | _IGNORED_BY_CONSUMERS.keys()
"""Meaningless for a producer."""
KNOWN: Final = (
    CONNECTION
    | PASSED
    | _READ
    | PRODUCER_ONLY
    | CONSUMER_ONLY
    | IGNORED.keys()
    | SETTLED.keys()
    | _REFUSED.keys()
)
"""All names."""

PASSED_BY_PRODUCERS: Final = PASSED | _PASSED_BY_PRODUCERS
"""Passed on to librdkafka by producers, besides the list of native writers."""


def refusal_of(name: str) -> str | None:
    """Return the reason why a property is refused; None for others."""
    return _CREDENTIALS if name.startswith(_REFUSED_PREFIX) else _REFUSED.get(name)
