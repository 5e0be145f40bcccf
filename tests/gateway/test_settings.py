from pathlib import Path

import pytest
from pydantic import ValidationError

from sluiceway_gateway.domain.errors import InvalidSettings
from sluiceway_gateway.settings import SECRETS, Settings

KEY = "0123456789" * 4


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine's own."""
    import os

    for name in list(os.environ):
        if name.startswith("SLUICEWAY_"):
            monkeypatch.delenv(name)


def test_the_defaults_serve_loopback_on_sqlite() -> None:
    settings = Settings.load()
    assert (settings.host, settings.port) == ("127.0.0.1", 8900)
    assert settings.database_url.get_secret_value().startswith("sqlite:///")
    assert settings.token_key is None
    assert not settings.tls


def test_variables_are_read_and_a_command_line_goes_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICEWAY_PORT", "1234")
    monkeypatch.setenv("SLUICEWAY_HOST", "::1")
    monkeypatch.setenv("SLUICEWAY_KAFKA_PROPERTIES", '{"security.protocol": "SSL"}')
    settings = Settings.load(port=1, host=None)
    assert (settings.port, settings.host) == (1, "::1")
    assert settings.kafka_properties.get_secret_value() == {"security.protocol": "SSL"}


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Settings.load().port = 1  # type: ignore[misc]


def test_clients_get_the_gateways_address_of_kafka_unless_told_otherwise() -> None:
    assert Settings(kafka_bootstrap_servers="a:1").servers_for_clients == "a:1"
    both = Settings(kafka_bootstrap_servers="a:1", kafka_advertised_servers="b:1")
    assert both.servers_for_clients == "b:1"


def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_TOKEN_KEY", KEY)
    monkeypatch.setenv("SLUICEWAY_DATABASE_URL", "postgresql://me:geheim@h/d")
    monkeypatch.setenv("SLUICEWAY_KAFKA_PROPERTIES", '{"sasl.password": "geheim"}')
    settings = Settings.load()
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert KEY not in shown
    assert "geheim" not in shown


@pytest.mark.parametrize("name", SECRETS)
def test_every_secret_can_lie_in_a_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {"kafka_properties": '{"a": "b"}'}.get(name, KEY)
    path = tmp_path / "secret"
    path.write_text(f"{value}\n")
    monkeypatch.setenv(f"SLUICEWAY_{name.upper()}_FILE", str(path))
    found = getattr(Settings.load(), name).get_secret_value()
    assert found == ({"a": "b"} if name == "kafka_properties" else value)

    monkeypatch.setenv(f"SLUICEWAY_{name.upper()}", value)
    with pytest.raises(InvalidSettings, match="both set"):
        Settings.load()


def test_a_secrets_file_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_TOKEN_KEY_FILE", str(tmp_path / "absent"))
    with pytest.raises(InvalidSettings, match=r"SLUICEWAY_TOKEN_KEY_FILE names .*absent"):
        Settings.load()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PORT", "many", "SLUICEWAY_PORT: "),
        ("PORT", "70000", "SLUICEWAY_PORT: "),
        ("PROT", "1", "did you mean SLUICEWAY_PORT"),
        ("TOKEN_KEYS", "1", "did you mean SLUICEWAY_TOKEN_KEY"),
        ("TOKEN_KEY", "short", "at least 32 characters"),
        ("LOG_LEVEL", "loud", "SLUICEWAY_LOG_LEVEL: "),
        ("TOPIC_PREFIX", "no spaces", "SLUICEWAY_TOPIC_PREFIX: "),
        ("KAFKA_PROPERTIES", "a=b", "JSON object"),
        ("KAFKA_PROPERTIES", "[1]", "SLUICEWAY_KAFKA_PROPERTIES: "),
        ("TLS_KEY_FILE", "/x", "set together"),
        ("LEASE_MS", "1", "SLUICEWAY_LEASE_MS: "),
    ],
)
def test_a_wrong_setting_is_named(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SLUICEWAY_{variable}", value)
    with pytest.raises(InvalidSettings, match=said) as caught:
        Settings.load()
    assert "short" not in str(caught.value)


def test_variables_of_the_client_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "TOKEN", "TOKEN_FILE", "CA_FILE"):
        monkeypatch.setenv(f"SLUICEWAY_{name}", "x")
    Settings.load()
