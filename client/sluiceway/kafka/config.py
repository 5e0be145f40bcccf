"""Kafka client configuration: allowed properties, credentials, masked secrets.

librdkafka has properties that load code, run commands and read files. So properties from the
gateway or from a caller are refused unless they are listed here.

SLUICEWAY_KAFKA_CREDENTIALS holds Kafka properties as a JSON object, or
SLUICEWAY_KAFKA_CREDENTIALS_FILE the path of a file with one. The process that creates a Kafka
client reads them, so no plan, option or response contains them, and each Spark executor has its
own.
"""

import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluiceway.errors import OptionError

_SECRET = re.compile(r"password|secret|token|jaas|\.pem$")
_MASK = "**********"


class MaskedProperties(dict[str, Any]):
    """Kafka properties whose `repr` masks passwords and keys.

    Error reporters render the locals of every frame of a traceback, so locals, arguments and
    dictionary keys hold properties as instances of this class only.
    """

    def over(self, others: Mapping[str, Any]) -> "MaskedProperties":
        """Return a copy in which `others` take precedence."""
        return MaskedProperties({**self, **others})

    def __repr__(self) -> str:
        return repr({name: _MASK if _SECRET.search(name) else self[name] for name in self})

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


_VARIABLE = "SLUICEWAY_KAFKA_CREDENTIALS"
_ALTERNATIVES = (
    frozenset({"sasl.mechanism", "sasl.mechanisms"}),
    frozenset({"ssl.ca.location", "ssl.ca.pem"}),
    frozenset({"ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.location"}),
    frozenset({"ssl.key.location", "ssl.key.pem", "ssl.keystore.location"}),
)
"""Alternative names of one property, of which librdkafka accepts one."""


def found_credentials() -> MaskedProperties:
    """Return the properties from this process's environment, unchecked.

    Raises OptionError, without any value, if they are not a JSON object.
    """
    path = os.environ.get(f"{_VARIABLE}_FILE")
    if path and os.environ.get(_VARIABLE):
        raise OptionError(f"{_VARIABLE} and {_VARIABLE}_FILE are both set: keep one of them")
    credentials = _parsed(_content(path) if path else os.environ.get(_VARIABLE, ""))
    if credentials is None:
        source = f"the file {path} of {_VARIABLE}_FILE" if path else _VARIABLE
        raise OptionError(
            f'{source} holds no JSON object like {{"sasl.username": "...", "sasl.password": "..."}}'
        )
    return credentials


def _merged(base: Mapping[str, object], own: Mapping[str, object]) -> MaskedProperties:
    """Merge properties; `own` take precedence, also over alternative names in `base`."""
    replaced = {name for group in _ALTERNATIVES if group & own.keys() for name in group}
    kept = MaskedProperties({name: base[name] for name in base if name not in replaced})
    return kept.over(own)


def _parsed(text: str) -> MaskedProperties | None:
    """Return the properties in the text; None if it is neither empty nor a JSON object."""
    if not text:
        return MaskedProperties()
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return MaskedProperties(value) if isinstance(value, dict) else None


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the file {path} of {_VARIABLE}_FILE cannot be read: {error}") from error


CONNECTION = frozenset(
    {
        "bootstrap.servers",
        "broker.address.family",
        "client.dns.lookup",
        "client.id",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.timeout.ms",
        "ssl.ca.pem",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.pem",
    }
)
"""Properties of connections; PEM texts, never paths."""

# The gateway accepts these too: none loads a library or runs a command.
LOCAL = CONNECTION | {
    "debug",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
}
"""Properties that a process may set, including paths on its own machine."""

_INSTEAD = {
    "ssl.ca.location": "give the certificates' text in ssl.ca.pem",
    "ssl.certificate.location": "give the certificates' text in ssl.certificate.pem",
    "ssl.key.location": "give the key's text in ssl.key.pem",
}

PRODUCER = frozenset(
    {
        "batch.num.messages",
        "batch.size",
        "compression.level",
        "compression.type",
        "linger.ms",
        "max.in.flight.requests.per.connection",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
    }
)
"""Properties of writers. `acks` and idempotence are fixed, so that no record is lost."""

CONSUMER = frozenset(
    {
        "client.rack",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "isolation.level",
        "max.partition.fetch.bytes",
        "queued.max.messages.kbytes",
        "queued.min.messages",
    }
)
"""Properties of readers."""

_DEFAULTS = {"log_level": 4}
_PRODUCER_DEFAULTS = {
    "acks": "all",
    "enable.idempotence": True,
    "compression.type": "lz4",
    "linger.ms": 10,
    "queue.buffering.max.messages": 500_000,
    "delivery.report.only.error": True,
}
_FLUSHED_LINGER_MS = 100
"""`linger.ms` of writers that flush. librdkafka sends full batches at once, and a flush ends the
wait. While a batch is in flight and another one has waited for longer than this, librdkafka polls
in a busy loop."""
_CONSUMER_DEFAULTS = {
    # librdkafka requires a group id; without a subscription or commit it creates no group.
    "group.id": "sluiceway",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "check.crcs": True,
    "enable.partition.eof": True,
    "queued.min.messages": 200_000,
    # A broker serves one fetch at a time, so after a seek the pending fetch must end soon.
    "fetch.wait.max.ms": 100,
    # The interval of checks of a full queue; the default of a second starves a fast reader.
    "fetch.queue.backoff.ms": 10,
}


def refuse_unlisted(properties: Mapping[str, object], *allowed: frozenset[str]) -> None:
    """Raise OptionError for the first property that is in none of the `allowed` lists."""
    listed = frozenset().union(*allowed)
    for name in properties:
        if name not in listed:
            close = difflib.get_close_matches(str(name), listed, n=1)
            advice = _INSTEAD.get(str(name)) or (f"did you mean {close[0]!r}?" if close else "")
            raise OptionError(
                f"the Kafka property {name!r} cannot be set" + (f"; {advice}" if advice else "")
            )
        if not isinstance(properties[name], str | int | float | bool):
            raise OptionError(
                f"the Kafka property {name!r} is {type(properties[name]).__name__}; "
                "it takes a string, a number or a boolean"
            )


def producer_config(
    connection: Mapping[str, str],
    overrides: Mapping[str, object] | None = None,
    *,
    delivery_timeout_ms: int,
    max_message_bytes: int,
    until_flush: bool = False,
) -> MaskedProperties:
    """Return librdkafka's configuration of a writer.

    `connection` has the gateway's properties, `overrides` the caller's. Precedence, from low to
    high: the gateway's, the process's own credentials, the caller's. All are checked. Messages wait
    for acknowledgement for `delivery_timeout_ms` at most. No batch is larger than
    `max_message_bytes`, because the topic would refuse it. With `until_flush`, messages may linger
    until the writer flushes.
    """
    refuse_unlisted(overrides or {}, CONNECTION, PRODUCER)
    tuning = {
        **_DEFAULTS,
        **_PRODUCER_DEFAULTS,
        "delivery.timeout.ms": delivery_timeout_ms,
        "message.max.bytes": max(1000, max_message_bytes),
        "batch.size": max(1, min(1_000_000, max_message_bytes)),
    }
    if until_flush:
        # librdkafka requires that messages linger for less than their timeout.
        tuning["linger.ms"] = min(_FLUSHED_LINGER_MS, delivery_timeout_ms // 2)
    return MaskedProperties(tuning).over(_connection_properties(connection, overrides or {}))


def consumer_config(
    connection: Mapping[str, str], overrides: Mapping[str, object] | None = None
) -> MaskedProperties:
    """Return librdkafka's configuration of a reader, checked like a writer's."""
    refuse_unlisted(overrides or {}, CONNECTION, CONSUMER)
    tuning = MaskedProperties({**_DEFAULTS, **_CONSUMER_DEFAULTS})
    return tuning.over(_connection_properties(connection, overrides or {}))


def admin_config(
    connection: Mapping[str, str], overrides: Mapping[str, object] | None = None
) -> MaskedProperties:
    """Return librdkafka's configuration of an admin client.

    From a writer's or reader's `overrides`, it takes the connection properties.
    """
    refuse_unlisted(overrides or {}, CONNECTION, PRODUCER, CONSUMER)
    properties = MaskedProperties(overrides or {})
    of_connection = MaskedProperties(
        {name: properties[name] for name in properties if name in CONNECTION}
    )
    # librdkafka takes it for a producer, whose requests for metadata may create a missing topic.
    defaults = MaskedProperties({**_DEFAULTS, "allow.auto.create.topics": False})
    return defaults.over(_connection_properties(connection, of_connection))


def _connection_properties(
    connection: Mapping[str, str], overrides: Mapping[str, object]
) -> MaskedProperties:
    """Merge the gateway's properties, the process's credentials, and the caller's."""
    refuse_unlisted(connection, CONNECTION)
    own = found_credentials()
    refuse_unlisted(own, LOCAL)
    return _merged(_merged(connection, own), overrides)


__all__ = [
    "CONNECTION",
    "CONSUMER",
    "LOCAL",
    "PRODUCER",
    "MaskedProperties",
    "admin_config",
    "consumer_config",
    "producer_config",
    "refuse_unlisted",
]
