"""Parts of answers that are kept as text, for the answers that have them again."""

import json
from collections.abc import Callable, Hashable
from typing import Any


class Fragments:
    """The last text of each part, with what it was made of; at most `most` of them."""

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._kept: dict[Hashable, tuple[tuple[object, ...], str]] = {}

    def of(self, key: Hashable, made_of: tuple[object, ...], make: Callable[[], Any]) -> str:
        """Return the JSON of what `make` gives; that of before, if it was made of the same."""
        kept = self._kept.get(key)
        if kept is None or kept[0] != made_of:
            if len(self._kept) >= self._most:
                self._kept = {}
            kept = self._kept[key] = (made_of, text_of(make()))
        return kept[1]


def text_of(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def list_of(items: Any) -> str:
    """Return the JSON of a list of what is JSON already."""
    return f"[{','.join(items)}]"
