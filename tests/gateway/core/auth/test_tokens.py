from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from gateways import TOKEN_KEY, ManualClock
from sluiceway_gateway.core.auth.model import parse_scopes
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import InvalidRequest, InvalidSettings, NotFound, Unauthenticated


@pytest.fixture
def tokens(database: Database, clock: ManualClock) -> Tokens:
    return Tokens(database, SecretStr(TOKEN_KEY), clock=clock)


def test_a_token_allows_what_its_scopes_allow(tokens: Tokens) -> None:
    made = tokens.create(label="job", scopes=["read:a", "write"])
    principal = tokens.authenticate(made.text.get_secret_value())
    assert (principal.id, principal.scopes) == (made.token.id, parse_scopes(["read:a", "write"]))


def test_the_token_itself_is_not_stored(tokens: Tokens, database: Database) -> None:
    made = tokens.create(label="job", scopes=["read"])
    secret = made.text.get_secret_value().split("_")[2]
    with database.read() as tx:
        rows = str(list(tx.execute(text("SELECT * FROM tokens"))))
    assert made.token.id in rows
    assert secret not in rows
    assert secret not in repr(made)


def test_a_hash_of_another_key_or_row_is_refused(
    tokens: Tokens, database: Database, clock: ManualClock
) -> None:
    made = tokens.create(label="a", scopes=["admin"])
    other = tokens.create(label="b", scopes=["read"])
    with pytest.raises(Unauthenticated):
        Tokens(database, SecretStr("x" * 32), clock=clock).authenticate(
            made.text.get_secret_value()
        )
    with database.write() as tx:
        tx.execute(
            text("UPDATE tokens SET hash = :hash WHERE id = :id").bindparams(
                hash=other.token.hash, id=made.token.id
            )
        )
    stolen = f"slw_{made.token.id}_{other.text.get_secret_value().split('_')[2]}"
    with pytest.raises(Unauthenticated):
        tokens.authenticate(stolen)


def test_a_token_expires(tokens: Tokens, clock: ManualClock) -> None:
    made = tokens.create(label="job", scopes=["read"], expires_in=timedelta(hours=1))
    clock.advance(timedelta(hours=1) - timedelta(microseconds=1))
    tokens.authenticate(made.text.get_secret_value())
    clock.advance(timedelta(microseconds=1))
    with pytest.raises(Unauthenticated):
        tokens.authenticate(made.text.get_secret_value())


def test_a_revoked_token_stays_revoked_and_listed(tokens: Tokens, clock: ManualClock) -> None:
    made = tokens.create(label="job", scopes=["read"])
    clock.advance(timedelta(seconds=1))
    tokens.revoke(made.token.id)
    first = tokens.every()
    clock.advance(timedelta(seconds=1))
    tokens.revoke(made.token.id)
    assert tokens.every() == first
    assert first[0].revoked_at is not None
    with pytest.raises(Unauthenticated):
        tokens.authenticate(made.text.get_secret_value())


def test_tokens_are_listed_by_age(tokens: Tokens, clock: ManualClock) -> None:
    for label in ("a", "b", "c"):
        tokens.create(label=label, scopes=["read"])
        clock.advance(timedelta(seconds=1))
    assert [token.label for token in tokens.every()] == ["a", "b", "c"]


def test_an_unknown_id_cannot_be_revoked(tokens: Tokens) -> None:
    with pytest.raises(NotFound, match="token list"):
        tokens.revoke("0" * 16)


@pytest.mark.parametrize(
    "wrong",
    [
        {"label": ""},
        {"label": " "},
        {"label": "x" * 201},
        {"label": "a\0"},
        {"scopes": []},
        {"scopes": ["raed"]},
        {"expires_in": timedelta(0)},
        {"expires_in": timedelta(days=999_999_999)},
    ],
)
def test_invalid_tokens_are_not_created(tokens: Tokens, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        tokens.create(**{"label": "job", "scopes": ["read"], **wrong})
    assert tokens.every() == []


def test_without_a_key_there_are_no_tokens(database: Database) -> None:
    tokens = Tokens(database, None)
    tokens.check_key()
    with pytest.raises(InvalidSettings, match="SLUICEWAY_TOKEN_KEY"):
        tokens.create(label="job", scopes=["read"])


def test_a_key_that_verifies_no_valid_token_is_refused(
    tokens: Tokens, database: Database, clock: ManualClock
) -> None:
    tokens.create(label="job", scopes=["admin"], expires_in=timedelta(hours=1))
    others = Tokens(database, SecretStr("x" * 32), clock=clock)
    tokens.check_key()
    with pytest.raises(InvalidSettings, match="another key than SLUICEWAY_TOKEN_KEY"):
        others.check_key()
    # To replace the key: gateways with either key start while both have a valid token.
    second = others.create(label="job", scopes=["admin"])
    tokens.check_key()
    others.check_key()
    assert {token.id for token in tokens.every() if tokens.has_other_key(token)} == {
        second.token.id
    }
    clock.advance(timedelta(hours=1))
    with pytest.raises(InvalidSettings, match="another key"):
        tokens.check_key()
    others.check_key()
    # Without a valid token, any key may create the next one.
    others.revoke(second.token.id)
    tokens.check_key()


def test_tokens_of_an_earlier_version_may_be_of_any_key(tokens: Tokens, database: Database) -> None:
    tokens.create(label="job", scopes=["admin"])
    with database.write() as tx:
        tx.execute(text("UPDATE tokens SET key_fingerprint = NULL"))
    Tokens(database, SecretStr("x" * 32)).check_key()


@pytest.mark.parametrize(
    ("key", "is_known", "reason"),
    [
        ("x" * 32, True, "it was created with another SLUICEWAY_TOKEN_KEY"),
        (TOKEN_KEY, True, "its secret is wrong"),
        (
            "x" * 32,
            False,
            "its secret does not match: it is wrong, or the token was created with another "
            "SLUICEWAY_TOKEN_KEY",
        ),
    ],
)
def test_why_a_known_token_is_refused_is_logged_once_a_minute(
    tokens: Tokens,
    database: Database,
    caplog: pytest.LogCaptureFixture,
    key: str,
    is_known: bool,
    reason: str,
) -> None:
    made = tokens.create(label="job", scopes=["admin"])
    if not is_known:
        with database.write() as tx:
            tx.execute(text("UPDATE tokens SET key_fingerprint = NULL"))
    token_text = made.text.get_secret_value()
    if key == TOKEN_KEY:
        token_text = token_text[:-1] + ("1" if token_text[-1] == "0" else "0")
    others = Tokens(database, SecretStr(key))
    for presented_token in ("slw_" + "0" * 16 + "_" + "0" * 64, *[token_text] * 3):
        with pytest.raises(Unauthenticated):
            others.authenticate(presented_token)
    (warning,) = [record for record in caplog.records if "a token is known" in record.getMessage()]
    assert warning.getMessage().endswith(f"a token is known, but {reason}")
    assert vars(warning)["token_id"] == made.token.id
    assert token_text.split("_")[2] not in caplog.text
