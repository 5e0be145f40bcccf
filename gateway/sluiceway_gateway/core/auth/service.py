"""Tokens, and the addresses on which a gateway with or without tokens may listen."""

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from urllib.parse import urlsplit

import structlog
from pydantic import SecretStr

from sluiceway_gateway.core.auth import store as auth_store
from sluiceway_gateway.core.auth.model import (
    SHARED,
    Principal,
    Scope,
    ScopeKind,
    Token,
    check_label,
    key_fingerprint,
    parse_scopes,
    split_token,
    token_hash,
    token_text,
)
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db.engine import Database, ReadTransaction
from sluiceway_gateway.core.errors import (
    BindRefused,
    InvalidRequest,
    InvalidSettings,
    NotFound,
    Unauthenticated,
)

LOOPBACK = Principal(id="loopback", scopes=(Scope(kind=ScopeKind.ADMIN),))
"""The principal of loopback requests while there are no tokens."""

_log = structlog.get_logger(__name__)

_RECENT_S = 10.0
_MOST_RECENT = 10_000
_WARN_EVERY_S = 60.0
_REQUIRED = "This gateway requires a token; send it as `Authorization: Bearer TOKEN`."
_REFUSED = "The token is unknown, revoked or expired; ask for a new one."


@dataclass(frozen=True, kw_only=True)
class NewToken:
    """A newly created token, with its text, which is not stored."""

    token: Token
    text: SecretStr


class Tokens:
    """The tokens of one database, hashed by one key."""

    def __init__(
        self, database: Database, key: SecretStr | None, *, clock: Clock = system_clock
    ) -> None:
        self._database = database
        self._key = None if key is None else key.get_secret_value().encode()
        self._fingerprint = None if self._key is None else key_fingerprint(self._key)
        self._clock = clock
        self._closed = False
        self._recent = _RecentPrincipals()
        self._warned_s = -_WARN_EVERY_S

    def create(
        self, *, label: str, scopes: Iterable[str], expires_in: timedelta | None = None
    ) -> NewToken:
        """Create a token; `label` identifies its owner.

        Raises InvalidRequest for an invalid label, scope or lifetime, and InvalidSettings without
        a token key.
        """
        key = self._required_key()
        try:
            label = check_label(label)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        if label == SHARED:
            raise InvalidRequest(f"{SHARED!r} stands for every label, so it cannot be one")
        if expires_in is not None and expires_in <= timedelta(0):
            raise InvalidRequest("a token has to expire in the future")
        token_id, secret, now = secrets.token_hex(8), secrets.token_hex(32), self._clock()
        try:
            expires_at = None if expires_in is None else now + expires_in
            token = Token(
                id=token_id,
                label=label,
                hash=token_hash(key, token_id, secret),
                scopes=parse_scopes(scopes),
                created_at=now,
                expires_at=expires_at,
                key_fingerprint=self._fingerprint,
            )
        except OverflowError:
            raise InvalidRequest("the token would expire beyond the year 9999") from None
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        with self._database.write() as tx:
            auth_store.insert(tx, token)
        self._closed = True
        return NewToken(token=token, text=SecretStr(token_text(token_id, secret)))

    def every(self) -> list[Token]:
        """Return all tokens, revoked and expired ones too, the oldest first."""
        with self._database.read() as tx:
            return auth_store.every(tx)

    def revoke(self, token_id: str) -> None:
        """Revoke a token permanently. Raises NotFound for an unknown id."""
        with self._database.write() as tx:
            if not auth_store.revoke(tx, token_id, self._clock()):
                raise NotFound(
                    f"There is no token {token_id!r}; `sluiceway token list` shows their ids."
                )

    def exist(self) -> bool:
        """Whether a token was ever created; from then on every request needs one."""
        if not self._closed:
            with self._database.read() as tx:
                self._closed = auth_store.exist(tx)
        return self._closed

    def check_key(self) -> None:
        """Raise InvalidSettings if there are tokens, but the key cannot verify any valid one."""
        if not self.exist():
            return
        self._required_key()
        now = self._clock()
        valid = [token for token in self.every() if token.valid_at(now)]
        if valid and all(map(self.has_other_key, valid)):
            raise InvalidSettings(
                "the tokens were created with another key than SLUICEWAY_TOKEN_KEY (or _FILE), so "
                "the gateway would refuse all of them: set the key of the other gateways, or, to "
                "replace it, create a token with this key by `sluiceway token create`"
            )

    def has_other_key(self, token: Token) -> bool:
        """Return True for a token of another key; False if its key is unknown."""
        fingerprints = {token.key_fingerprint, self._fingerprint}
        return None not in fingerprints and len(fingerprints) == 2

    def authenticate(self, text: str | None) -> Principal:
        """Return the principal of a request with this token, or without one.

        Raises Unauthenticated for a token that is not valid, and for none once there are tokens.
        The caller checks that a request without a token comes from this machine.
        """
        try:
            principal = self._without_token() if text is None else self._principal_of(text)
        except Unauthenticated:
            self._recent.forget(text)
            raise
        self._recent.add(text, principal)
        return principal

    def recall(self, text: str | None, *, within_s: float = _RECENT_S) -> Principal | None:
        """Return the recent result of `authenticate` for this token, without a read, or None.

        The token may have been revoked since, so a transaction that relies on this principal must
        call `refusals`.
        """
        return None if text is None and self._closed else self._recent.get(text, within_s)

    def refusals(
        self, tx: ReadTransaction, principals: Collection[Principal]
    ) -> Mapping[Principal, Unauthenticated]:
        """Return an error for each principal that is no longer valid."""
        ids = {principal.id for principal in principals if principal is not LOOPBACK}
        stored = auth_store.of_ids(tx, ids) if ids else {}
        errors: dict[Principal, Unauthenticated] = {}
        for principal in set(principals):
            if principal is LOOPBACK:
                self._closed = self._closed or auth_store.exist(tx)
                detail = _REQUIRED if self._closed else None
            else:
                token = stored.get(principal.id)
                valid = token is not None and token.valid_at(self._clock())
                detail = None if valid else _REFUSED
            if detail is not None:
                self._recent.discard(principal)
                errors[principal] = Unauthenticated(detail)
        return errors

    def of(self, principal: Principal) -> Token | None:
        """Return the token of a principal; None without tokens. Raises Unauthenticated."""
        with self._database.read() as tx:
            self.require_valid(tx, principal)
            return auth_store.of_ids(tx, [principal.id]).get(principal.id)

    def require_valid(self, tx: ReadTransaction, principal: Principal) -> None:
        """Raise Unauthenticated if the principal is no longer valid."""
        for error in self.refusals(tx, [principal]).values():
            raise error

    def _without_token(self) -> Principal:
        if self.exist():
            raise Unauthenticated(_REQUIRED)
        return LOOPBACK

    def _principal_of(self, text: str) -> Principal:
        parts = split_token(text)
        if parts is None:
            raise Unauthenticated(
                "The token does not have the form slw_ID_SECRET; check where it is set."
            )
        with self._database.read() as tx:
            token = auth_store.of_ids(tx, [parts[0]]).get(parts[0])
        # Unknown ids are hashed and compared too, so that timing does not reveal known ids.
        digest = token.hash if token is not None else "0" * 64
        same = self._key is not None and hmac.compare_digest(token_hash(self._key, *parts), digest)
        if token is not None and not same:
            self._warn_of_key(token)
        if not same or token is None or not token.valid_at(self._clock()):
            raise Unauthenticated(_REFUSED)
        return Principal(id=token.id, scopes=token.scopes, subject=token.label)

    def _warn_of_key(self, token: Token) -> None:
        """Log that a known token has another hash, at most once a minute."""
        now_s = time.monotonic()
        if now_s - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = now_s
            if self.has_other_key(token):
                reason = "it was created with another SLUICEWAY_TOKEN_KEY"
            elif token.key_fingerprint is not None and self._fingerprint is not None:
                reason = "its secret is wrong"
            else:
                reason = (
                    "its secret does not match: it is wrong, or the token was created with another "
                    "SLUICEWAY_TOKEN_KEY"
                )
            _log.warning(f"a token is known, but {reason}", token_id=token.id, label=token.label)

    def _required_key(self) -> bytes:
        if self._key is None:
            raise InvalidSettings(
                "tokens need a key: set SLUICEWAY_TOKEN_KEY or SLUICEWAY_TOKEN_KEY_FILE; "
                "`openssl rand -hex 32` makes one"
            )
        return self._key


class _RecentPrincipals:
    """Verified principals, and when, by a keyed hash of their token. Thread-safe."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._entries: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, text: str | None, principal: Principal) -> None:
        key = self._hash(text)
        with self._lock:
            self._entries[key] = (principal, time.monotonic())
            self._entries.move_to_end(key)
            if len(self._entries) > _MOST_RECENT:
                self._entries.popitem(last=False)

    def get(self, text: str | None, within_s: float) -> Principal | None:
        key = self._hash(text)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or time.monotonic() - entry[1] >= within_s:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def forget(self, text: str | None) -> None:
        with self._lock:
            self._entries.pop(self._hash(text), None)

    def discard(self, principal: Principal) -> None:
        with self._lock:
            for key in [key for key, (recent, _) in self._entries.items() if recent == principal]:
                del self._entries[key]

    def _hash(self, text: str | None) -> bytes:
        encoded = b"" if text is None else text.encode("utf-8", "replace")
        return hashlib.blake2b(encoded, key=self._key, digest_size=32).digest()


def check_bind(host: str, *, has_tokens: bool, tls: bool, tls_by_proxy: bool) -> None:
    """Raise BindRefused, with the solution, unless the gateway may listen on `host`.

    `has_tokens`: a token was ever created. `tls`: the gateway or a proxy uses TLS.
    """
    if tls_by_proxy and not has_tokens:
        raise BindRefused(
            "SLUICEWAY_TLS_BY_PROXY is set, but there are no tokens: everybody whom the proxy "
            "admits would be an administrator; create one with `sluiceway token create`, or unset "
            "SLUICEWAY_TLS_BY_PROXY if there is no proxy"
        )
    if is_loopback(host):
        return
    if not has_tokens:
        raise BindRefused(
            f"without tokens the gateway listens on loopback only, not on {host!r}: "
            "create one with `sluiceway token create`, or set SLUICEWAY_HOST=127.0.0.1"
        )
    if not tls:
        raise BindRefused(
            f"tokens would be sent unencrypted to {host!r}: set "
            "SLUICEWAY_TLS_CERTIFICATE_FILE and SLUICEWAY_TLS_KEY_FILE, or "
            "SLUICEWAY_TLS_BY_PROXY=1 if a proxy terminates TLS"
        )


def is_loopback(host: str) -> bool:
    """Whether this address or name is loopback."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_loopback_authority(authority: str) -> bool:
    """Whether `HOST[:PORT]`, as in a Host header, names loopback.

    Against DNS rebinding: a page from another host has that host's name here, even if the name
    resolves to 127.0.0.1.
    """
    try:
        parts = urlsplit(f"//{authority}")
        host, _port = parts.hostname, parts.port
    except ValueError:
        return False
    plain = parts.netloc == authority and parts.username is None and not parts.path
    return plain and host is not None and is_loopback(host)
