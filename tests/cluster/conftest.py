from pathlib import Path

import pytest
from environments import build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, as it would be published."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))
