"""Avro's names."""

from __future__ import annotations

import re
from typing import Final

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""An Avro name without its namespace."""


def name_advice(name: str) -> str:
    """Say what is wrong with `name`, and give a name like it that Avro allows."""
    better = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "field"
    better = f"_{better}" if better[0].isdigit() else better
    return (
        f"{name!r} is not an Avro name (letters, digits and _, no digit first); "
        f"rename it, for instance to {better!r}"
    )
