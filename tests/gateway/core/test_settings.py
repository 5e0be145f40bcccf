import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from sluiceway_gateway.core.errors import InvalidRequest, InvalidSettings
from sluiceway_gateway.core.settings import CLIENTS, SECRETS, Settings, unknown_variables

KEY = "0123456789" * 4
OBJECTS = {
    "kafka_properties": '{"client.id": "b"}',
    "kafka_client_properties": '{"client.id": "b"}',
    "kafka_listeners": '{"out": "a:1"}',
}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the environment."""
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


def test_command_line_options_override_environment_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICEWAY_PORT", "1234")
    monkeypatch.setenv("SLUICEWAY_HOST", "::1")
    monkeypatch.setenv("SLUICEWAY_KAFKA_PROPERTIES", '{"security.protocol": "SSL"}')
    settings = Settings.load(port=1, host=None)
    assert (settings.port, settings.host) == (1, "::1")
    assert settings.kafka_properties.get_secret_value() == {"security.protocol": "SSL"}


def test_settings_are_immutable() -> None:
    with pytest.raises(ValidationError):
        Settings.load().port = 1  # type: ignore[misc]


def test_clients_get_the_gateways_kafka_address_by_default() -> None:
    alone = Settings(kafka_bootstrap_servers="a:1", kafka_properties={"sasl.password": "own"})
    assert alone.listeners.reached_by(None) == {"bootstrap.servers": "a:1"}
    both = Settings(
        kafka_bootstrap_servers="a:1",
        kafka_advertised_servers="b:1",
        kafka_client_properties={"client.id": "c"},
    )
    assert both.listeners.reached_by(None) == {"bootstrap.servers": "b:1", "client.id": "c"}


def test_a_listener_is_an_address_or_properties_on_top_of_the_common_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICEWAY_KAFKA_CLIENT_PROPERTIES", '{"security.protocol": "ssl"}')
    monkeypatch.setenv(
        "SLUICEWAY_KAFKA_LISTENERS",
        '{"out": "b:2", "in": {"bootstrap.servers": "a:1", "security.protocol": "plaintext"}}',
    )
    monkeypatch.setenv("SLUICEWAY_KAFKA_DEFAULT_LISTENER", "out")
    listeners = Settings.load().listeners
    outside = {"bootstrap.servers": "b:2", "security.protocol": "ssl"}
    assert listeners.reached_by(None) == listeners.reached_by("out") == outside
    assert listeners.reached_by("in") == {
        "bootstrap.servers": "a:1",
        "security.protocol": "plaintext",
    }
    with pytest.raises(InvalidRequest, match="'side'; this gateway has in, out"):
        listeners.reached_by("side")


def test_the_only_listener_is_the_default_one() -> None:
    listeners = Settings(kafka_listeners={"out": "b:2"}).listeners
    assert listeners.reached_by(None) == {"bootstrap.servers": "b:2"}


def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_TOKEN_KEY", KEY)
    monkeypatch.setenv("SLUICEWAY_DATABASE_URL", "postgresql://me:geheim@h/d")
    for name in ("KAFKA_PROPERTIES", "KAFKA_CLIENT_PROPERTIES"):
        monkeypatch.setenv(f"SLUICEWAY_{name}", '{"sasl.password": "geheim"}')
    monkeypatch.setenv(
        "SLUICEWAY_KAFKA_LISTENERS",
        '{"out": {"bootstrap.servers": "a:1", "ssl.key.pem": "geheim"}}',
    )
    settings = Settings.load()
    assert settings.listeners.reached_by("out")["ssl.key.pem"] == "geheim"
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    shown += repr(settings.listeners)
    assert KEY not in shown
    assert "geheim" not in shown


@pytest.mark.parametrize("name", SECRETS)
def test_every_secret_can_be_in_a_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = OBJECTS.get(name, KEY)
    path = tmp_path / "secret"
    path.write_text(f"{value}\n")
    monkeypatch.setenv(f"SLUICEWAY_{name.upper()}_FILE", str(path))
    secret = getattr(Settings.load(), name).get_secret_value()
    assert secret == (json.loads(value) if name in OBJECTS else value)

    monkeypatch.setenv(f"SLUICEWAY_{name.upper()}", value)
    with pytest.raises(InvalidSettings, match="both set"):
        Settings.load()


def test_a_missing_secret_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("KAFKA_CLIENT_PROPERTIES", '{"sasl.pasword": "x"}', "did you mean 'sasl.password'"),
        ("KAFKA_CLIENT_PROPERTIES", '{"ssl.ca.location": "/x"}', "ssl.ca.pem"),
        ("KAFKA_CLIENT_PROPERTIES", '{"bootstrap.servers": "x"}', "KAFKA_ADVERTISED_SERVERS"),
        ("KAFKA_LISTENERS", '{"a": "x:1", "b": "x:2"}', "KAFKA_DEFAULT_LISTENER.*a, b"),
        ("KAFKA_LISTENERS", '{"a": ""}', "the listener 'a' has no bootstrap.servers"),
        ("KAFKA_LISTENERS", '{"a b": "x:1"}', "the listener 'a b' needs a name"),
        ("KAFKA_LISTENERS", '{"a": {"bootstrap.servers": "x", "acks": "0"}}', "'acks'"),
        ("KAFKA_LISTENERS", '{"a": 1}', "SLUICEWAY_KAFKA_LISTENERS: "),
        ("KAFKA_DEFAULT_LISTENER", "a", "KAFKA_LISTENERS has none"),
        ("TLS_KEY_FILE", "/x", "set together"),
        ("LEASE_MS", "1", "SLUICEWAY_LEASE_MS: "),
    ],
)
def test_an_invalid_setting_is_named(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SLUICEWAY_{variable}", value)
    with pytest.raises(InvalidSettings, match=said) as caught:
        Settings.load()
    assert "short" not in str(caught.value)


def test_variables_of_the_client_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CLIENTS:
        monkeypatch.setenv(f"SLUICEWAY_{name}", "x")
    Settings.load()


def test_listeners_and_one_address_are_mutually_exclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_KAFKA_LISTENERS", '{"a": "x:1"}')
    monkeypatch.setenv("SLUICEWAY_KAFKA_ADVERTISED_SERVERS", "x:2")
    with pytest.raises(InvalidSettings, match="both set: move the address to"):
        Settings.load()


@pytest.mark.parametrize(
    "servers", ["kafka", "a:1,b:2", " a:1 , b_c.d:2,", "SASL_SSL://a:1", "[::1]:9092", "::1"]
)
def test_kafkas_addresses_have_the_forms_of_librdkafka(
    monkeypatch: pytest.MonkeyPatch, servers: str
) -> None:
    monkeypatch.setenv("SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS", servers)
    assert Settings.load().kafka_bootstrap_servers == servers


@pytest.mark.parametrize(
    "servers", [" ", ",", "http://a:1", "a:port", "a:0", "a:70000", "a b:1", "a:1/x", "a:1;b:1"]
)
def test_addresses_that_librdkafka_would_skip_in_silence_are_refused(
    monkeypatch: pytest.MonkeyPatch, servers: str
) -> None:
    listeners = json.dumps({"out": servers})
    settings = {
        "KAFKA_BOOTSTRAP_SERVERS": servers,
        "KAFKA_ADVERTISED_SERVERS": servers,
        "KAFKA_LISTENERS": listeners,
    }
    for name, value in settings.items():
        with monkeypatch.context() as patch:
            patch.setenv(f"SLUICEWAY_{name}", value)
            with pytest.raises(InvalidSettings, match=f"SLUICEWAY_{name}: .* give HOST:PORT"):
                Settings.load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KAFKA_PROPERTIES", '{"client.id": "b", "socket.timeout.ms": 5000}'),
        ("KAFKA_CLIENT_PROPERTIES", '{"socket.timeout.ms": null}'),
        ("KAFKA_LISTENERS", '{"out": {"bootstrap.servers": "a:1", "socket.timeout.ms": true}}'),
    ],
)
def test_a_property_that_is_not_text_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"SLUICEWAY_{name}", value)
    with pytest.raises(InvalidSettings) as raised:
        Settings.load()
    assert str(raised.value) == (
        f"SLUICEWAY_{name}: the value of 'socket.timeout.ms' is not text; put it in quotes"
    )


def test_variables_that_are_no_settings_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DB_URL", "PORT", "URL", "CACHE_DIR", "IVY_SETTINGS"):
        monkeypatch.setenv(f"SLUICEWAY_{name}", "1")
    Settings.load()
    assert unknown_variables() == ["SLUICEWAY_DB_URL"]
