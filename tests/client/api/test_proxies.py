"""Proxies of the environment: never for loopback, and named by errors."""

import socket
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from scripted_gateway import CHANNEL, Script, scripted
from sluiceway import Gateway
from sluiceway.api.channels import Control
from sluiceway.api.transport import Transport, proxy_of
from sluiceway.errors import Forbidden, GatewayUnavailable, OptionError

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
AWAY = "http://gateway.invalid:8900"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """A proxy with a password, for all hosts."""
    with scripted() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("http://", "http://user:s3cret@"))
        yield proxy


def test_a_gateway_on_loopback_gets_requests_without_the_proxy(
    proxy: Script, script: Script
) -> None:
    script.response(200, CHANNEL)
    assert script.control(token="slw_a_b").channel("flights").name == "flights"
    assert proxy.requests == []
    assert len(script.requests) == 1


def test_another_gateway_gets_requests_through_the_proxy(proxy: Script) -> None:
    proxy.response(200, CHANNEL)
    with closing(Transport(AWAY)) as transport:
        assert Control(transport).channel("flights").name == "flights"
    ((_, address, headers),) = proxy.requests
    assert address == f"{AWAY}/v1/channels/flights"
    assert headers["Proxy-Authorization"].startswith("Basic ")


def test_an_error_page_of_the_proxy_names_it_without_its_password(proxy: Script) -> None:
    proxy.response(403, b"<html>not allowed</html>")
    with Gateway(AWAY) as gateway, pytest.raises(Forbidden) as raised:
        gateway.channel("flights")
    assert f"through the proxy {proxy.url} (HTTP_PROXY" in str(raised.value)
    assert "Check the URL and the proxy" in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_proxy_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        monkeypatch.setenv("ALL_PROXY", address)
        with (
            Gateway(AWAY, timeout_s=0.3) as gateway,
            pytest.raises(GatewayUnavailable, match=f"through the proxy http://{address} "),
        ):
            gateway.channel("flights")


@pytest.mark.parametrize("proxy", ["gopher://u:s3cret@proxy:70", "http://u:s3cret/@proxy:70"])
def test_a_proxy_that_cannot_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(OptionError, match="cannot be reached through the proxy") as raised:
        Gateway(AWAY)
    assert "s3cret" not in str(raised.value)
    # It does not matter to loopback.
    Gateway("http://127.0.0.1:8900").close()


@pytest.mark.parametrize(
    ("url", "used"),
    [
        ("http://localhost:8900", None),
        ("http://a.localhost", None),
        ("http://127.8.9.1:8900", None),
        ("http://[::1]:8900", None),
        ("https://127.0.0.1", None),
        ("http://gateway.example", "http://proxy:3128"),
        ("https://gateway.example", "http://secure:3128"),
        ("http://10.0.0.7:8900", "http://proxy:3128"),
        ("http://intern.corp:8900", None),
    ],
)
def test_the_proxy_is_chosen_by_the_gateways_host(
    monkeypatch: pytest.MonkeyPatch, url: str, used: str | None
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("HTTPS_PROXY", "secure:3128")
    monkeypatch.setenv("NO_PROXY", "other.example,.corp")
    assert proxy_of(httpx.URL(url)) == used
