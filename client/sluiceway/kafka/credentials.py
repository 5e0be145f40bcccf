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

__all__ = ["found_credentials", "merged"]

_VARIABLE = "SLUICEWAY_KAFKA_CREDENTIALS"
_ALTERNATIVES = (
    frozenset({"sasl.mechanism", "sasl.mechanisms"}),
    frozenset({"ssl.ca.location", "ssl.ca.pem"}),
    frozenset({"ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.location"}),
    frozenset({"ssl.key.location", "ssl.key.pem", "ssl.keystore.location"}),
)
"""Properties that say the same: of each group librdkafka takes one."""


def found_credentials() -> dict[str, object]:
    """Return the properties that this process's environment names, unchecked but for their form.

    Raises OptionError, without any value, where there is no JSON object.
    """
    text, source = os.environ.get(_VARIABLE), _VARIABLE
    path = os.environ.get(f"{_VARIABLE}_FILE")
    if path:
        if text:
            raise OptionError(f"{_VARIABLE} and {_VARIABLE}_FILE are both set: keep one of them")
        text, source = _content(path), f"the file {path} of {_VARIABLE}_FILE"
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(
            f'{source} holds no JSON object like {{"sasl.username": "...", "sasl.password": "..."}}'
        )
    return found


def merged(given: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Return `given` with `own` over it; what says the same as one of `own` gives way to it."""
    replaced = {name for group in _ALTERNATIVES if group & own.keys() for name in group}
    return {name: value for name, value in given.items() if name not in replaced} | dict(own)


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the file {path} of {_VARIABLE}_FILE cannot be read: {error}") from error
