"""A request that can be repeated, and the answer that its repeats get."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

REMEMBERED_FOR = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Who asks for what: `digest` covers everything that the answer depends on."""

    key: str
    principal: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer as it is sent."""

    status: int
    headers: Mapping[str, str]
    body: str
