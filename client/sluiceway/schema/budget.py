"""How large a schema may be."""

from __future__ import annotations

from sluiceway.errors import InvalidSchema
from sluiceway.schema.types import MAX_DEPTH, MAX_FIELDS, at


class Budget:
    """What is counted while a schema is made: fields, levels."""

    def __init__(self) -> None:
        self._left = MAX_FIELDS

    def take(self, fields: int, depth: int, path: str) -> None:
        """Count `fields` that lie `depth` levels deep; raise InvalidSchema past the limits."""
        self._left -= fields
        if self._left < 0:
            raise InvalidSchema(f"the schema has more than {MAX_FIELDS} fields")
        if depth > MAX_DEPTH:
            raise InvalidSchema(f"{at(path)} is nested deeper than {MAX_DEPTH} levels")
