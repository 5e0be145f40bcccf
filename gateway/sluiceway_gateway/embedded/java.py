"""Finding a Java that can run Kafka and Spark."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from sluiceway_gateway.embedded.errors import JavaMissing

MINIMUM_VERSION = 17
_ADVICE = (
    f"install Java {MINIMUM_VERSION} or newer (Debian and Ubuntu: apt install "
    "openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME to one"
)


def find_java() -> Path:
    """Return the `java` of JAVA_HOME, or else the first one on PATH.

    Raises JavaMissing where there is none, it does not run, or it is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        raise JavaMissing(f"No java was found on PATH: {_ADVICE}.")
    try:
        answer = subprocess.run(
            [found, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissing(f"{found} does not run ({error}): {_ADVICE}.") from error
    version = _major_version(answer.stderr + answer.stdout)
    if version is None or version < MINIMUM_VERSION:
        raise JavaMissing(f"{found} is Java {version or 'of an unknown version'}: {_ADVICE}.")
    return Path(found)


def _major_version(text: str) -> int | None:
    """Read 17 from `version "17.0.15"` and 8 from `version "1.8.0_402"`."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None
