from pathlib import Path

import pytest

from environments import build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built once."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))
