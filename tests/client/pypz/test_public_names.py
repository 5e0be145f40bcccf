"""docs/coming-from.md has every public name of sluiceway.pypz, with a test that uses it."""

import re
from pathlib import Path

import pytest

from sluiceway.pypz import (
    ChannelStatusMessage,
    ChannelStatusMonitor,
    KafkaChannelReader,
    KafkaChannelWriter,
)

ROOT = Path(__file__).parents[3]
CLASSES = (KafkaChannelReader, KafkaChannelWriter, ChannelStatusMonitor, ChannelStatusMessage)
#: Names for the package's own use.
OWN = {"set_health"}
NAMES = {name for kind in CLASSES for name in dir(kind) if not name.startswith("_")} - OWN
#: The part that the page abbreviates as `…`, as in `…_and_not_closed`.
PREFIX = "is_any_connected_channel_healthy"


def section() -> list[str]:
    text = (ROOT / "docs" / "coming-from.md").read_text()
    begin = text.index("### pypz's own ports, on channels of a gateway")
    end = re.search(r"\n##+ ", text[begin + 1 :])
    return re.findall(r"^\| .*`tests/.*$", text[begin : begin + end.start() if end else None], re.M)


def named(row: str) -> set[str]:
    quoted = re.findall(r"`([^`]+)`", row.rpartition(" | `tests/")[0])
    words = [text.replace("…", PREFIX) if text.startswith("…_and") else text for text in quoted]
    return {word for text in words for word in re.findall(r"\w+", text)} & NAMES


def test_every_public_name_has_a_row() -> None:
    shown = {name for row in section() for name in named(row)}
    assert NAMES - shown == set()


@pytest.mark.parametrize("row", section(), ids=lambda row: row.split("`")[1][:40])
def test_the_test_of_a_row_uses_its_names(row: str) -> None:
    path = re.search(r"`(tests/[\w/]+\.py)::", row)
    assert path
    used = (ROOT / path[1]).read_text() + (ROOT / "tests/support/pypz_rig.py").read_text()
    indirect = {"ControlLoopExceptionTimeoutInMs", "MetricsBufferLength", "ParamKeyLogLevel"}
    indirect |= {"ParamKeyMetricsEnabled", "StatusConsumerTimeoutInMs", "ValidPatienceTimeInMs"}
    assert {name for name in named(row) - indirect if name not in used} == set()


def test_every_public_name_of_pypz_exists() -> None:
    from pypz.core.channels.io import ChannelReader, ChannelWriter
    from pypz.core.channels.status import ChannelStatusMonitor as TheirMonitor

    for theirs, ours in (
        (ChannelReader, KafkaChannelReader),
        (ChannelWriter, KafkaChannelWriter),
        (TheirMonitor, ChannelStatusMonitor),
    ):
        assert {name for name in dir(theirs) if not name.startswith("_")} <= set(dir(ours))
