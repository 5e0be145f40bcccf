"""Tokens on the page: the name, hidden actions, the warning before expiry, and expiry."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx
from selenium.webdriver.common.keys import Keys
from sqlalchemy import update

from browsers import Browser
from databases import SQLite
from endpoints import site
from gateways import SCHEMA, TOKEN_KEY, UNREACHABLE, Rig, serving
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.auth.model import Principal, Token
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.auth.tables import tokens as stored
from sluiceway_gateway.core.settings import Settings
from waiting import until

LIFETIME = timedelta(hours=1)


def sign_in(browser: Browser, token: dict[str, str]) -> None:
    browser.one("#token").send_keys(token["Authorization"].removeprefix("Bearer ") + Keys.ENTER)


def test_only_permitted_actions_are_shown(browser: Browser, rig: Rig) -> None:
    target = site(rig, "flights")
    writer = target.member(role="writer", group="loader")
    target.member()
    assert target.detach(writer, "error", cause="full disk", ends={}).is_success
    viewer, manager = rig.token("read", label="ana"), rig.token("manage:fl", label="ops")
    browser.open(f"{rig.url}/#/channels/flights")
    sign_in(browser, viewer)
    browser.shows("ana", "header .account")
    browser.shows("Writer failed", ".title")
    assert browser.all(".actions button") == []
    browser.button("Endpoints").click()
    browser.shows("full disk", "section")
    assert "Dismiss…" not in browser.text()
    browser.button("Sign out").click()
    sign_in(browser, manager)
    browser.shows("ops", "header .account")
    browser.button("Dismiss…")
    browser.button("Close…")
    browser.button("Readers").click()
    browser.button("Reset offsets…")


def test_a_text_that_is_no_token_is_refused_as_such(browser: Browser, rig: Rig) -> None:
    header = rig.token("read", label="ana")
    browser.open(rig.url)
    browser.one("#token").send_keys("slw_1_abc…" + Keys.ENTER)
    browser.shows("This is not a token", ".signin")
    # With the name of the scheme, as in a request.
    browser.one("#token").clear()
    browser.one("#token").send_keys(header["Authorization"] + Keys.ENTER)
    browser.shows("ana", "header .account")
    browser.shows("There are no channels that this token may see.")


def test_a_paused_list_is_not_shown_to_the_next_token(browser: Browser, rig: Rig) -> None:
    for name in ("flights", "weather"):
        site(rig, name)
    browser.open(f"{rig.url}/#/")
    sign_in(browser, rig.token("read", label="ana"))
    browser.shows("weather", "main")
    browser.button("Pause").click()
    browser.button("Sign out").click()
    sign_in(browser, rig.token("read:fl", label="ops"))
    browser.shows("ops", "header .account")
    assert "weather" not in browser.text("main")
    browser.button("Resume").click()
    browser.shows("flights", "main")
    assert "weather" not in browser.text("main")


def test_an_action_with_a_revoked_token_is_refused_with_a_message(
    browser: Browser, rig: Rig
) -> None:
    site(rig, "flights")
    used, other = rig.token("manage"), rig.token("admin", label="ops")
    browser.open(f"{rig.url}/#/channels/flights")
    sign_in(browser, used)
    browser.button("Close…").click()
    browser.one("dialog[open]")
    # Paused, because the stream of a live page would end first.
    browser.execute_script("document.querySelector('header [aria-pressed]').click()")
    browser.shows("Paused", ".freshness")
    rig.tokens.revoke(used["Authorization"].split("_")[1])
    browser.button("Close the channel").click()
    browser.shows("Nothing was changed. The token is not valid any more", ".signin")
    # The same view is shown, without the dialog.
    sign_in(browser, other)
    browser.button("Resume").click()
    browser.shows("Ready", ".title")
    assert browser.all("dialog") == []
    assert rig.http.get("/v1/channels/flights", headers=other).json()["status"]["phase"] == "ready"


class ShortTokens(Tokens):
    """Tokens that end 1 s after their creation, while they are valid for longer.

    The page learns an end for which the test need not wait; the test sets the real one.
    """

    looks = 0

    def of(self, principal: Principal) -> Token:
        self.looks += 1
        token = super().of(principal)
        end = token.expires_at and token.expires_at - LIFETIME + timedelta(seconds=1)
        return replace(token, expires_at=end)


def test_the_expiry_of_a_token_is_announced_and_explained(browser: Browser, sqlite: SQLite) -> None:
    settings = Settings(
        database_url=sqlite.migrated(), kafka_bootstrap_servers=UNREACHABLE, token_key=TOKEN_KEY
    )
    app = create_app(settings)
    with serving(app) as url, closing(httpx.Client(base_url=url, timeout=60)) as http:
        parts = app.state.parts
        tokens = ShortTokens(parts.database, settings.token_key)
        app.state.parts = replace(parts, tokens=tokens)

        def expire() -> None:
            with app.state.parts.database.write() as tx:
                ending = update(stored).where(stored.c.expires_at.is_not(None))
                tx.execute(ending.values(expires_at=datetime.now(UTC)))

        def token(label: str, lifetime: timedelta | None = None) -> dict[str, str]:
            token_made = tokens.create(label=label, scopes=["manage"], expires_in=lifetime)
            return {"Authorization": f"Bearer {token_made.text.get_secret_value()}"}

        lasting = token("next")
        body = {"spec": {"schema": SCHEMA}}
        http.put("/v1/channels/flights", json=body, headers=lasting).raise_for_status()
        browser.open(f"{url}/#/channels/flights")
        browser.one("#token")
        sign_in(browser, token("ops", LIFETIME))
        browser.shows("The token ops expires in less than a minute", "[role=status].expiring")
        assert browser.violations() == []
        browser.button("Close…").click()
        browser.one("dialog[open] input").click()
        expire()
        browser.shows("The token ops has expired. Sign in with another one.", ".signin")
        assert browser.all("dialog") == []
        sign_in(browser, lasting)
        browser.shows("next", "header .account")
        browser.shows("flights", "h1")
        assert browser.all("dialog, .expiring") == []
        # A paused page notices the expiry, too, even if the gateway's clock is behind its own: it
        # asks until the token is refused.
        browser.button("Sign out").click()
        browser.one("#token")
        sign_in(browser, token("ops", LIFETIME))
        browser.shows("expires in", ".expiring")
        browser.button("Pause").click()
        browser.shows("Paused", ".freshness")
        before = tokens.looks
        until(lambda: tokens.looks >= before + 2, 30)
        expire()
        browser.shows("The token ops has expired", ".signin")
        channel = http.get("/v1/channels/flights", headers=lasting).json()
        assert channel["status"]["phase"] == "provisioning"
        until(lambda: app.state.parts.changes.waiting == 0)
        browser.get("about:blank")
