"""Kafka client configuration: allowed properties, credentials, masked secrets.

librdkafka has properties that load code, run commands and read files. So a property that comes
from the gateway or from a caller is on a list here, or it is refused by name.

SLUICEWAY_KAFKA_CREDENTIALS holds Kafka properties as a JSON object, or
SLUICEWAY_KAFKA_CREDENTIALS_FILE the path of a file with one. They are read where a Kafka client is
made, by the process that makes it: so they are in no plan, option or answer, and every executor of
Spark has its own.
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
    """Kafka properties whose `repr` shows no password and no key.

    Error reporters render the locals of every frame of a traceback; so properties are held in
    locals, arguments and keys as one of these.
    """

    def over(self, others: Mapping[str, Any]) -> "MaskedProperties":
        """Return these with `others` over them."""
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
"""Properties that say the same: of each group librdkafka takes one."""


def found_credentials() -> MaskedProperties:
    """Return the properties that this process's environment names, unchecked but for their form.

    Raises OptionError, without any value, where there is no JSON object.
    """
    path = os.environ.get(f"{_VARIABLE}_FILE")
    if path and os.environ.get(_VARIABLE):
        raise OptionError(f"{_VARIABLE} and {_VARIABLE}_FILE are both set: keep one of them")
    found = _parsed(_content(path) if path else os.environ.get(_VARIABLE, ""))
    if found is None:
        source = f"the file {path} of {_VARIABLE}_FILE" if path else _VARIABLE
        raise OptionError(
            f'{source} holds no JSON object like {{"sasl.username": "...", "sasl.password": "..."}}'
        )
    return found


def merged(given: Mapping[str, object], own: Mapping[str, object]) -> MaskedProperties:
    """Return `given` with `own` over it; what says the same as one of `own` gives way to it."""
    replaced = {name for group in _ALTERNATIVES if group & own.keys() for name in group}
    kept = MaskedProperties({name: given[name] for name in given if name not in replaced})
    return kept.over(own)


def _parsed(text: str) -> MaskedProperties | None:
    """Return what the text says, nothing where it is empty, None where it is no JSON object."""
    if not text:
        return MaskedProperties()
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return MaskedProperties(found) if isinstance(found, dict) else None


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
"""What it takes to reach Kafka; PEM texts, never paths."""

LOCAL = CONNECTION | {
    "debug",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
}
"""What a process may say for itself: paths on its own machine, too."""

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
"""What tunes a writer. `acks` and idempotence are not for tuning: losing records is no option."""

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
"""What tunes a reader."""

_DEFAULTS = {"log_level": 4}
_PRODUCER_DEFAULTS = {
    "acks": "all",
    "enable.idempotence": True,
    "compression.type": "lz4",
    "linger.ms": 10,
    "queue.buffering.max.messages": 500_000,
    "delivery.report.only.error": True,
}
_CONSUMER_DEFAULTS = {
    # A group id is demanded by librdkafka; without subscribing or committing no group is made.
    "group.id": "sluiceway",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "check.crcs": True,
    "enable.partition.eof": True,
    "queued.min.messages": 200_000,
    # A broker is asked one thing at a time: after a seek, the wait at the old place ends so soon.
    "fetch.wait.max.ms": 100,
    # A full queue is looked at again so soon; librdkafka's own second starves a fast reader.
    "fetch.queue.backoff.ms": 10,
}


def refuse_unlisted(properties: Mapping[str, object], *allowed: frozenset[str]) -> None:
    """Raise OptionError naming the first property that is in none of the `allowed` lists."""
    known = frozenset().union(*allowed)
    for name in properties:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            advice = _INSTEAD.get(str(name)) or (f"did you mean {close[0]!r}?" if close else "")
            raise OptionError(
                f"the Kafka property {name!r} is not one that can be set"
                + (f"; {advice}" if advice else "")
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
) -> MaskedProperties:
    """Return librdkafka's configuration of a writer.

    `connection` is what the gateway gave, `overrides` what the caller wants; both are checked,
    and so are the process's own credentials, which go between them.
    Messages wait for acknowledgement for `delivery_timeout_ms` at most, and no request holds a
    batch larger than `max_message_bytes`, since the topic would refuse it.
    """
    refuse_unlisted(overrides or {}, CONNECTION, PRODUCER)
    tuning = {
        **_DEFAULTS,
        **_PRODUCER_DEFAULTS,
        "delivery.timeout.ms": delivery_timeout_ms,
        "message.max.bytes": max(1000, max_message_bytes),
        "batch.size": max(1, min(1_000_000, max_message_bytes)),
    }
    return MaskedProperties(tuning).over(_reached(connection, overrides or {}))


def consumer_config(
    connection: Mapping[str, str], overrides: Mapping[str, object] | None = None
) -> MaskedProperties:
    """Return librdkafka's configuration of a reader; both mappings are checked."""
    refuse_unlisted(overrides or {}, CONNECTION, CONSUMER)
    tuning = MaskedProperties({**_DEFAULTS, **_CONSUMER_DEFAULTS})
    return tuning.over(_reached(connection, overrides or {}))


def admin_config(
    connection: Mapping[str, str], overrides: Mapping[str, object] | None = None
) -> MaskedProperties:
    """Return librdkafka's configuration for asking about topics.

    Of `overrides`, those of a writer or reader, it takes what concerns the connection.
    """
    refuse_unlisted(overrides or {}, CONNECTION, PRODUCER, CONSUMER)
    given = MaskedProperties(overrides or {})
    concerned = MaskedProperties({name: given[name] for name in given if name in CONNECTION})
    return MaskedProperties(_DEFAULTS).over(_reached(connection, concerned))


def _reached(connection: Mapping[str, str], overrides: Mapping[str, object]) -> MaskedProperties:
    """Return what reaches Kafka: the gateway's word, the process's own, then the caller's."""
    refuse_unlisted(connection, CONNECTION)
    own = found_credentials()
    refuse_unlisted(own, LOCAL)
    return merged(merged(connection, own), overrides)


__all__ = [
    "MaskedProperties",
    "consumer_config",
    "found_credentials",
    "merged",
    "producer_config",
    "refuse_unlisted",
]
