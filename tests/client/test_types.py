"""Types of the client, checked as strictly as mypy can."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_readers_return_records_of_their_class(tmp_path: Path) -> None:
    program = Path(__file__).with_name("typed_program.py")
    # Without the configuration of this repository.
    config, cache = tmp_path / "mypy.ini", tmp_path / "cache"
    config.write_text("[mypy]\nstrict = True\nignore_missing_imports = True\n")
    options = ["--config-file", str(config), "--cache-dir", str(cache)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(program)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
