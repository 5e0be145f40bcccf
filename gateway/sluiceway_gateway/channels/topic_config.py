"""Settings of a topic that a channel's spec may set. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
#: librdkafka's maximum of `message.max.bytes`.
MESSAGE_BYTES_MAX = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A refused setting, with the alternative in the message."""

    name: str
    message: str


Rule = Callable[[str], str]
"""Returns the canonical form of a value; raises ValueError with the expected values."""


def _integer(low: int, high: int) -> Rule:
    def rule(value: str) -> str:
        digits = value.strip().removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= 20
        if not is_number or not low <= int(value) <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return str(int(value))

    return rule


def _ratio(value: str) -> str:
    expected = "expected a number from 0 to 1"
    try:
        number = float(value)
    except ValueError:
        raise ValueError(expected) from None
    if not 0.0 <= number <= 1.0:
        raise ValueError(expected)
    return str(number + 0.0)  # -0.0 is 0.0


def _choice(*choices: str) -> Rule:
    def rule(value: str) -> str:
        if value.strip() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return value.strip()

    return rule


def _cleanup_policy(value: str) -> str:
    policies = {part.strip() for part in value.split(",")}
    if not policies <= {"compact", "delete"}:
        raise ValueError("expected delete, compact, or compact,delete")
    return ",".join(sorted(policies))


_DURATION = _integer(0, INT64_MAX)

ALLOWED: Mapping[str, Rule] = {
    "cleanup.policy": _cleanup_policy,
    "compression.type": _choice("producer", "uncompressed", "gzip", "lz4", "snappy", "zstd"),
    "delete.retention.ms": _DURATION,
    "max.compaction.lag.ms": _integer(1, INT64_MAX),
    "max.message.bytes": _integer(1024, MESSAGE_BYTES_MAX),
    "message.timestamp.after.max.ms": _DURATION,
    "message.timestamp.before.max.ms": _DURATION,
    "message.timestamp.type": _choice("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": _ratio,
    "min.compaction.lag.ms": _DURATION,
    "min.insync.replicas": _integer(1, 32767),
    # Kafka 4 requires at least one mebibyte.
    "segment.bytes": _integer(1024 * 1024, INT32_MAX),
    "segment.ms": _integer(1, INT64_MAX),
}

_KEPT_FROM_USERS: Mapping[str, str] = {
    "retention.ms": "set spec.retention.ms instead",
    "retention.bytes": "set spec.retention.bytes instead",
    "unclean.leader.election.enable": "it may lose acknowledged records; leave it out",
    "preallocate": "the broker manages it; leave it out",
    "flush.messages": "durability comes from replication; leave it out",
    "flush.ms": "durability comes from replication; leave it out",
    "remote.storage.enable": "the cluster's operator sets up tiered storage; leave it out",
}

#: Longest part of an unknown name in messages.
_NAME_LENGTH = 100


def _refused_name(name: str) -> str:
    if name in _KEPT_FROM_USERS:
        return f"a channel may not set {name}: {_KEPT_FROM_USERS[name]}"
    near = get_close_matches(name, ALLOWED, n=1)
    hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(sorted(ALLOWED))}"
    return f"{name!r} is not a topic setting that a channel may set; {hint}"


def refusals(config: Mapping[str, str]) -> tuple[Refusal, ...]:
    """Return all refusals of settings in a channel's `spec.config`, sorted by name."""
    refused: list[Refusal] = []
    for name, value in sorted(config.items()):
        rule = ALLOWED.get(name)
        if rule is None:
            name = name[:_NAME_LENGTH]
            refused.append(Refusal(name=name, message=_refused_name(name)))
            continue
        try:
            rule(value)
        except ValueError as error:
            refused.append(
                Refusal(name=name, message=f"{name} is {value[:_NAME_LENGTH]!r}: {error}")
            )
    return tuple(refused)


def canonical(config: Mapping[str, str]) -> dict[str, str]:
    """Return the values as Kafka returns them, sorted by name.

    The settings must have no refusals; others raise ValueError or KeyError.
    """
    return {name: ALLOWED[name](value) for name, value in sorted(config.items())}
