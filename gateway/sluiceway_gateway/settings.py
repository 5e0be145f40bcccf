"""What an operator sets: `SLUICEWAY_*` variables, frozen, secrets masked.

Every secret NAME can be given as NAME_FILE too, the path of a file that holds
it; a line's end at the end of the file does not count.
"""

import json
import os
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, Secret, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from sluiceway.kafka.config import CONNECTION, refuse_unlisted
from sluiceway_gateway.errors import InvalidSettings
from sluiceway_gateway.kafka.model import UNNAMED, Listeners

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
"""The variables of the client, which may be in the same environment."""
_TOKEN_KEY_LENGTH = 32
_LISTENER = re.compile(r"[a-zA-Z0-9._-]{1,100}")


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
    """The port to listen on; 0 takes a free one."""
    database_url: SecretStr = SecretStr("sqlite:///sluiceway.db")
    """`sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST/DATABASE`."""
    database_pool_size: int = Field(default=20, ge=1, le=1000)
    """Connections to the database that are kept open at most."""
    database_wait_ms: int = Field(default=5000, ge=1, le=600_000)
    """How long a request waits for a lock or a connection before it is answered 503.

    For the answer of a PostgreSQL that is silent it waits 3 s longer.
    """

    kafka_bootstrap_servers: str = "127.0.0.1:9092"
    """Where the gateway itself finds Kafka."""
    kafka_advertised_servers: str | None = None
    """Where clients find Kafka; the gateway's own address if it is not set."""
    kafka_properties: Annotated[Secret[dict[str, str]], NoDecode] = Secret({})
    """Further Kafka properties of the gateway's own connection, as a JSON object."""
    kafka_client_properties: Annotated[Secret[dict[str, str]], NoDecode] = Secret({})
    """Further Kafka properties that clients are given, as a JSON object."""
    kafka_listeners: Annotated[Secret[dict[str, str | dict[str, str]]], NoDecode] = Secret({})
    """Where clients find Kafka, by the listener that they name, as a JSON object.

    A value is bootstrap servers, or an object of Kafka properties that go over
    `kafka_client_properties`.
    """
    kafka_default_listener: str | None = None
    """The listener of clients that name none; needed where there are several."""
    kafka_timeout_ms: int = Field(default=5000, ge=100, le=600_000)
    """How long a call to Kafka may take."""
    topic_prefix: str = Field(default="sluiceway.", pattern=r"^[a-zA-Z0-9._-]{0,40}$")
    """What the names of owned topics start with."""

    mirror_prefix: str = Field(default="", pattern=r"^[a-zA-Z0-9._-]{0,40}$")
    """What the names of Kafka's groups start with that positions are mirrored to."""
    history_days: int = Field(default=30, ge=1, le=36_500)
    """For how long the history of endpoints is kept, and the ids of those that were superseded."""

    token_key: SecretStr | None = None
    """Keys the hashes of tokens; at least 32 characters. Without it there are no tokens."""
    tls_certificate_file: Path | None = None
    """The certificate to serve HTTPS with."""
    tls_key_file: Path | None = None
    """The certificate's key."""
    tls_by_proxy: bool = False
    """The operator's word that a proxy in front speaks TLS."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"

    resync_s: int = Field(default=30, ge=1, le=86_400)
    """How often a channel at rest is compared with Kafka."""
    sample_s: float = Field(default=5, ge=0.1, le=3600, allow_inf_nan=False)
    """How often it is looked at how far the readers and writers of channels in use are."""
    lease_ms: int = Field(default=10_000, ge=1000, le=600_000)
    """How long the replica that runs the loops may be silent before another takes over."""
    max_body_bytes: int = Field(default=1024 * 1024, ge=1024)
    """The largest request body that is read."""
    max_connections: int = Field(default=11_000, ge=1)
    """How many connections clients may have open at the same time."""
    client_timeout_ms: int = Field(default=20_000, ge=100, le=600_000)
    """How long a request may take to arrive, and a client to take in more of an answer."""
    max_waiters: int = Field(default=10_000, ge=1)
    """How many requests may wait for a change at the same time."""
    watch_poll_ms: int = Field(default=100, ge=1, le=60_000)
    """How often waiting requests look for changes that another replica made."""

    @field_validator("token_key")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < _TOKEN_KEY_LENGTH:
            raise ValueError(
                f"needs at least {_TOKEN_KEY_LENGTH} characters; "
                "`openssl rand -hex 32` makes a good one"
            )
        return value

    @field_validator(
        "kafka_properties", "kafka_client_properties", "kafka_listeners", mode="before"
    )
    @classmethod
    def _json_object(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError('expected a JSON object like {"security.protocol": "SSL"}') from None

    @field_validator("kafka_client_properties")
    @classmethod
    def _fit_for_clients(cls, value: Secret[dict[str, str]]) -> Secret[dict[str, str]]:
        properties = value.get_secret_value()
        if "bootstrap.servers" in properties:
            raise ValueError(
                f"bootstrap.servers is a setting of its own: set {PREFIX}KAFKA_ADVERTISED_SERVERS "
                f"or {PREFIX}KAFKA_LISTENERS"
            )
        refuse_unlisted(properties, CONNECTION)
        return value

    @field_validator("kafka_listeners")
    @classmethod
    def _listeners_fit_for_clients(
        cls, value: Secret[dict[str, str | dict[str, str]]]
    ) -> Secret[dict[str, str | dict[str, str]]]:
        for name, given in value.get_secret_value().items():
            if not _LISTENER.fullmatch(name):
                raise ValueError(
                    f"the listener {name!r} needs a name of 1 to 100 letters, digits, '.', '_', '-'"
                )
            properties = _properties(given)
            if not properties.get("bootstrap.servers"):
                raise ValueError(f"the listener {name!r} has no bootstrap.servers")
            refuse_unlisted(properties, CONNECTION)
        return value

    @model_validator(mode="after")
    def _one_listener_by_default(self) -> Self:
        names = self.kafka_listeners.get_secret_value()
        default = self.kafka_default_listener
        if names and self.kafka_advertised_servers is not None:
            raise ValueError(
                "kafka_advertised_servers and kafka_listeners are both set: put the address into "
                "kafka_listeners"
            )
        if len(names) > 1 and default is None:
            raise ValueError(
                "kafka_default_listener has to say which of kafka_listeners is for clients that "
                f"name none: {', '.join(sorted(names))}"
            )
        if default is not None and default not in names:
            raise ValueError(
                f"kafka_default_listener is {default!r}, and kafka_listeners has "
                f"{', '.join(sorted(names)) or 'none'}"
            )
        return self

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file are set together or not at all")
        return self

    @property
    def listeners(self) -> Listeners:
        """What clients are told of Kafka; without listeners by name it is one, UNNAMED."""
        shared = self.kafka_client_properties.get_secret_value()
        named = self.kafka_listeners.get_secret_value() or {
            UNNAMED: self.kafka_advertised_servers or self.kafka_bootstrap_servers
        }
        return Listeners(
            default=self.kafka_default_listener or next(iter(named)),
            properties={name: {**shared, **_properties(given)} for name, given in named.items()},
        )

    @property
    def tls(self) -> bool:
        """Whether requests come over TLS, ours or a proxy's."""
        return self.tls_by_proxy or self.tls_certificate_file is not None

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the settings; `overrides` (a command line's) go before the environment.

        Raises InvalidSettings naming each variable that is wrong.
        """
        _refuse_typos()
        try:
            return cls(**{name: value for name, value in overrides.items() if value is not None})
        except ValidationError as error:
            raise InvalidSettings(
                "; ".join(
                    _variable(*each["loc"]) + each["msg"].removeprefix("Value error, ")
                    for each in error.errors(include_input=False, include_url=False)
                )
            ) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the call, then from variables, then from files that variables name."""
        return init_settings, env_settings, _Files(settings_cls)


class _Files(PydanticBaseSettingsSource):
    """Secrets in files that `SLUICEWAY_NAME_FILE` names."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        variable = f"{PREFIX}{field_name.upper()}"
        path = os.environ.get(f"{variable}_FILE")
        if field_name not in SECRETS or not path:
            return None, field_name, False
        if os.environ.get(variable):
            raise InvalidSettings(f"{variable} and {variable}_FILE are both set: keep one of them")
        try:
            return Path(path).read_text(encoding="utf-8").rstrip("\r\n"), field_name, False
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSettings(
                f"{variable}_FILE names {path}, which cannot be read: {error}"
            ) from error

    def __call__(self) -> dict[str, Any]:
        found = {
            name: self.get_field_value(field, name)[0]
            for name, field in self.settings_cls.model_fields.items()
        }
        return {name: value for name, value in found.items() if value is not None}


def _properties(listener: str | dict[str, str]) -> dict[str, str]:
    return {"bootstrap.servers": listener} if isinstance(listener, str) else listener


def _variable(*location: int | str) -> str:
    return f"{PREFIX}{str(location[0]).upper()}: " if location else ""


def _refuse_typos() -> None:
    """Raise InvalidSettings for variables that almost are ours; the client has others."""
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    known += [f"{PREFIX}{name.upper()}_FILE" for name in SECRETS]
    known += [PREFIX + name for name in CLIENTS]
    for variable in sorted(os.environ):
        if variable.startswith(PREFIX) and variable not in known:
            near = get_close_matches(variable, known, n=1, cutoff=0.9)
            if near:
                raise InvalidSettings(f"{variable} is not a setting; did you mean {near[0]}?")
