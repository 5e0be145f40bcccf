"""The README's Python runs as it stands, against a real gateway."""

import re
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
WRITER_AND_READER = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]


def test_one_writer_one_reader(gateway_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    start = datetime(2013, 1, 1, tzinfo=UTC)
    records = [
        {"carrier": "UA", "flight": n, "at": start + timedelta(hours=n), "delay": n / 2}
        for n in range(20)
    ]
    program = textwrap.dedent(WRITER_AND_READER).replace("http://127.0.0.1:8900", gateway_url)
    exec(compile(program, "README.md", "exec"), {"records": records, "__name__": "readme"})
    # The gateway runs in this process and logs to the same place.
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("UA ")]
    assert sorted(printed) == sorted(f"UA {n / 2}" for n in range(20))
