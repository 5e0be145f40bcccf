"""Bearer tokens: `slw_{id}_{secret}`. Only a keyed hash of them is kept."""

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime

from sluiceway_gateway.auth.model import Scope

_TOKEN = re.compile(r"slw_([0-9a-f]{16})_([0-9a-f]{64})\Z")


@dataclass(frozen=True, kw_only=True)
class Token:
    """What is known of a token; never the token itself."""

    id: str
    label: str
    hash: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def valid_at(self, now: datetime) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def token_text(token_id: str, secret: str) -> str:
    """Return the token as its holder gets it."""
    return f"slw_{token_id}_{secret}"


def split_token(text: str) -> tuple[str, str] | None:
    """Return id and secret; None if it is not of a token's form."""
    found = _TOKEN.match(text)
    return None if found is None else (found[1], found[2])


def token_hash(key: bytes, token_id: str, secret: str) -> str:
    """Return HMAC-SHA256 of id and secret, in hexadecimal."""
    return hmac.new(key, f"{token_id}.{secret}".encode("ascii"), hashlib.sha256).hexdigest()
