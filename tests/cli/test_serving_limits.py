"""`sluiceway serve` among more connections than its process may open files."""

import resource
import socket
import ssl
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from certificates import Authority
from databases import Databases
from running_commands import Process, process

FILES = 256
#: More than there may be files, and half of a request on each.
CLIENTS = 300
HALF = b"GET /v1/channels HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SETTINGS = {"SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SLUICEWAY_LOG_LEVEL": "warning"}


@pytest.fixture
def database(sqlite: Databases) -> str:
    return sqlite.migrated()


def served(running: Process) -> httpx.URL:
    return httpx.URL(running.until(r"serving on (\S+)"))


def test_half_requests_beyond_the_open_files_keep_nobody_else_out(database: str) -> None:
    with process("serve", "--port", "0", SLUICEWAY_DATABASE_URL=database, **SETTINGS) as running:
        # Long before it looks at it: it has yet to import itself.
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        url = served(running)
        assert running.until(r"at most (\d+) connections, not SLUICEWAY_MAX_CONNECTIONS=11000")
        with ExitStack() as held:
            for _ in range(CLIENTS):
                half = held.enter_context(socket.create_connection((url.host, url.port or 0)))
                half.sendall(HALF)
            with httpx.Client(base_url=url, timeout=20) as client:
                assert client.get("/livez").status_code == 200
                assert client.get("/v1/channels").status_code == 200
        running.until("(idle ones are closed for new ones)")
        assert "Too many open files" not in running.text


def test_a_handshake_that_does_not_come_is_not_awaited_for_long(
    database: str, tmp_path: Path
) -> None:
    authority = Authority.made(tmp_path / "authority", "Tests")
    certificate = authority.issue("gateway")
    tls = {
        "SLUICEWAY_TLS_CERTIFICATE_FILE": str(certificate.file),
        "SLUICEWAY_TLS_KEY_FILE": str(certificate.key_file),
    }
    settings = SETTINGS | tls
    with process("serve", "--port", "0", SLUICEWAY_DATABASE_URL=database, **settings) as running:
        url = served(running)
        trusted = ssl.create_default_context(cafile=str(authority.file))
        with socket.create_connection((url.host, url.port or 0), timeout=30) as silent:
            assert httpx.get(url.join("/livez"), verify=trusted).status_code == 200
            started_s = time.monotonic()
            assert silent.recv(1) == b""
            assert time.monotonic() - started_s < 15
