"""Records with TLS and passwords: provisioning, writing, reading, and `sluiceway tail`."""

import json
import ssl
from pathlib import Path

import httpx
import pytest

from processes import restored_logging
from secured import PASSWORDS, SecuredGateway, SecuredKafka
from sluiceway import Gateway
from sluiceway.channel import Channel
from sluiceway.errors import InvalidRequest, KafkaAccessFailed, OptionError, Unauthenticated
from sluiceway_gateway.cli import main

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
RECORDS = [{"a": number} for number in range(100)]


def write_and_read(channel: Channel) -> list[dict[str, int]]:
    """Write the records, and return all records of the channel."""
    with channel.writer() as writer:
        writer.write(RECORDS)
    with channel.reader(until="now") as reader:
        return sorted(reader, key=lambda record: record["a"])


@pytest.mark.long
def test_the_environment_alone_is_enough_to_read_records(
    environment: SecuredGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    with Gateway() as gateway:
        assert gateway.url.startswith("https://")
        channel = gateway.channel("by-environment", SCHEMA, partitions=2)
        assert write_and_read(channel) == RECORDS
        connection = channel.connection("read")
    assert connection.kafka["security.protocol"] == "SASL_SSL"
    assert PASSWORDS["job"] not in repr(connection)
    capsys.readouterr()
    with restored_logging():
        assert main(["tail", "by-environment", "--no-follow"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted((json.loads(line) for line in lines), key=lambda record: record["a"]) == RECORDS


@pytest.mark.long
def test_a_client_chooses_the_listener(
    environment: SecuredGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gateway(listener="mutual") as gateway:
        channel = gateway.channel("by-certificate", SCHEMA)
        assert channel.connection("read").kafka["security.protocol"] == "SSL"
        assert write_and_read(channel) == RECORDS
    monkeypatch.setenv("SLUICEWAY_LISTENER", "side")
    with Gateway() as gateway:
        channel = gateway.channel("by-certificate")
        words = "There is no listener 'side'; this gateway has mutual, own, scram"
        with pytest.raises(InvalidRequest, match=words):
            channel.connection("read")
    with Gateway(listener="scram") as gateway:
        assert gateway.channel("by-certificate").connection("read").kafka["sasl.username"] == "job"


@pytest.mark.long
def test_a_client_may_have_its_own_password(
    environment: SecuredGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    credentials = {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "job",
        "sasl.password": PASSWORDS["job"],
    }
    with Gateway(listener="own") as gateway:
        channel = gateway.channel("by-own-password", SCHEMA)
        assert "sasl.password" not in channel.connection("write").kafka
        with pytest.raises(OptionError, match="SLUICEWAY_KAFKA_CREDENTIALS"):
            channel.writer()
        with channel.writer(config=credentials) as writer:
            writer.write({"a": -1})
        with channel.reader(until="now", config=credentials) as reader:
            assert list(reader) == [{"a": -1}]
        path = tmp_path / "credentials.json"
        path.write_text(json.dumps(credentials))
        monkeypatch.setenv("SLUICEWAY_KAFKA_CREDENTIALS_FILE", str(path))
        assert write_and_read(channel) == [{"a": -1}, *RECORDS]
        path.write_text(json.dumps(credentials | {"sasl.password": "rotated"}))
        with pytest.raises(KafkaAccessFailed, match=r"check sasl\.username"):
            channel.writer()


def test_a_running_job_uses_a_replaced_token(
    environment: SecuredGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "rotated"
    first = environment.token("admin")
    path.write_text(first)
    monkeypatch.setenv("SLUICEWAY_TOKEN_FILE", str(path))
    with Gateway() as gateway:
        channel = gateway.channel("rotated", SCHEMA)
        path.write_text(environment.token("admin") + "\n")
        environment.revoke(first)
        assert channel.refresh().name == "rotated"
        path.write_text(first)
    with Gateway() as gateway, pytest.raises(Unauthenticated):
        gateway.channel("rotated")


@pytest.mark.long
def test_the_response_with_credentials_is_not_cacheable(
    environment: SecuredGateway, secured: SecuredKafka
) -> None:
    with Gateway() as gateway:
        gateway.channel("uncached", SCHEMA)
    response = httpx.get(
        f"{environment.url}/v1/channels/uncached/connection",
        params={"access": "read"},
        headers={"Authorization": f"Bearer {environment.token('admin')}"},
        verify=ssl.create_default_context(cafile=environment.ca_file),
        timeout=60,
    )
    assert response.headers["cache-control"] == "no-store"
    assert response.json()["kafka"] == secured.scram("job")
