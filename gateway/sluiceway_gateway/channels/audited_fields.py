"""Fields of a channel in entries of the audit trail. Pure."""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from sluiceway_gateway.channels.model import Channel, Spec
from sluiceway_gateway.core.audit.model import Scalar


def fields_of(channel: Channel) -> dict[str, Scalar]:
    """Return the spec, labels and phase of a channel by the names that requests use."""
    return {
        "phase": str(channel.phase),
        **{f"labels.{key}": value for key, value in channel.labels.items()},
        "schema_version": channel.schema_version,
        **dict(_spec_fields(channel.spec)),
        "topic": channel.topic.name if channel.adopted else None,
        "keep_topic": channel.keep_topic,
    }


def _spec_fields(spec: Spec) -> Iterator[tuple[str, Scalar]]:
    for name, value in spec.fields():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", scalar) for key, scalar in value.items())
        else:
            yield name, str(value) if isinstance(value, StrEnum) else value


_DEFAULTS = {**dict(_spec_fields(Spec())), "keep_topic": False}
_ALWAYS = {"format", "partitions"}


def non_default_fields(channel: Channel) -> dict[str, Scalar]:
    """Return the fields of a new channel that are not defaults, with format and partitions."""
    return {
        name: value
        for name, value in fields_of(channel).items()
        if name in _ALWAYS or value != _DEFAULTS.get(name)
        if name != "phase"
    }
