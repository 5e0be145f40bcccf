"""Spark with passwords and TLS: batch jobs and streams work, and leave no secrets."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from processes import spark_environment
from secured import PASSWORDS, SecuredGateway, SecuredKafka
from sluiceway import Gateway

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "spark_program.py"
# Other credentials than those that the gateway returns.
OWN = {"sasl.username": "gateway", "sasl.password": PASSWORDS["gateway"]}
WRONG = "pw-wrong-93ab"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The output of the program, and the directory of its files."""

    output: str
    errors: str
    directory: Path
    token: str


@pytest.fixture(scope="module")
def result(secured_service: SecuredGateway, tmp_path_factory: pytest.TempPathFactory) -> Result:
    parent = tmp_path_factory.mktemp("program")
    directory = parent / "spark"
    directory.mkdir()
    file = parent / "executors.json"
    file.write_text(json.dumps({"good": OWN, "bad": OWN | {"sasl.password": WRONG}}))
    variables = secured_service.environment(parent) | spark_environment(parent)
    process = subprocess.run(
        [sys.executable, str(PROGRAM), str(directory), str(file)],
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
        env=os.environ | variables,
    )
    assert process.returncode == 0, process.stderr
    return Result(
        output=process.stdout,
        errors=process.stderr,
        directory=directory,
        token=Path(variables["SLUICEWAY_TOKEN_FILE"]).read_text(),
    )


def records(channel: str) -> int:
    with Gateway() as gateway, gateway.channel(channel).reader(until="now") as reader:
        return len(list(reader))


def test_spark_works_over_tls(result: Result, environment: SecuredGateway) -> None:
    assert "sum 499500" in result.output
    assert records("by-stream") == 1000


def test_executors_have_their_own_credentials(result: Result, environment: SecuredGateway) -> None:
    assert records("by-own-user") == 1000
    refused = result.output.partition("refused ")[2]
    assert "KafkaAccessFailed" in refused
    assert "check sasl.username, sasl.password" in refused
    assert "spark/writer.py" in refused  # a task's code


def test_spark_leaves_no_secret(
    result: Result, secured_service: SecuredGateway, secured: SecuredKafka
) -> None:
    texts = {"output": result.output, "errors and logs": result.errors}
    texts["the gateway's log"] = secured_service.process.text
    written = [path for path in result.directory.rglob("*") if path.is_file()]
    assert {"events", "checkpoint"} <= {
        path.relative_to(result.directory).parts[0] for path in written
    }
    texts |= {str(path): path.read_bytes().decode("latin-1") for path in written}
    assert "DEBUG" in texts["errors and logs"]
    secrets = {**PASSWORDS, "wrong": WRONG, "token": result.token}
    secrets["key"] = secured.client.key.splitlines()[1]
    leaks = [(name, place) for name, it in secrets.items() for place in texts if it in texts[place]]
    assert leaks == []
