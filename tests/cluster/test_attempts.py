"""Exactly-once writes of Spark on two executors: retries, lost executors, repeated runs."""

from pathlib import Path

import pytest

from attempts import ROWS, AttemptsJob
from ledger_view import LedgerView
from sluiceway import Gateway
from sluiceway.channel import Channel
from spark_tasks import fill

pytestmark = pytest.mark.long


@pytest.mark.parametrize("fault", ["failing", "killed"])
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_each_record_is_visible_once(
    gateway_url: str, channel: Channel, ledger: LedgerView, run: AttemptsJob, kind: str, fault: str
) -> None:
    with Gateway(gateway_url) as gateway:
        fill(gateway.channel(f"{channel.name}-in"), range(ROWS))

    run(kind, fault)

    assert ledger.ids(channel) == [*range(ROWS)]
    assert ledger.kinds(channel) == ["commit"]
    # The fault happened: there are invisible records of failed attempts.
    assert ledger.messages(channel) > ROWS


def test_a_job_and_a_micro_batch_that_run_again_write_nothing(
    gateway_url: str, channel: Channel, ledger: LedgerView, run: AttemptsJob, tmp_path: Path
) -> None:
    with Gateway(gateway_url) as gateway:
        fill(gateway.channel(f"{channel.name}-in"), range(ROWS, 2 * ROWS))
    for kind in ("batch", "stream"):
        run(kind, "failing")
    written = ledger.messages(channel)
    for note in (tmp_path / "shared" / "checkpoint" / "commits").glob("*0*"):
        note.unlink()

    for kind in ("batch", "stream"):
        run(kind, "failing")

    assert ledger.messages(channel) == written
    assert ledger.ids(channel) == [*range(2 * ROWS)]
    assert ledger.kinds(channel) == ["commit", "commit"]
