import pytest

from sluiceway_gateway.core.auth.service import check_bind, is_loopback, is_loopback_authority
from sluiceway_gateway.core.errors import BindRefused

LOOPBACK = ["127.0.0.1", "127.8.8.8", "::1", "localhost", "::ffff:127.0.0.1"]
BEYOND = ["0.0.0.0", "::", "", "10.0.0.1", "example.com", "localhost.example.com"]  # noqa: S104


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_needs_no_tokens_or_tls(host: str) -> None:
    assert is_loopback(host)
    check_bind(host, has_tokens=False, tls=False, tls_by_proxy=False)


@pytest.mark.parametrize("host", BEYOND)
def test_beyond_loopback_needs_tokens_and_tls(host: str) -> None:
    with pytest.raises(BindRefused, match="token create"):
        check_bind(host, has_tokens=False, tls=True, tls_by_proxy=False)
    with pytest.raises(BindRefused, match="TLS"):
        check_bind(host, has_tokens=True, tls=False, tls_by_proxy=False)
    check_bind(host, has_tokens=True, tls=True, tls_by_proxy=False)


@pytest.mark.parametrize("host", [*LOOPBACK, *BEYOND])
def test_behind_a_proxy_a_gateway_needs_tokens(host: str) -> None:
    with pytest.raises(BindRefused, match="TLS_BY_PROXY is set, but there are no tokens"):
        check_bind(host, has_tokens=False, tls=True, tls_by_proxy=True)
    check_bind(host, has_tokens=True, tls=True, tls_by_proxy=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8900", "localhost:1", "[::1]:80"])
def test_loopback_names_in_a_host_header_pass(host: str) -> None:
    assert is_loopback_authority(host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "127.0.0.1.evil.example", "evil@127.0.0.1", "127.0.0.1:x", "[::1", "a/b"],
)
def test_other_names_in_a_host_header_do_not(host: str) -> None:
    assert not is_loopback_authority(host)
