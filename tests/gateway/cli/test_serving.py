"""`sluiceway serve` as a process: limits, interpreter settings, shutdown."""

import gc
import json
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import click
import httpx
import pytest

from databases import Databases
from processes import COMMAND, Process, process
from secured import Authority
from sluiceway_gateway.cli.certificate import Certificate
from sluiceway_gateway.cli.serve import bind, run_server, tuned_interpreter
from sluiceway_gateway.core.settings import Settings

FILES = 256
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
#: More connections than the limit of open files, each with half a request.
CLIENTS = 300
HALF = b"GET /v1/channels HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SETTINGS = {"SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SLUICEWAY_LOG_LEVEL": "warning"}


@pytest.fixture
def database(sqlite: Databases) -> str:
    return sqlite.migrated()


def wait_for_url(running: Process) -> httpx.URL:
    return httpx.URL(running.until(r"serving on (\S+)"))


@pytest.mark.long
def test_more_half_requests_than_open_files_do_not_block_other_clients(
    database: str,
) -> None:
    limited = ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *COMMAND]
    settings = SETTINGS | {"SLUICEWAY_DATABASE_URL": database}
    with process("serve", "--port", "0", command=limited, **settings) as running:
        url = wait_for_url(running)
        assert running.until(r"at most (\d+) connections, not SLUICEWAY_MAX_CONNECTIONS=11000")
        with ExitStack() as held:
            for _ in range(CLIENTS):
                half = held.enter_context(socket.create_connection((url.host, url.port or 0)))
                half.sendall(HALF)
            with httpx.Client(base_url=url, timeout=120) as client:
                assert client.get("/livez").status_code == 200
                assert client.get("/v1/channels").status_code == 200
        running.until("(idle ones are closed for new ones)")
        assert "Too many open files" not in running.text


@pytest.mark.long
def test_a_connection_without_a_tls_handshake_is_closed_early(
    database: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    certificate = authority.issue("gateway")
    tls = {
        "SLUICEWAY_TLS_CERTIFICATE_FILE": str(certificate.file),
        "SLUICEWAY_TLS_KEY_FILE": str(certificate.key_file),
    }
    settings = SETTINGS | tls
    with process("serve", "--port", "0", SLUICEWAY_DATABASE_URL=database, **settings) as running:
        url = wait_for_url(running)
        trusted = ssl.create_default_context(cafile=str(authority.file))
        with socket.create_connection((url.host, url.port or 0), timeout=180) as silent:
            assert httpx.get(url.join("/livez"), verify=trusted, timeout=60).status_code == 200
            started_s = time.monotonic()
            assert silent.recv(1) == b""
            assert time.monotonic() - started_s < 50


def _served(context: ssl.SSLContext, authority: Authority) -> str:
    """Return the common name of the certificate that a server with this context presents."""
    client = ssl.create_default_context(cafile=str(authority.file))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = context.wrap_bio(to_server, to_client, server_side=True)
    connecting = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for _ in range(3):
        for side in (connecting, serving):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    peer: Any = connecting.getpeercert()
    names = dict(name for (name,) in peer["subject"])
    return str(names["commonName"])


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    files = tmp_path / "tls.pem", tmp_path / "tls.key"

    def write(name: str) -> None:
        issued = authority.issue(name)
        for path, content in zip(files, (issued.pem, issued.key), strict=True):
            # As a rotated file of a mounted secret: a new one in its place.
            new = path.with_suffix(".new")
            new.write_text(content)
            new.rename(path)

    write("first")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    certificate = Certificate(context, *files)
    certificate.reload()
    assert _served(context, authority) == "first"
    write("second")
    certificate.reload()
    assert _served(context, authority) == "second"
    files[1].write_text("not a key")
    certificate.reload()
    assert _served(context, authority) == "second"
    files[0].unlink()
    certificate.reload()
    assert _served(context, authority) == "second"
    write("third")
    certificate.reload()
    assert _served(context, authority) == "third"


def test_of_two_gateways_that_bound_an_address_the_second_explains_its_end(
    database: str,
) -> None:
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", first.getsockname()[1]) as second:
        first.listen()
        port = second.getsockname()[1]
        settings = Settings(database_url=database, kafka_bootstrap_servers="127.0.0.1:1", port=port)
        words = rf"cannot listen on 127\.0\.0\.1 port {port} \(Address already in use\)"
        with pytest.raises(click.ClickException, match=words):
            run_server(settings, second, pytest.fail)


def test_serve_shortens_the_switch_interval_and_restores_it() -> None:
    before_s, frozen = sys.getswitchinterval(), gc.get_freeze_count()
    with tuned_interpreter():
        assert sys.getswitchinterval() < before_s / 5
        assert gc.get_freeze_count() > frozen
    assert sys.getswitchinterval() == pytest.approx(before_s)
    assert gc.get_freeze_count() == 0


def _create_unprovisioned(url: str) -> httpx.Response:
    """Create a channel, and return it after its last change, to BrokerUnavailable."""
    channel = httpx.put(f"{url}/v1/channels/one", json={"spec": {"schema": SCHEMA}}, timeout=60)
    while "BrokerUnavailable" not in channel.text:
        seen = {"If-None-Match": channel.headers["ETag"]}
        response = httpx.get(f"{url}/v1/channels/one?wait=60", headers=seen, timeout=480)
        channel = channel if response.status_code == 304 else response
    return channel


def _wait_for_a_change(url: str, channel: httpx.Response) -> httpx.Response:
    return httpx.get(
        f"{url}/v1/channels/one?wait=60",
        headers={"If-None-Match": channel.headers["ETag"]},
        timeout=480,
    )


@pytest.fixture
def _heeds_hangup() -> Iterator[None]:
    """Undo the effect of nohup, under which commands ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.long
@pytest.mark.usefixtures("_heeds_hangup")
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
        signal.SIGTERM,
    ],
)
def test_serve_answers_waiting_requests_before_it_ends(database: str, number: int) -> None:
    # Shutdown waits for calls to Kafka, which does not answer.
    settings = SETTINGS | {"SLUICEWAY_LOG_LEVEL": "info", "SLUICEWAY_KAFKA_TIMEOUT_MS": "200"}
    with process("serve", "--port", "0", SLUICEWAY_DATABASE_URL=database, **settings) as serving:
        url = serving.until(r"serving on (\S+)")
        assert httpx.get(f"{url}/livez", timeout=60).status_code == 200
        ready = httpx.get(f"{url}/readyz", timeout=60)
        assert (ready.status_code, ready.json()["kafka"]) == (503, False)
        channel = _create_unprovisioned(url)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(_wait_for_a_change, url, channel)
            metrics = f"{url}/metrics"
            while "sluiceway_waiting_reads 1.0" not in httpx.get(metrics, timeout=60).text:
                assert not waiting.done()
            assert serving.end(number) == 0
            assert waiting.result(180).status_code == 304, "the request must be answered"
        for line in serving.text.splitlines():
            assert line.startswith("serving on") or json.loads(line)["event"], "logs are JSON lines"
        assert "Traceback" not in serving.text
