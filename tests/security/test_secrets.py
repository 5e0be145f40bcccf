"""Debug logs, and tracebacks with locals, contain no tokens and passwords."""

import ctypes
import io
import json
import logging
import os
import pickle
import re
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.traceback import Traceback

from scripted_gateway import scripted
from secured import PASSWORDS, SecuredGateway, SecuredKafka
from sluiceway import Gateway, aio, confluent
from sluiceway.api.models import Connection
from sluiceway.channel import Channel
from sluiceway.confluent.admin import AdminClient as FacadeAdminClient
from sluiceway.errors import (
    CorruptMessage,
    GatewayUnavailable,
    IncompatibleGateway,
    InvalidRecord,
    KafkaAccessFailed,
    KafkaUnavailable,
    OptionError,
    SluicewayError,
    Unauthenticated,
)
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.errors import create_client
from sluiceway.reader import ChannelReader
from sluiceway.schema import Schema
from sluiceway.spark.batch_reader import ChannelDataReader
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.types import struct_of
from sluiceway.spark.worker import RefreshableConnection
from sluiceway.writer import ChannelWriter
from topics import connection_to
from waiting import until

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
RECORDS = [{"a": number} for number in range(100)]
SECRET = "hush-6c1f"
"""An invalid secret, for calls that fail because of it."""


def secrets(kafka: SecuredKafka) -> list[str]:
    """Return all secrets except for tokens."""
    key_lines = kafka.client.key.splitlines()[1:-1]
    return [*PASSWORDS.values(), *key_lines]


def write_and_read(channel: Channel) -> None:
    with channel.writer() as writer:
        writer.write(RECORDS)
    with channel.reader(until="now") as reader:
        assert len(list(reader)) == len(RECORDS)


@pytest.mark.long
def test_http_at_debug_shows_no_secret(
    environment: SecuredGateway,
    secured: SecuredKafka,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log has method, URL, and the response's status and headers, but no request headers."""
    refused = environment.token("admin")
    environment.revoke(refused)
    tokens = [Path(os.environ["SLUICEWAY_TOKEN_FILE"]).read_text(), refused]
    caplog.set_level(logging.DEBUG)
    with Gateway() as gateway:
        write_and_read(gateway.channel("logged-http", SCHEMA))
    monkeypatch.delenv("SLUICEWAY_TOKEN_FILE")
    monkeypatch.setenv("SLUICEWAY_TOKEN", refused)
    with Gateway() as gateway, pytest.raises(Unauthenticated):
        gateway.channel("logged-http")

    assert "send_request_headers.started request=<Request [b'GET']>" in caplog.text
    assert "HTTP Request: GET https://" in caplog.text
    assert " 401 " in caplog.text
    for place in (caplog.text, environment.process.text):
        assert [secret for secret in (*tokens, *secrets(secured)) if secret in place] == []


@pytest.mark.sample
@pytest.mark.parametrize("listener", ["scram", "mutual"])
def test_librdkafka_at_debug_shows_no_secret(
    environment: SecuredGateway,
    secured: SecuredKafka,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    listener: str,
) -> None:
    monkeypatch.setenv("SLUICEWAY_KAFKA_CREDENTIALS", json.dumps({"debug": "all"}))
    caplog.set_level(logging.DEBUG)
    with Gateway(listener=listener) as gateway:
        write_and_read(gateway.channel(f"logged-{listener}", SCHEMA))

    printed = capfd.readouterr()
    output = f"{caplog.text}{printed.out}{printed.err}"
    assert "security.protocol" in output  # the configuration is logged
    assert "[redacted]" in output
    assert [secret for secret in secrets(secured) if secret in output] == []


def test_only_the_process_enables_librdkafkas_debug_log(
    secured: SecuredKafka,
) -> None:
    for kind in (ChannelWriter, reader_to_now):
        with pytest.raises(OptionError, match="'debug' cannot be set"):
            kind(connection_to(secured.scram()), config={"debug": "all"})


def reader_to_now(connection: Connection, **options: Any) -> ChannelReader:
    return ChannelReader(connection, until="now", **options)


# Failing calls and their errors. The calls have no secrets among their locals.
Failure = Callable[[SecuredKafka], object]
BAD = {"sasl_password": SECRET}


def unreachable(secured: SecuredKafka) -> Connection:
    return connection_to(secured.scram(bootstrap_servers="127.0.0.1:1", **BAD))


KAFKA_FAILURES: dict[str, tuple[Failure, type[SluicewayError]]] = {
    "a writer's wrong password": (
        lambda kafka: ChannelWriter(connection_to(kafka.scram(**BAD))),
        KafkaAccessFailed,
    ),
    "a reader's wrong password": (
        lambda kafka: reader_to_now(connection_to(kafka.scram(**BAD))),
        KafkaAccessFailed,
    ),
    "a call's own wrong password": (
        lambda kafka: ChannelWriter(connection_to(kafka.scram()), config={"sasl.password": SECRET}),
        KafkaAccessFailed,
    ),
    "no broker for a writer": (
        lambda kafka: ChannelWriter(unreachable(kafka), timeout_s=1),
        KafkaUnavailable,
    ),
    "no broker for a reader": (
        lambda kafka: reader_to_now(unreachable(kafka), timeout_s=1),
        KafkaUnavailable,
    ),
    "no broker for a task's plan": (
        lambda kafka: spark_reader(unreachable(kafka), pollTimeoutMs="1000").partitions(),
        KafkaUnavailable,
    ),
    "a property that librdkafka refuses": (
        lambda kafka: ChannelWriter(connection_to(kafka.scram(security_protocol="NONE", **BAD))),
        OptionError,
    ),
    "a property that is not allowed": (
        lambda kafka: ChannelWriter(
            connection_to(kafka.scram()), config={"sasl.password": SECRET, "acks": 0}
        ),
        OptionError,
    ),
    "a password of another type": (
        lambda kafka: reader_to_now(
            connection_to(kafka.scram()), config={"sasl.password": SECRET.encode()}
        ),
        OptionError,
    ),
}


def spark_reader(connection: Connection, **options: str) -> ChannelDataReader:
    consumer_options = {f"kafkaConsumer.{name}": value for name, value in options.items()}
    parsed = ReadOptions.parse({"path": connection.channel_name} | consumer_options)
    return ChannelDataReader(
        RefreshableConnection(connection, "read"), parsed, struct_of(Schema.of(SCHEMA).arrow)
    )


@pytest.mark.parametrize("client", [Producer, Consumer, AdminClient])
def test_tracebacks_of_properties_that_librdkafka_refuses_show_no_secret(client: type) -> None:
    own = {"security.protocol": "none", "sasl.password": SECRET, "group.id": "group"}
    properties = MaskedProperties(own)
    with pytest.raises(OptionError, match=r"security\.protocol") as raised:
        create_client(client, properties)
    assert_no_secrets(raised.value, SECRET)


@pytest.mark.parametrize("gateway", [Gateway, aio.Gateway])
def test_tracebacks_of_a_gateways_address_show_no_token(gateway: type) -> None:
    with pytest.raises(OptionError, match="URL") as raised:
        gateway("ftp://gateway", token=SECRET)
    assert_no_secrets(raised.value, SECRET)


class RefusingBuilder:
    """A builder of serializers that refuses the configuration."""

    def build(self, conf: dict[str, Any], is_key: bool) -> Any:
        raise ValueError(f"{len(conf)} properties and {is_key}")


@pytest.mark.parametrize(
    ("client", "config"),
    [
        (confluent.Consumer, {"group.id": "group", "socket.timeout.ms": "soon"}),
        (confluent.Producer, {"linger.ms": "soon"}),
        (confluent.Producer, {"no.such": 1}),
        (FacadeAdminClient, {"no.such": 1}),
        (confluent.SerializingProducer, {"no.such": 1}),
        (confluent.SerializingProducer, {"value.serializer.builder": RefusingBuilder()}),
        (confluent.DeserializingConsumer, {"key.deserializer.builder": RefusingBuilder()}),
    ],
)
def test_tracebacks_of_a_facades_configuration_show_no_secret(
    client: type, config: dict[str, Any]
) -> None:
    config = {"bootstrap.servers": "http://127.0.0.1:1", "sasl.password": SECRET, **config}
    with pytest.raises((KafkaException, ValueError)) as raised:
        client(config)
    assert_no_secrets(raised.value, SECRET)


@pytest.mark.long
@pytest.mark.parametrize("failure", KAFKA_FAILURES)
def test_tracebacks_of_kafka_failures_show_no_secret(secured: SecuredKafka, failure: str) -> None:
    call, kind = KAFKA_FAILURES[failure]
    with pytest.raises(kind) as raised:
        call(secured)
    assert_no_secrets(raised.value, SECRET, *secrets(secured))


@pytest.mark.sample
@pytest.mark.parametrize(
    "text",
    [
        f'{{"sasl.password": "{SECRET}"',
        f'["{SECRET}"]',
        f'{{"sasl.password": "{SECRET}", "acks": 0}}',
        f'{{"sasl.password": ["{SECRET}"]}}',
    ],
)
def test_tracebacks_of_invalid_credentials_show_no_secret(
    secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch, text: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLUICEWAY_KAFKA_CREDENTIALS", text)
    with pytest.raises(OptionError) as raised:
        ChannelWriter(connection_to(secured.tls("SCRAM")))
    assert_no_secrets(raised.value, SECRET)


@pytest.mark.long
def test_tracebacks_of_records_show_no_secret(
    environment: SecuredGateway, secured: SecuredKafka
) -> None:
    with Gateway() as gateway:
        channel = gateway.channel("hidden", SCHEMA)
        connection_of_channel = channel.connection("read")
        with channel.writer() as writer, pytest.raises(InvalidRecord) as invalid:
            writer.write({"a": "no number"})
        producer = Producer(dict(connection_of_channel.kafka))
        producer.produce(connection_of_channel.topic_name, b"not of this channel", partition=0)
        assert producer.flush(30) == 0
        with channel.reader(until="now") as reader, pytest.raises(CorruptMessage) as corrupt:
            list(reader)
        task = pickle.loads(pickle.dumps(spark_reader(connection_of_channel)))  # noqa: S301
        (partition,) = task.partitions()
        with pytest.raises(CorruptMessage) as failed:
            list(task.read(partition))
    for raised in (invalid, corrupt, failed):
        assert_no_secrets(raised.value, *secrets(secured))


INCOMPLETE = json.dumps({"kafka": {"sasl.password": SECRET}, "format": "avro"}).encode()
GATEWAY_FAILURES: dict[str, tuple[bytes | None, type[SluicewayError]]] = {
    "it closes the connection": (None, GatewayUnavailable),
    "its response is not JSON": (INCOMPLETE[:-1], IncompatibleGateway),
    "its response lacks fields": (INCOMPLETE, IncompatibleGateway),
    "its response has another type": (
        json.dumps({"channel": {"sasl.password": SECRET, "name": [SECRET]}}).encode(),
        IncompatibleGateway,
    ),
    "its response has another type after a password": (
        json.dumps(
            {
                "channel": {"name": "flights", "uid": "0" * 32, "generation": 1},
                "format": "avro",
                "schema": {"id": 1, "version": 1, "definition": SCHEMA},
                "topic": {"name": "t", "id": "i", "partitions": 1, "max_message_bytes": 9},
                "kafka": {"sasl.password": SECRET},
                "delivery": 5,
            }
        ).encode(),
        IncompatibleGateway,
    ),
}


@pytest.mark.sample
@pytest.mark.parametrize("failure", GATEWAY_FAILURES)
def test_tracebacks_of_gateway_failures_show_no_secret(
    monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    body, kind = GATEWAY_FAILURES[failure]
    monkeypatch.setenv("SLUICEWAY_TOKEN", f"slw_a_{SECRET}")
    with scripted() as script:
        if body is not None:
            script.response(200, body)
        with pytest.raises(kind) as raised:
            script.control().connection("flights", "read")
    assert_no_secrets(raised.value, SECRET)


def test_tracebacks_of_an_unreachable_gateway_show_no_token() -> None:
    with (
        Gateway("http://127.0.0.1:9", token=f"slw_a_{SECRET}", timeout_s=0.3) as gateway,
        pytest.raises(GatewayUnavailable) as raised,
    ):
        gateway.channel("flights")
    assert_no_secrets(raised.value, SECRET)


@pytest.mark.parametrize("options", [{"token": f"slw {SECRET}"}, {"url": "nowhere"}])
def test_tracebacks_of_invalid_arguments_show_no_token(options: dict[str, str]) -> None:
    with pytest.raises(OptionError) as raised:
        Gateway(**{"token": f"slw_a_{SECRET}", **options})
    assert_no_secrets(raised.value, SECRET)


def test_an_interrupted_request_does_not_keep_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The traceback of an interrupt contains httpx's frames."""
    monkeypatch.setenv("SLUICEWAY_TOKEN", f"slw_a_{SECRET}")
    raised: list[BaseException] = []

    def request(gateway: Gateway) -> None:
        try:
            gateway.channel("flights")
        except KeyboardInterrupt as error:
            raised.append(error)

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with Gateway(f"http://127.0.0.1:{port}") as gateway:
            requesting = threading.Thread(target=request, args=(gateway,))
            requesting.start()
            peer, _ = server.accept()
            with peer:
                identity = requesting.ident or 0
                until(lambda: sys._current_frames()[identity].f_code.co_name == "read")
                # It waits for the response, and is interrupted when the connection ends.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(identity), ctypes.py_object(KeyboardInterrupt)
                )
            requesting.join(60)
    assert any("httpx" in frame.filename for frame in traceback.extract_tb(raised[0].__traceback__))
    assert_no_secrets(raised[0], SECRET)


def test_masked_properties_hide_secrets_only() -> None:
    properties = MaskedProperties({"sasl.username": "job", "sasl.password": SECRET})
    assert repr(properties) == "{'sasl.username': 'job', 'sasl.password': '**********'}"
    assert properties["sasl.password"] == SECRET
    assert pickle.loads(pickle.dumps(properties)) == properties  # noqa: S301


def assert_no_secrets(error: BaseException, *hidden: str) -> None:
    """Assert that an error report with all locals contains no secret."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next  # the frames of this test have the secrets
    assert frames is not None
    error = error.with_traceback(frames)
    plain = "".join(
        traceback.TracebackException.from_exception(error, capture_locals=True).format()
    )
    assert re.search(r"^    \w+ = ", plain, re.MULTILINE)
    rich_text = io.StringIO()
    console = Console(file=rich_text, width=1000)
    shown = Traceback.from_exception(
        type(error),
        error,
        frames,
        show_locals=True,
        locals_max_length=None,
        locals_max_string=None,
        locals_hide_dunder=False,
    )
    console.print(shown)
    for text in (plain, rich_text.getvalue()):
        assert [
            line for line in text.splitlines() if any(secret in line for secret in hidden)
        ] == []
