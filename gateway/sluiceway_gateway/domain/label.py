"""Labels: what people say about their channels, and select them by."""

import re
from collections.abc import Mapping

MAX_LABELS = 64

_PREFIX = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
_WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")


def check_key(key: str) -> str:
    """Return `key` if a label may have it; raises ValueError with the rule it breaks."""
    prefix, slash, word = key.rpartition("/")
    if not _WORD.match(word) or (slash and not _PREFIX.match(prefix)):
        raise ValueError(
            f"{key[:100]!r} is not a label's key: up to 63 letters, digits, '-', '_' and '.', "
            "beginning and ending with a letter or a digit; a prefix like 'example.com/' may be "
            "put before"
        )
    return key


def check_value(value: str) -> str:
    """Return `value` if a label may have it; raises ValueError with the rule it breaks."""
    if value and not _WORD.match(value):
        raise ValueError(
            f"{value[:100]!r} is not a label's value: empty, or up to 63 letters, digits, '-', '_' "
            "and '.', beginning and ending with a letter or a digit"
        )
    return value


def check_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return `labels` if a channel may have them; raises ValueError with the rule they break."""
    if len(labels) > MAX_LABELS:
        raise ValueError(f"a channel has at most {MAX_LABELS} labels, not {len(labels)}")
    for key, value in labels.items():
        check_key(key)
        check_value(value)
    return labels
