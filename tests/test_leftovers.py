"""What a killed test run leaves behind ends with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leftovers import clean_up_after

_SLEEP = "import sys, time; print(flush=True); time.sleep(600)"


@pytest.mark.unit
def test_a_killed_runs_processes_and_files_end_with_it(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "data").write_text("rows")
    command = [sys.executable, "-c", _SLEEP]
    environments = [os.environ | {"TMPDIR": str(place)} for place in (directory, tmp_path)]
    left, other = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True)
        for environment in environments
    ]
    with left, other:
        for process in (left, other):
            process.stdout.readline()
        with clean_up_after(str(directory)) as cleaner:
            cleaner.stdin.close()
            assert left.wait(60) == -15
        assert not directory.exists()
        assert other.poll() is None
        other.kill()
