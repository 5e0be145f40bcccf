"""Fixture `sluiceway`: runs commands in the tests' own process."""

import pytest

from processes import Run, Sluiceway, logging_kept
from sluiceway_gateway.cli import main


@pytest.fixture
def sluiceway(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Sluiceway:
    """Return a function that runs a command; keywords are environment variables."""

    def run(*arguments: str, **variables: str) -> Run:
        capsys.readouterr()
        with monkeypatch.context() as patch, logging_kept():
            for name, value in variables.items():
                patch.setenv(f"SLUICEWAY_{name.upper()}", value)
            status = main(arguments)
        written = capsys.readouterr()
        return Run(status=status, out=written.out, err=written.err)

    return run
