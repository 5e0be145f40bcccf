"""Scopes, principals and bearer tokens."""

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sluiceway_gateway.core.errors import Forbidden
from sluiceway_gateway.core.names import NAME_LENGTH


class Action(StrEnum):
    """An action of a request."""

    VIEW = "view"
    """See a channel and its status."""
    READ = "read"
    WRITE = "write"
    MANAGE = "manage"
    ADMIN = "admin"
    """Actions on the whole cluster."""


class ScopeKind(StrEnum):
    """The kind of a scope."""

    READ = "read"
    WRITE = "write"
    MANAGE = "manage"
    ADMIN = "admin"


_GIVES: dict[ScopeKind, frozenset[Action]] = {
    ScopeKind.READ: frozenset({Action.VIEW, Action.READ}),
    ScopeKind.WRITE: frozenset({Action.VIEW, Action.WRITE}),
    ScopeKind.MANAGE: frozenset({Action.VIEW, Action.READ, Action.WRITE, Action.MANAGE}),
    ScopeKind.ADMIN: frozenset(Action),
}

LABEL_LENGTH = 200
SHARED = "*"
"""The owner of what every label may use."""


class OwnershipMode(StrEnum):
    """What happens to the use of another label's groups, batches and keys."""

    AUDIT = "audit"
    """It is permitted, and audited."""
    ENFORCE = "enforce"
    """It is refused, and audited."""


class OwnedKind(StrEnum):
    """A kind of what belongs to a label."""

    READERS = "group of readers"
    WRITERS = "group of writers"
    BATCHES = "writer of batches"
    """A job, query or writer with its batches and their keys."""


@dataclass(frozen=True, kw_only=True)
class Owned:
    """A group, or a writer of batches, which belongs to the label of a token."""

    channel: str
    channel_uid: str
    kind: OwnedKind
    name: str
    owner: str | None
    """None for nobody, such as without tokens; SHARED for every label."""


_PREFIX = re.compile(r"[a-zA-Z0-9._-]+\Z")


@dataclass(frozen=True, kw_only=True)
class Scope:
    """`KIND` or `KIND:PREFIX`: for all channels, or for names with that prefix."""

    kind: ScopeKind
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.prefix}" if self.prefix else str(self.kind)

    @classmethod
    def parse(cls, text: str) -> "Scope":
        """Parse a scope. Raises ValueError with the expected form."""
        kind, colon, prefix = text.partition(":")
        if kind not in ScopeKind.__members__.values():
            raise ValueError(
                f"{text!r} is not a scope: expected read, write, manage, each with an optional "
                ":PREFIX of channel names, or admin"
            )
        if kind == ScopeKind.ADMIN and colon:
            raise ValueError("the scope admin takes no prefix")
        if colon and not (_PREFIX.match(prefix) and len(prefix) <= NAME_LENGTH):
            raise ValueError(
                f"{prefix!r} cannot begin a channel's name; after the colon come a-z, A-Z, 0-9, "
                "'.', '_' and '-'"
            )
        return cls(kind=ScopeKind(kind), prefix=prefix)


@dataclass(frozen=True, kw_only=True)
class Principal:
    """An authenticated client and its scopes."""

    id: str
    scopes: tuple[Scope, ...]
    subject: str | None = None
    """The token's label, which identifies its owner. None without tokens."""

    def require_own(self, owner: str | None, what: str) -> None:
        """Raise Forbidden if `what` belongs to another subject."""
        if owner is not None and owner != self.subject:
            raise Forbidden(
                f"{what} belongs to another owner; use a token with the label of the token that "
                "started it."
            )

    def may_use(self, owned: Owned) -> bool:
        """Whether it is nobody's, shared or the subject's, or the scopes allow to manage it."""
        others = {None, SHARED, self.subject}
        return owned.owner in others or self.may(Action.MANAGE, owned.channel)

    def owns(self, owner: str | None) -> bool:
        """Whether `owner` is the subject."""
        return owner is not None and owner == self.subject

    def may(self, action: Action, channel: str | None = None) -> bool:
        """Whether the scopes allow `action` on this channel; without a channel, on all."""
        return any(
            action in _GIVES[scope.kind]
            and (not scope.prefix or (channel is not None and channel.startswith(scope.prefix)))
            for scope in self.scopes
        )

    def require(self, action: Action, channel: str | None = None) -> None:
        """Raise Forbidden unless `may`."""
        if not self.may(action, channel):
            on = f" on the channel {channel!r}" if channel is not None else ""
            need = "read, write or manage" if action is Action.VIEW else str(action)
            raise Forbidden(
                f"This token's scopes do not allow this{on}; a token with the scope {need} does."
            )

    def require_everywhere(self, action: Action, what: str) -> None:
        """Raise Forbidden unless `action` is allowed on all channels, as `what` requires."""
        if not self.may(action):
            raise Forbidden(
                f"{what} needs a token with the scope {action} on all channels, without a prefix, "
                "because it can affect channels of any owner."
            )

    def prefixes(self, action: Action) -> tuple[str, ...]:
        """Return the name prefixes of the channels on which `action` is allowed."""
        allowed = {scope.prefix for scope in self.scopes if action in _GIVES[scope.kind]}
        return ("",) if "" in allowed else tuple(sorted(allowed))


def parse_scopes(texts: Iterable[str]) -> tuple[Scope, ...]:
    """Parse scopes. Raises ValueError for an invalid one, and without any."""
    scopes = tuple(Scope.parse(text) for text in texts)
    if not scopes:
        raise ValueError("a token needs at least one scope: read, write, manage or admin")
    return scopes


_TOKEN = re.compile(r"slw_([0-9a-f]{16})_([0-9a-f]{64})\Z")


def check_label(text: str) -> str:
    """Return the label without surrounding spaces. Raises ValueError for an invalid one."""
    if not text.strip() or not text.isprintable() or len(text) > LABEL_LENGTH:
        raise ValueError(f"a token's label is printable text of 1 to {LABEL_LENGTH} characters")
    return text.strip()


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token's record, without its secret."""

    id: str
    label: str
    hash: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    key_fingerprint: str | None = None
    """The fingerprint of the key that `hash` was computed with; None if it is unknown."""

    def valid_at(self, now: datetime) -> bool:
        """Whether the token is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def token_text(token_id: str, secret: str) -> str:
    """Return the token's text."""
    return f"slw_{token_id}_{secret}"


def split_token(text: str) -> tuple[str, str] | None:
    """Return a token text's id and secret; None for another form."""
    match = _TOKEN.match(text)
    return None if match is None else (match[1], match[2])


def key_fingerprint(key: bytes) -> str:
    """Return a text that differs from key to key, and does not reveal the key."""
    return hmac.new(key, b"sluiceway token key", hashlib.sha256).hexdigest()


def token_hash(key: bytes, token_id: str, secret: str) -> str:
    """Return HMAC-SHA256 of id and secret, in hexadecimal."""
    return hmac.new(key, f"{token_id}.{secret}".encode("ascii"), hashlib.sha256).hexdigest()
