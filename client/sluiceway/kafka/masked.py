"""Kafka properties that keep their secrets to themselves."""

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["MaskedProperties"]

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
