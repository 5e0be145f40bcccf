"""Configuration of pypz channels: settings, names and loggers."""

import difflib
import hashlib
import logging
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from sluiceway.errors import OptionError
from sluiceway.spi import OnLostWriter

_OWN = frozenset({"logLevel", "metricsEnabled", "onLostWriter", "deleteUnread"})
_CONNECTION = {
    "client_id": "client.id",
    "reconnect_backoff_max_ms": "reconnect.backoff.max.ms",
    "reconnect_backoff_ms": "reconnect.backoff.ms",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_password": "sasl.password",
    "sasl_plain_username": "sasl.username",
    "security_protocol": "security.protocol",
}
_CONSUMER = {
    "fetch_max_bytes": "fetch.max.bytes",
    "fetch_max_wait_ms": "fetch.wait.max.ms",
    "fetch_min_bytes": "fetch.min.bytes",
    "max_partition_fetch_bytes": "max.partition.fetch.bytes",
}
_PRODUCER = {
    "batch_size": "batch.size",
    "compression_type": "compression.type",
    "linger_ms": "linger.ms",
    "retry_backoff_ms": "retry.backoff.ms",
}
_WITHOUT_EFFECT = frozenset(
    {
        *("acks", "api_version", "api_version_auto_timeout_ms", "auto_commit_interval_ms"),
        *("auto_offset_reset", "bootstrap_servers", "bootstrap_topics_filter", "buffer_memory"),
        *("check_crcs", "connections_max_idle_ms", "consumer_timeout_ms"),
        *("default_offset_commit_callback", "enable_auto_commit", "exclude_internal_topics"),
        *("group_id", "heartbeat_interval_ms", "key_deserializer", "key_serializer"),
        *("legacy_iterator", "max_block_ms", "max_in_flight_requests_per_connection"),
        *("max_poll_interval_ms", "max_request_size", "metadata_max_age_ms"),
        *("metric_group_prefix", "metric_reporters", "metrics_num_samples"),
        *("metrics_sample_window_ms", "partition_assignment_strategy", "partitioner"),
        *("receive_buffer_bytes", "request_timeout_ms", "retries", "sasl_kerberos_domain_name"),
        *("sasl_kerberos_service_name", "sasl_oauth_token_provider", "selector"),
        *("send_buffer_bytes", "sock_chunk_buffer_count"),
        *("sock_chunk_bytes", "socket_options", "ssl_cafile", "ssl_certfile"),
        *("ssl_check_hostname", "ssl_ciphers", "ssl_context", "ssl_crlfile", "ssl_keyfile"),
        *("ssl_password", "value_deserializer", "value_serializer"),
    }
)
_KNOWN = frozenset(
    {
        *(*_OWN, *_CONNECTION, *_CONSUMER, *_PRODUCER, *_WITHOUT_EFFECT),
        *("max_poll_records", "session_timeout_ms"),
    }
)
_MIN_PATIENCE_MS = 300


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """Settings of a reader; `kafka` has librdkafka's properties."""

    max_poll_records: int = 1
    on_lost_writer: OnLostWriter = "raise"
    delete_unread: bool = False
    session_timeout_ms: int | None = None
    kafka: Mapping[str, object] = field(default_factory=dict)

    def patience_s(self, heartbeat_timeout_ms: int) -> float | None:
        """Return the reader's patience within its channel's bounds; None: the channel's timeout."""
        if self.session_timeout_ms is None:
            return None
        return min(max(_MIN_PATIENCE_MS, self.session_timeout_ms), heartbeat_timeout_ms) / 1000


def reader_settings(
    configuration: Mapping[str, Any], warn: Callable[[str], object]
) -> ReaderSettings:
    """Read a reader's configuration; `warn` gets keys without effect. Raises OptionError."""
    _check_keys(configuration, warn)
    most = configuration.get("max_poll_records", 1)
    if type(most) is not int or most < 1:
        raise OptionError(f"max_poll_records is {most!r}; it takes a number from 1")
    timeout_ms = configuration.get("session_timeout_ms")
    if timeout_ms is not None and (type(timeout_ms) is not int or timeout_ms < 1):
        raise OptionError(f"session_timeout_ms is {timeout_ms!r}; it takes a number from 1")
    lost = configuration.get("onLostWriter", "raise")
    if lost not in ("raise", "wait", "go_on"):
        raise OptionError(f"onLostWriter is {lost!r}; it takes 'raise', 'wait' or 'go_on'")
    return ReaderSettings(
        max_poll_records=most,
        on_lost_writer=cast("OnLostWriter", lost),
        delete_unread=flag(configuration, "deleteUnread"),
        session_timeout_ms=timeout_ms,
        kafka=_translated(configuration, _CONNECTION | _CONSUMER),
    )


def writer_properties(
    configuration: Mapping[str, Any], warn: Callable[[str], object]
) -> dict[str, object]:
    """Return librdkafka's properties of a writer; `warn` as in `reader_settings`."""
    _check_keys(configuration, warn)
    return _translated(configuration, _CONNECTION | _PRODUCER)


def flag(configuration: Mapping[str, Any], key: str) -> bool:
    """Return a setting that is True or False. Raises OptionError."""
    value = configuration.get(key, False)
    if not isinstance(value, bool):
        raise OptionError(f"{key} is {value!r}; it takes True or False")
    return value


def _translated(configuration: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, object]:
    return {
        names[key]: "none" if key == "compression_type" and value is None else value
        for key, value in configuration.items()
        if key in names and (value is not None or key == "compression_type")
    }


def _check_keys(configuration: Mapping[str, Any], warn: Callable[[str], object]) -> None:
    for key in configuration:
        if key in _WITHOUT_EFFECT:
            warn(
                f"channelConfig: {key!r} has no effect: the gateway determines the connection to "
                "Kafka and the guarantees"
            )
        elif key not in _KNOWN:
            close = difflib.get_close_matches(str(key), _KNOWN, n=1)
            advice = f"; did you mean {close[0]!r}?" if close else ""
            warn(f"channelConfig: {key!r} is unknown and has no effect{advice}")


class ChannelLogger:
    """A channel's logger, on top of its port's logger. pypz's loggers take a stack of names.

    With a logger of Python's `logging`, the names precede the message.
    """

    def __init__(self, logger: Any, *context_stack: str) -> None:
        self._logger = logger
        self._context_stack = list(context_stack)

    def get_context_stack(self) -> list[str]:
        """Return the stack of names, outermost first."""
        return self._context_stack

    def set_log_level(self, log_level: str | int) -> None:
        """Set the level of the port's logger."""
        setter = getattr(self._logger, "set_log_level", None) or self._logger.setLevel
        setter(log_level)

    def debug(self, event: str, *args: Any) -> None:
        """Log at the level DEBUG."""
        self._log("debug", event, args)

    def info(self, event: str, *args: Any) -> None:
        """Log at the level INFO."""
        self._log("info", event, args)

    def warning(self, event: str, *args: Any) -> None:
        """Log at the level WARNING."""
        self._log("warning", event, args)

    def error(self, event: str, *args: Any) -> None:
        """Log at the level ERROR."""
        self._log("error", event, args)

    def exception(self, event: str, *args: Any) -> None:
        """Log at the level ERROR, with the current exception."""
        text = event % args if args else event
        self._log("error", f"{text}: {traceback.format_exc()}", ())

    def _log(self, level: str, event: str, args: tuple[Any, ...]) -> None:
        # pypz's loggers accept arguments in different ways, so the message is formatted here.
        text = event % args if args else event
        taking = getattr(self._logger, f"_{level}", None)
        if callable(taking):
            taking(text, self._context_stack)
        else:
            getattr(self._logger, level)("%s: %s", " | ".join(self._context_stack), text)


def level_of(name: object) -> int:
    """Return a configured log level. Raises OptionError."""
    levels = logging.getLevelNamesMapping()
    if isinstance(name, str) and name.upper() in levels:
        return levels[name.upper()]
    if type(name) is int:
        return name
    close = difflib.get_close_matches(str(name).upper(), levels, n=1)
    raise OptionError(
        f"logLevel is {name!r}; it takes {', '.join(levels)}"
        + (f": did you mean {close[0]!r}?" if close else "")
    )


_CHANNEL = re.compile(r"(?!sluiceway\.|\.{1,2}\Z)[a-zA-Z0-9._-]{1,200}")
_GROUP = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,249}")
_LONGEST = 180


def channel_name(name: str) -> str:
    """Return the channel's name at the gateway: the same if it is valid there.

    Other names, such as those with spaces, get a hash of the whole name as suffix to stay distinct.
    """
    return name if _CHANNEL.fullmatch(name) else _hashed(name)


def group_name(name: str) -> str:
    """Return the group's name at the gateway, likewise; group names may be any printable text."""
    return name if _GROUP.fullmatch(name) else _hashed(name)


def _hashed(name: str) -> str:
    kept = re.sub(r"[^a-zA-Z0-9._-]", "-", name)[:_LONGEST].lstrip("._-")
    suffix = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{kept.replace('sluiceway.', 'sluiceway-', 1) or 'pypz'}-{suffix}"


__all__ = [
    "ChannelLogger",
    "ReaderSettings",
    "channel_name",
    "flag",
    "group_name",
    "level_of",
    "reader_settings",
    "writer_properties",
]
