"""Creating, listing, revoking and verifying tokens."""

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from pydantic import SecretStr

from sluiceway_gateway.auth import store as auth_store
from sluiceway_gateway.auth.model import (
    Action,
    Kind,
    Principal,
    Scope,
    Token,
    parse_scopes,
    split_token,
    token_hash,
    token_text,
)
from sluiceway_gateway.clock import Clock, system_clock
from sluiceway_gateway.db.engine import Database, ReadTransaction
from sluiceway_gateway.errors import (
    InvalidRequest,
    InvalidSettings,
    NotFound,
    SluicewayGatewayError,
    Unauthenticated,
)

LOOPBACK = Principal(id="loopback", scopes=(Scope(kind=Kind.ADMIN),))
"""Whoever asks over loopback while there are no tokens."""

_LABEL_LENGTH = 200
_RECOGNIZED_S = 10.0
_MOST_RECOGNIZED = 10_000
_REFUSED = "The token is unknown, revoked or expired; ask for a new one."


@dataclass(frozen=True, kw_only=True)
class NewToken:
    """A token that was just made: the only time that its text is known."""

    token: Token
    text: SecretStr


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What a request brings to say who asks: a token's text, or nothing."""

    text: str | None = field(repr=False)


class Tokens:
    """The tokens of one database, hashed by one key."""

    def __init__(
        self, database: Database, key: SecretStr | None, *, clock: Clock = system_clock
    ) -> None:
        self._database = database
        self._key = None if key is None else key.get_secret_value().encode()
        self._clock = clock
        self._closed = False
        self._recognized = _Recognized()

    def create(
        self, *, label: str, scopes: Iterable[str], expires_in: timedelta | None = None
    ) -> NewToken:
        """Make a token; `label` says whose it is.

        Raises InvalidRequest for a scope or a time that makes no sense, and
        InvalidSettings where there is no token key.
        """
        key = self._required_key()
        if not label.strip() or not label.isprintable() or len(label) > _LABEL_LENGTH:
            raise InvalidRequest(
                f"a token's label is printable text of 1 to {_LABEL_LENGTH} characters"
            )
        if expires_in is not None and expires_in <= timedelta(0):
            raise InvalidRequest("a token has to expire in the future")
        token_id, secret, now = secrets.token_hex(8), secrets.token_hex(32), self._clock()
        try:
            expires_at = None if expires_in is None else now + expires_in
            token = Token(
                id=token_id,
                label=label.strip(),
                hash=token_hash(key, token_id, secret),
                scopes=parse_scopes(scopes),
                created_at=now,
                expires_at=expires_at,
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
        """Revoke a token at once and for good; raises NotFound if there is none of this id."""
        with self._database.write() as tx:
            if not auth_store.revoke(tx, token_id, self._clock()):
                raise NotFound(
                    f"There is no token {token_id!r}; `sluiceway token list` shows their ids."
                )

    def exist(self) -> bool:
        """Whether a token was ever made; from then on every request needs one."""
        if not self._closed:
            with self._database.read() as tx:
                self._closed = auth_store.exist(tx)
        return self._closed

    def check_key(self) -> None:
        """Raise InvalidSettings if there are tokens that nobody could check."""
        if self._key is None and self.exist():
            self._required_key()

    def authenticate(self, text: str) -> Principal:
        """Return the holder of this token; raises Unauthenticated if it is not valid."""
        asked = Credentials(text=text)
        with self._database.read() as tx:
            found = self.principals(tx, [asked])[asked]
        if isinstance(found, Unauthenticated):
            raise found
        return found

    def require_open(self) -> None:
        """Raise Unauthenticated if a token was ever made."""
        if self.exist():
            raise _needed()
        self._recognized.add(Credentials(text=None))

    def recognizes(self, asked: Credentials) -> bool:
        """Whether these credentials were valid within the last seconds, as far as is known here.

        Asks no database: enough to read a request's body by, and for nothing else.
        """
        return not (asked.text is None and self._closed) and asked in self._recognized

    def principals(
        self, tx: ReadTransaction, asked: Collection[Credentials]
    ) -> dict[Credentials, Principal | Unauthenticated]:
        """Return who it is that asks, for each; or why that cannot be said.

        That whoever brings no token asks from this machine is for the caller to see.
        """
        found: dict[Credentials, Principal | Unauthenticated] = {}
        parts = {each: split_token(each.text) for each in asked if each.text is not None}
        ids = {given[0] for given in parts.values() if given is not None}
        stored = auth_store.of_ids(tx, ids) if ids else {}
        for each in asked:
            given = parts.get(each)
            if each.text is None:
                self._closed = self._closed or auth_store.exist(tx)
                found[each] = _needed() if self._closed else LOOPBACK
            elif given is None:
                found[each] = Unauthenticated(
                    "The token is not of the form slw_ID_SECRET; check how it is set."
                )
            else:
                holder = self._holder(given, stored.get(given[0]))
                found[each] = holder or Unauthenticated(_REFUSED)
            if isinstance(found[each], Principal):
                self._recognized.add(each)
            else:
                self._recognized.remove(each)
        return found

    def _holder(self, given: tuple[str, str], token: Token | None) -> Principal | None:
        if self._key is None:
            return None
        # Hashed and compared for unknown ids as well: the time taken says nothing.
        known = token.hash if token is not None else "0" * 64
        same = hmac.compare_digest(token_hash(self._key, *given), known)
        if not same or token is None or not token.valid_at(self._clock()):
            return None
        return Principal(id=token.id, scopes=token.scopes, subject=token.label)

    def _required_key(self) -> bytes:
        if self._key is None:
            raise InvalidSettings(
                "tokens need a key: set SLUICEWAY_TOKEN_KEY or SLUICEWAY_TOKEN_KEY_FILE; "
                "`openssl rand -hex 32` makes one"
            )
        return self._key


class _Recognized:
    """Credentials that were valid a moment ago, by the hash of the token; safe between threads."""

    def __init__(self) -> None:
        self._until_s: dict[bytes | None, float] = {}
        self._lock = threading.Lock()

    def add(self, credentials: Credentials) -> None:
        key = _fingerprint(credentials)
        with self._lock:
            # The latest one is the last one.
            self._until_s.pop(key, None)
            self._until_s[key] = time.monotonic() + _RECOGNIZED_S
            if len(self._until_s) > _MOST_RECOGNIZED:
                del self._until_s[next(iter(self._until_s))]

    def remove(self, credentials: Credentials) -> None:
        with self._lock:
            self._until_s.pop(_fingerprint(credentials), None)

    def __contains__(self, credentials: Credentials) -> bool:
        return self._until_s.get(_fingerprint(credentials), 0.0) > time.monotonic()


def _fingerprint(credentials: Credentials) -> bytes | None:
    text = credentials.text
    return None if text is None else hashlib.sha256(text.encode("utf-8", "replace")).digest()


def _needed() -> Unauthenticated:
    return Unauthenticated(
        "This gateway asks for a token; send it as `Authorization: Bearer TOKEN`."
    )


Asker = Principal | Credentials
"""Who asks, or what they brought to say so."""
Holders = Mapping[Asker, Principal | SluicewayGatewayError]


def holders(tokens: Tokens, tx: ReadTransaction, askers: Iterable[Asker]) -> Holders:
    """Return for each who it is, or why that cannot be said."""
    asking = set(askers)
    found: dict[Asker, Principal | SluicewayGatewayError] = {}
    found |= {each: each for each in asking if isinstance(each, Principal)}
    brought = {each for each in asking if isinstance(each, Credentials)}
    for credentials, who in tokens.principals(tx, brought).items():
        found[credentials] = who
    return found


def authenticate(tokens: Tokens, tx: ReadTransaction, asker: Asker) -> Principal:
    """Return who it is; raises Unauthenticated."""
    found = holders(tokens, tx, [asker])[asker]
    if isinstance(found, SluicewayGatewayError):
        raise found
    return found


def authorize(
    holder: Principal | SluicewayGatewayError, channel: str, *actions: Action
) -> Principal | SluicewayGatewayError:
    """Return who asks if they may do all of that to the channel, else what stands against it."""
    if isinstance(holder, SluicewayGatewayError):
        return holder
    try:
        for each in actions:
            holder.require(each, channel)
    except SluicewayGatewayError as error:
        return error
    return holder
