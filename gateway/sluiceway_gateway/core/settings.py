"""Settings of the gateway: `SLUICEWAY_*` variables, frozen, with secrets masked.

The variable NAME_FILE can give the path of a file with the secret NAME. Trailing line breaks are
ignored.
"""

import json
import os
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, Secret, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from sluiceway.kafka.config import CONNECTION, refuse_unlisted
from sluiceway_gateway.core.auth.model import OwnershipMode
from sluiceway_gateway.core.errors import InvalidSettings
from sluiceway_gateway.core.kafka.model import UNNAMED, Listeners

PREFIX = "SLUICEWAY_"
SECRETS = (
    "database_url",
    "token_key",
    "kafka_properties",
    "kafka_client_properties",
    "kafka_listeners",
)
CLIENTS = (
    *("URL", "TOKEN", "TOKEN_FILE", "CA_FILE"),
    *("LISTENER", "KAFKA_CREDENTIALS", "KAFKA_CREDENTIALS_FILE"),
)
"""Variables of the client, which may be in the same environment."""
_TOKEN_KEY_LENGTH = 32
_LISTENER = re.compile(r"[a-zA-Z0-9._-]{1,100}")
# As librdkafka parses them; it skips other addresses in silence.
_SERVER = re.compile(
    r"(?:(?:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?"
    r"(?:\[[^][\s/,]+\]|[^][\s/,:]+|[0-9a-fA-F]*(?::[0-9a-fA-F.]*){2,})(?::(?P<port>[0-9]{1,5}))?",
    re.IGNORECASE,
)


class Settings(BaseSettings):
    """The gateway's settings; `load()` reads them from the environment."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        env_ignore_empty=True,
    )

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(default=8900, ge=0, le=65535)
    """The port to listen on; 0 chooses a free one."""
    database_url: SecretStr = SecretStr("sqlite:///sluiceway.db")
    """`sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST/DATABASE`."""
    database_pool_size: int = Field(default=20, ge=1, le=1000)
    """Maximum number of database connections."""
    database_wait_ms: int = Field(default=5000, ge=1, le=600_000)
    """Time that a request waits for a lock or a connection before a 503.

    If PostgreSQL does not answer, it waits up to 3 s longer.
    """

    kafka_bootstrap_servers: str = "127.0.0.1:9092"
    """Kafka's address for the gateway."""
    kafka_advertised_servers: str | None = None
    """Kafka's address for clients; by default that for the gateway."""
    kafka_properties: Annotated[Secret[dict[str, str]], NoDecode] = Secret({})
    """Additional Kafka properties of the gateway, as a JSON object."""
    kafka_client_properties: Annotated[Secret[dict[str, str]], NoDecode] = Secret({})
    """Additional Kafka properties for clients, as a JSON object."""
    kafka_listeners: Annotated[Secret[dict[str, str | dict[str, str]]], NoDecode] = Secret({})
    """Kafka's addresses for clients by listener name, as a JSON object.

    A value is bootstrap servers, or an object of Kafka properties that override
    `kafka_client_properties`.
    """
    kafka_default_listener: str | None = None
    """The listener for clients that do not name one; required if there are several."""
    kafka_cluster_id: str | None = Field(default=None, pattern=r"^\S{1,249}$")
    """Id of the Kafka cluster that the gateway may use; by default that of the first one."""
    kafka_timeout_ms: int = Field(default=5000, ge=100, le=600_000)
    """Timeout of a call to Kafka."""
    topic_prefix: str = Field(default="sluiceway.", pattern=r"^[a-zA-Z0-9._-]{0,40}$")
    """Prefix of the names of owned topics."""

    mirror_prefix: str = Field(default="", pattern=r"^[a-zA-Z0-9._-]{0,40}$")
    """Prefix of the names of Kafka groups that positions are mirrored to."""
    history_days: int = Field(default=30, ge=1, le=36_500)
    """Time for which the history of endpoints and the ids of superseded endpoints are kept."""

    token_key: SecretStr | None = None
    """Key for the hashes of tokens, at least 32 characters. Without it there are no tokens."""
    ownership: OwnershipMode = OwnershipMode.ENFORCE
    """Whether groups, batches and keys are refused to other labels, or their use only audited."""
    tls_certificate_file: Path | None = None
    """Certificate for HTTPS."""
    tls_key_file: Path | None = None
    """Key of the certificate."""
    tls_by_proxy: bool = False
    """Whether a proxy in front of the gateway terminates TLS. Refused without tokens."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"

    resync_s: int = Field(default=30, ge=1, le=86_400)
    """Interval at which unchanged channels are compared with Kafka."""
    sample_s: float = Field(default=5, ge=0.1, le=3600, allow_inf_nan=False)
    """Interval at which offsets of channels in use are sampled."""
    max_batch_ms: int = Field(default=86_400_000, ge=1000, le=30 * 86_400_000)
    """Time after which an open batch is aborted even if its lease is renewed."""
    lease_ms: int = Field(default=10_000, ge=1000, le=600_000)
    """Time without a renewal after which another replica runs the loops."""
    max_body_bytes: int = Field(default=1024 * 1024, ge=1024)
    """Maximum size of a request body."""
    max_connections: int = Field(default=11_000, ge=1)
    """Maximum number of client connections."""
    client_timeout_ms: int = Field(default=20_000, ge=100, le=600_000)
    """Time limit for a request to arrive, and for a client to read the next part of a response."""
    max_waiters: int = Field(default=10_000, ge=1)
    """Maximum number of requests that wait for a change."""
    metrics_groups: int = Field(default=1000, ge=1, le=100_000)
    """Maximum number of groups with their own series in the metrics."""
    watch_poll_ms: int = Field(default=5_000, ge=1, le=60_000)
    """Interval at which waiting requests read again, in case another replica's notice was lost."""

    @field_validator("token_key")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < _TOKEN_KEY_LENGTH:
            raise ValueError(
                f"needs at least {_TOKEN_KEY_LENGTH} characters; "
                "create one with `openssl rand -hex 32`"
            )
        return value

    @field_validator(
        "kafka_properties", "kafka_client_properties", "kafka_listeners", mode="before"
    )
    @classmethod
    def _json_object(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        expected = 'expected a JSON object like {"security.protocol": "SSL"}'
        try:
            parsed = json.loads(value)
        except ValueError:
            raise ValueError(expected) from None
        if not isinstance(parsed, dict):
            raise ValueError(expected)  # noqa: TRY004 - what pydantic expects of a validator
        for name, entry in parsed.items():
            nested = entry if isinstance(entry, dict) else {name: entry}
            if wrong := next((k for k, v in nested.items() if not isinstance(v, str)), None):
                raise ValueError(f"the value of {wrong!r} is not text; put it in quotes")
        return parsed

    @field_validator("kafka_bootstrap_servers", "kafka_advertised_servers")
    @classmethod
    def _addresses(cls, value: str | None) -> str | None:
        if value is not None:
            _check_servers(value)
        return value

    @field_validator("kafka_client_properties")
    @classmethod
    def _fit_for_clients(cls, value: Secret[dict[str, str]]) -> Secret[dict[str, str]]:
        properties = value.get_secret_value()
        if "bootstrap.servers" in properties:
            raise ValueError(
                f"bootstrap.servers is not allowed here: set {PREFIX}KAFKA_ADVERTISED_SERVERS "
                f"or {PREFIX}KAFKA_LISTENERS"
            )
        refuse_unlisted(properties, CONNECTION)
        return value

    @field_validator("kafka_listeners")
    @classmethod
    def _listeners_fit_for_clients(
        cls, value: Secret[dict[str, str | dict[str, str]]]
    ) -> Secret[dict[str, str | dict[str, str]]]:
        for name, listener in value.get_secret_value().items():
            if not _LISTENER.fullmatch(name):
                raise ValueError(
                    f"the listener {name!r} needs a name of 1 to 100 letters, digits, '.', '_', '-'"
                )
            properties = _properties(listener)
            servers = properties.get("bootstrap.servers")
            if not servers:
                raise ValueError(f"the listener {name!r} has no bootstrap.servers")
            _check_servers(servers)
            refuse_unlisted(properties, CONNECTION)
        return value

    @model_validator(mode="after")
    def _one_listener_by_default(self) -> Self:
        names = self.kafka_listeners.get_secret_value()
        default = self.kafka_default_listener
        if names and self.kafka_advertised_servers is not None:
            raise ValueError(
                f"{PREFIX}KAFKA_ADVERTISED_SERVERS and {PREFIX}KAFKA_LISTENERS are both set: move "
                f"the address to {PREFIX}KAFKA_LISTENERS"
            )
        if len(names) > 1 and default is None:
            raise ValueError(
                f"{PREFIX}KAFKA_DEFAULT_LISTENER is required with several listeners; set it to one "
                f"of {', '.join(sorted(names))}"
            )
        if default is not None and default not in names:
            raise ValueError(
                f"{PREFIX}KAFKA_DEFAULT_LISTENER is {default!r}, but {PREFIX}KAFKA_LISTENERS has "
                f"{', '.join(sorted(names)) or 'none'}"
            )
        return self

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError(
                f"{PREFIX}TLS_CERTIFICATE_FILE and {PREFIX}TLS_KEY_FILE must be set together"
            )
        return self

    @property
    def listeners(self) -> Listeners:
        """The listeners for clients by name; UNNAMED if none is configured."""
        shared = self.kafka_client_properties.get_secret_value()
        named = self.kafka_listeners.get_secret_value() or {
            UNNAMED: self.kafka_advertised_servers or self.kafka_bootstrap_servers
        }
        return Listeners(
            default=self.kafka_default_listener or next(iter(named)),
            properties={
                name: {**shared, **_properties(listener)} for name, listener in named.items()
            },
        )

    @property
    def tls(self) -> bool:
        """Whether requests use TLS, terminated by the gateway or a proxy."""
        return self.tls_by_proxy or self.tls_certificate_file is not None

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Load the settings; `overrides`, if not None, have precedence over the environment.

        Raises InvalidSettings, which names each wrong variable.
        """
        _refuse_typos()
        values = {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls(**(_read_secret_files() | values))
        except ValidationError as error:
            raise InvalidSettings(
                "; ".join(
                    _variable(*detail["loc"]) + detail["msg"].removeprefix("Value error, ")
                    for detail in error.errors(include_input=False, include_url=False)
                )
            ) from None


def _read_secret_files() -> dict[str, str]:
    """Return the secrets in files that `SLUICEWAY_NAME_FILE` names. Raises InvalidSettings."""
    secrets: dict[str, str] = {}
    for name in SECRETS:
        variable = f"{PREFIX}{name.upper()}"
        path = os.environ.get(f"{variable}_FILE")
        if not path:
            continue
        if os.environ.get(variable):
            raise InvalidSettings(f"{variable} and {variable}_FILE are both set: keep one of them")
        try:
            secrets[name] = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSettings(
                f"{variable}_FILE names {path}, which cannot be read: {error}"
            ) from error
    return secrets


def _properties(listener: str | dict[str, str]) -> dict[str, str]:
    return {"bootstrap.servers": listener} if isinstance(listener, str) else listener


def _check_servers(servers: str) -> None:
    """Raise ValueError unless these are Kafka's addresses, separated by commas."""
    addresses = [address.strip() for address in servers.split(",")]
    for address in filter(None, addresses) if any(addresses) else addresses:
        match = _SERVER.fullmatch(address)
        if match is None or not 0 < int(match["port"] or 9092) <= 65535:
            raise ValueError(
                f"{address!r} is not an address of Kafka; give HOST:PORT, several of them "
                "separated by commas"
            )


def _variable(*location: int | str) -> str:
    return f"{PREFIX}{str(location[0]).upper()}: " if location else ""


def unknown_variables() -> list[str]:
    """Return the variables that are named like settings, but are none of gateway or client."""
    # Where `sluiceway up` finds the broker's jars.
    expected = {*_known_variables(), f"{PREFIX}CACHE_DIR", f"{PREFIX}IVY_SETTINGS"}
    return [name for name in sorted(os.environ) if name.startswith(PREFIX) and name not in expected]


def _known_variables() -> list[str]:
    variables = [PREFIX + name.upper() for name in Settings.model_fields]
    variables += [f"{PREFIX}{name.upper()}_FILE" for name in SECRETS]
    return [*variables, *(PREFIX + name for name in CLIENTS)]


def _refuse_typos() -> None:
    """Raise InvalidSettings for misspelt variables of the gateway or the client."""
    for variable in unknown_variables():
        near = get_close_matches(variable, _known_variables(), n=1, cutoff=0.9)
        if near:
            raise InvalidSettings(f"{variable} is not a setting; did you mean {near[0]}?")
