"""Spark over passwords and TLS: batch and streaming work, and no secret is left anywhere."""

import os
import subprocess
import sys
from pathlib import Path

from secured_gateway import SecuredGateway
from secured_kafka import PASSWORDS, SecuredKafka

from sluiceway_gateway.demo.spark_home import spark_home

PROGRAM = Path(__file__).parent / "spark_program.py"


def test_spark_works_over_tls_and_leaves_no_secret(
    environment: SecuredGateway, secured: SecuredKafka, tmp_path: Path
) -> None:
    directory = tmp_path / "spark"
    directory.mkdir()
    variables = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home(tmp_path / "home")),
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(directory)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stderr
    assert "sum 499500" in done.stdout
    assert "streamed 1000" in done.stdout
    texts = {"output": done.stdout, "errors and logs": done.stderr}
    texts["the gateway's log"] = environment.log_path.read_text()
    written = [path for path in directory.rglob("*") if path.is_file()]
    assert {"events", "checkpoint"} <= {path.relative_to(directory).parts[0] for path in written}
    texts |= {str(path): path.read_bytes().decode("latin-1") for path in written}
    assert "DEBUG" in texts["errors and logs"]
    token = Path(os.environ["SLUICEWAY_TOKEN_FILE"]).read_text()
    secrets = {**PASSWORDS, "token": token, "key": secured.client.key.splitlines()[1]}
    leaks = [(name, place) for name, it in secrets.items() for place in texts if it in texts[place]]
    assert leaks == []
