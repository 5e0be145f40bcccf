"""What a process brings along itself to reach Kafka, over what the gateway gives.

SLUICEWAY_KAFKA_CREDENTIALS holds Kafka properties as a JSON object, or
SLUICEWAY_KAFKA_CREDENTIALS_FILE the path of a file with one. They are read where a Kafka client is
made, by the process that makes it: so they are in no plan, option or answer, and every executor of
Spark has its own.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from sluiceway.errors import OptionError
from sluiceway.kafka.masked import MaskedProperties

__all__ = ["found_credentials", "merged"]

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
