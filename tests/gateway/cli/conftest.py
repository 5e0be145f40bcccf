"""Fixtures `sluiceway` and `command`: run commands in the tests' own process."""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import TextIO

import pytest

from processes import Run, Sluiceway, restored_logging
from sluiceway_gateway.cli.entry import main


@pytest.fixture
def sluiceway(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Sluiceway:
    """Return a function that runs a command; other keywords are environment variables.

    Log lines are apart, because gateways of other tests in this process may log meanwhile, too.
    """

    def run(
        *arguments: str, stdin: TextIO | None = None, timeout_s: float = 10.0, **variables: str
    ) -> Run:
        capsys.readouterr()
        with monkeypatch.context() as patch, restored_logging():
            # What the user types, as CliRunner of click sets it.
            patch.setattr(sys, "stdin", stdin or sys.stdin)
            for name, value in variables.items():
                patch.setenv(f"SLUICEWAY_{name.upper()}", value)
            status = main(arguments, timeout_s=timeout_s)
        output = capsys.readouterr()
        lines = output.err.splitlines(keepends=True)
        logs = [json.loads(line) for line in lines if line.startswith("{")]
        err = "".join(line for line in lines if not line.startswith("{"))
        return Run(status=status, out=output.out, err=err, logs=logs)

    return run


@pytest.fixture
def command(sluiceway: Sluiceway, gateway_url: str) -> Callable[..., Run]:
    """Return a function that runs a command with the gateway's URL."""
    return partial(sluiceway, url=gateway_url)
