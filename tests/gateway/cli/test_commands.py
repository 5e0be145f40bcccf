import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import structlog
from sqlalchemy import Engine, event

from databases import Databases
from processes import Sluiceway, restored_logging
from scripted_gateway import scripted
from sluiceway_gateway.cli.entry import COMMANDS

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - refused
TOKEN_KEY = "0123456789abcdef" * 2


def test_the_version_is_that_of_the_distribution(sluiceway: Sluiceway) -> None:
    assert sluiceway("--version").out == f"sluiceway {version('sluiceway')}\n"


def test_the_help_lists_every_command(sluiceway: Sluiceway) -> None:
    text = sluiceway("--help").out
    assert all(f"\n  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(sluiceway: Sluiceway, name: str) -> None:
    run = sluiceway(name, "--help")
    assert (run.status, run.err) == (0, "")
    assert run.out.startswith(f"Usage: sluiceway {name}")


@pytest.mark.parametrize("arguments", [(), ("token",), ("channels",)])
def test_a_group_without_a_command_shows_its_help_and_fails(
    sluiceway: Sluiceway, arguments: tuple[str, ...]
) -> None:
    run = sluiceway(*arguments)
    assert run.status == 2
    assert "Usage: sluiceway" in run.err + run.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("chanels",), "No such command 'chanels'"),
        (("channels", "show"), "Missing argument 'NAME'. See `sluiceway channels show --help`."),
        (("channels", "list", "--lable", "a=b"), "--lable"),
        (("tail", "one", "-n", "0"), "'-n'"),
        (("up", "--port", "70000"), "'--port'"),
        (("token", "create", "me"), "Missing option '--scope'"),
        (("token", "create", "me", "--scope", "admin", "--expires-in", "soon"), "write 90s, 45m"),
        (
            ("channels", "create", "a", "--schema", "nowhere.json"),
            "'nowhere.json': No such file or directory. See",
        ),
    ],
)
def test_a_usage_error_is_one_line_with_status_2(
    sluiceway: Sluiceway, arguments: tuple[str, ...], words: str
) -> None:
    sluiceway(*arguments).failed(words, status=2)


@pytest.mark.parametrize("text", ["label", "=x"])
def test_a_label_without_a_value_is_a_usage_error(
    sluiceway: Sluiceway, schema_file: str, text: str
) -> None:
    run = sluiceway("channels", "create", "a", "--schema", schema_file, "--label", text)
    run.failed("is not of the form KEY=VALUE", status=2)


@pytest.fixture
def schema_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("schema") / "schema.json"
    path.write_text('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}')
    return str(path)


@pytest.mark.parametrize(
    "command", [("channels", "list"), ("tail", "one"), ("channels", "show", "a")]
)
def test_an_unreachable_gateway_is_named(sluiceway: Sluiceway, command: tuple[str, ...]) -> None:
    run = sluiceway(*command, "--url", "http://127.0.0.1:1", timeout_s=0.1)
    run.failed("http://127.0.0.1:1 does not answer")


def test_another_server_is_named(sluiceway: Sluiceway, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("metadata: {name: a}\n")
    for command in (("apply", "-f", str(file)), ("export", "a"), ("channels", "show", "a")):
        for body, text in (
            (b"<html>", "did not respond with JSON"),
            (b"{}", "does not understand the gateway's response"),
        ):
            with scripted() as server:
                server.response(200, body)
                sluiceway(*command, url=server.url).failed(text)


def test_an_invalid_setting_is_named(sluiceway: Sluiceway) -> None:
    sluiceway("serve", port="many").failed("SLUICEWAY_PORT")
    sluiceway("migrate", database_url="mysql://x").failed("sqlite:///PATH or postgresql://")


@pytest.mark.sample
def test_migrate_can_be_repeated(sluiceway: Sluiceway, empty_database_url: str) -> None:
    first, second = (sluiceway("migrate", database_url=empty_database_url) for _ in range(2))
    assert first.status == second.status == 0
    assert first.out == second.out
    assert first.out.startswith("the database is at revision ")


def test_serve_needs_a_migrated_database(sluiceway: Sluiceway, empty_database_url: str) -> None:
    sluiceway("serve", database_url=empty_database_url).failed("run `sluiceway migrate`")


def test_a_closed_pipe_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = "import sys; from sluiceway_gateway.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "apply", "--schema"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_under_the_output_is_reported_in_one_line() -> None:
    program = "import sys; from sluiceway_gateway.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "apply", "--schema"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("sluiceway: a file or the output cannot be written: No space")
    assert done.stderr.count("\n") == 1


def test_a_missing_database_is_named_and_not_created(
    sluiceway: Sluiceway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (("serve",), ("token", "list")):
        sluiceway(*arguments, token_key=TOKEN_KEY).failed(
            f"there is no database {tmp_path / 'sluiceway.db'}", "run `sluiceway migrate`"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("postgresql://me:hush@127.0.0.1:1/flights", "Connection refused"),
        ("sqlite:////nowhere/flights.db", "unable to open database file"),
    ],
)
def test_a_database_that_cannot_be_opened_is_reported_with_the_cause(
    sluiceway: Sluiceway, url: str, cause: str
) -> None:
    run = sluiceway("migrate", database_url=url)
    run.failed(cause, "Check SLUICEWAY_DATABASE_URL")
    assert "hush" not in run.err


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.sample
def test_serve_refuses_unsafe_or_used_addresses(
    sluiceway: Sluiceway, database_url: str, used_port: int
) -> None:

    def serve(*arguments: str, **variables: str) -> None:
        return sluiceway("serve", *arguments, database_url=database_url, **variables)

    serve("--host", ANY_ADDRESS).failed("without tokens", "sluiceway token create")
    serve(tls_by_proxy="1").failed("SLUICEWAY_TLS_BY_PROXY", "sluiceway token create")
    serve("--port", str(used_port)).failed(f"port {used_port}", "--port 0")
    created = sluiceway(
        "token", "create", "me", "--scope", "admin", database_url=database_url, token_key=TOKEN_KEY
    )
    assert created.status == 0
    serve().failed("SLUICEWAY_TOKEN_KEY")
    serve("--host", ANY_ADDRESS, token_key=TOKEN_KEY).failed("TLS")
    serve(token_key="x" * 40).failed("another key", "sluiceway token create")


@pytest.mark.sample
def test_tokens_are_created_listed_and_revoked(
    sluiceway: Sluiceway, empty_database_url: str
) -> None:
    def token(*arguments: str) -> object:
        return sluiceway("token", *arguments, database_url=empty_database_url, token_key=TOKEN_KEY)

    token("list").failed("run `sluiceway migrate`")
    sluiceway("migrate", database_url=empty_database_url)
    created = token(
        "create", "--scope", "read:sales.", "--scope", "write", "--expires-in", "90d", "etl job"
    )
    text = created.out.strip()
    assert text.startswith("slw_")
    assert "not shown again" in created.err
    assert text not in created.err
    token_id = text.split("_")[1]
    listed = token("list").out
    for word in (token_id, "etl job", "read:sales. write", "valid"):
        assert word in listed
    assert text.split("_")[2] not in listed
    other_key = {"database_url": empty_database_url, "token_key": "x" * 40}
    assert "of another key" in sluiceway("token", "list", **other_key).out
    replacing = sluiceway("token", "create", "me", "--scope", "admin", **other_key)
    assert "warning: 1 valid token was created with another SLUICEWAY_TOKEN_KEY" in replacing.err
    assert token("revoke", token_id).out == f"token {token_id} is revoked\n"
    assert "revoked" in token("list").out


@pytest.mark.sample
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "me", "--scope", "root"), "'root' is not a scope"),
        (("create", "me", "--scope", "admin", "--expires-in", "0s"), "in the future"),
        (("create", "me", "--scope", "admin", "--expires-in", "999999999d"), "year 9999"),
        (("create", " ", "--scope", "admin"), "label"),
        (("revoke", "0000"), "sluiceway token list"),
    ],
)
def test_an_invalid_token_request_is_explained(
    sluiceway: Sluiceway, database_url: str, arguments: tuple[str, ...], words: str
) -> None:
    run = sluiceway("token", *arguments, database_url=database_url, token_key=TOKEN_KEY)
    run.failed(words)


def test_a_token_needs_a_key(sluiceway: Sluiceway, database_url: str) -> None:
    run = sluiceway("token", "create", "me", "--scope", "admin", database_url=database_url)
    run.failed("SLUICEWAY_TOKEN_KEY")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://a/b?sslmod=require", 'invalid connection option "sslmod"'),
        ("postgresql://a/b?connect_timeout=soon", "connect_timeout: 'soon'"),
        ("sqlite:///a.db?mode=ro", "SQLite takes none"),
    ],
)
def test_a_wrong_parameter_of_a_database_url_is_named(
    sluiceway: Sluiceway, url: str, words: str
) -> None:
    sluiceway("migrate", database_url=url).failed("SLUICEWAY_DATABASE_URL has", words)


def test_a_database_that_cannot_be_written_is_reported_with_the_cause(
    sluiceway: Sluiceway, sqlite: Databases
) -> None:
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        # Tests may run as root, for whom no file is read-only.
        connection.execute("PRAGMA query_only = ON")

    event.listen(Engine, "connect", prepare)
    try:
        run = sluiceway(
            *("token", "create", "me", "--scope", "admin"),
            database_url=sqlite.migrated(),
            token_key=TOKEN_KEY,
        )
    finally:
        event.remove(Engine, "connect", prepare)
    run.failed("attempt to write a readonly database")


def test_a_silent_database_leaves_standard_output_to_the_token(sluiceway: Sluiceway) -> None:
    with socket.socket() as silent, restored_logging():
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        # As in a process of its own.
        structlog.reset_defaults()
        run = sluiceway(
            *("token", "create", "me", "--scope", "admin"),
            database_url=f"postgresql://me@{address}/flights?connect_timeout=2",
            token_key=TOKEN_KEY,
        )
    assert (run.status, run.out) == (1, "")
    assert "accepts no connection in time" in run.err


def test_serve_warns_of_variables_that_it_ignores(
    sluiceway: Sluiceway, empty_database_url: str
) -> None:
    run = sluiceway("serve", database_url=empty_database_url, db_url="x")
    warning = next(entry for entry in run.logs if "variables" in entry)
    assert (warning["level"], warning["variables"]) == ("warning", ["SLUICEWAY_DB_URL"])
