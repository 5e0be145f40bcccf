"""The librdkafka properties that the gateway's client accepts.

librdkafka has properties that load libraries or run commands; so what is not on this list is
refused by name.
"""

from collections.abc import Mapping
from difflib import get_close_matches

ALLOWED = frozenset(
    {
        "broker.address.family",
        "broker.address.ttl",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.location",
        "ssl.keystore.password",
    }
)


def refusals(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Say what is wrong with these properties, a sentence for each; empty if nothing is."""
    return tuple(_reason(name) for name in sorted(properties) if name not in ALLOWED)


def _reason(name: str) -> str:
    if name == "bootstrap.servers":
        return "bootstrap.servers is a setting of its own: set SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS"
    near = get_close_matches(name, ALLOWED, n=1)
    hint = f"did you mean {near[0]}?" if near else "remove it"
    return f"the Kafka property {name!r} is not allowed; {hint}"
