"""Fixtures `sluiceway` and `command`: run commands in the tests' own process."""

import json
from collections.abc import Callable

import pytest

from processes import Run, Sluiceway, restored_logging
from sluiceway_gateway.cli import main


@pytest.fixture
def sluiceway(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Sluiceway:
    """Return a function that runs a command; keywords are environment variables.

    Log lines are apart, because gateways of other tests in this process may log meanwhile, too.
    """

    def run(*arguments: str, **variables: str) -> Run:
        capsys.readouterr()
        with monkeypatch.context() as patch, restored_logging():
            for name, value in variables.items():
                patch.setenv(f"SLUICEWAY_{name.upper()}", value)
            status = main(arguments)
        output = capsys.readouterr()
        lines = output.err.splitlines(keepends=True)
        logs = [json.loads(each) for each in lines if each.startswith("{")]
        err = "".join(each for each in lines if not each.startswith("{"))
        return Run(status=status, out=output.out, err=err, logs=logs)

    return run


@pytest.fixture
def command(sluiceway: Sluiceway, gateway_url: str) -> Callable[..., Run]:
    """Return a function that runs a command with the gateway's URL."""
    return lambda *arguments: sluiceway(*arguments, url=gateway_url)
