"""Exactly-once writes of Spark on two executors: retries, lost executors, repeated runs."""

import pytest

from attempts import ROWS, AttemptsJob
from ledger_view import LedgerView
from sluiceway import Gateway
from sluiceway.channel import Channel
from spark_tasks import fill

pytestmark = pytest.mark.long

BOTH = "batch,stream"


@pytest.fixture(autouse=True)
def _input(gateway_url: str, channel: Channel) -> None:
    """The input of the stream, whose ids follow those of the batch job."""
    with Gateway(gateway_url) as gateway:
        fill(gateway.channel(f"{channel.name}-in"), range(ROWS, 2 * ROWS))


@pytest.mark.parametrize("fault", ["failing", "killed"])
def test_each_record_is_visible_once(
    channel: Channel, ledger: LedgerView, run: AttemptsJob, fault: str
) -> None:
    run(BOTH, fault)

    assert ledger.ids(channel) == [*range(2 * ROWS)]
    assert ledger.kinds(channel) == ["commit", "commit"]
    # The fault happened in both: there are invisible records of failed attempts.
    assert run.messages("batch") > ROWS
    assert run.messages("stream") - run.messages("batch") > ROWS


def test_a_job_and_a_micro_batch_that_run_again_write_nothing(
    channel: Channel, ledger: LedgerView, run: AttemptsJob
) -> None:
    run(BOTH, "failing")
    written = ledger.messages(channel)
    for note in (run.shared / "stream" / "checkpoint" / "commits").glob("*0*"):
        note.unlink()

    run(BOTH, "failing")

    assert ledger.messages(channel) == written
    assert ledger.ids(channel) == [*range(2 * ROWS)]
    assert ledger.kinds(channel) == ["commit", "commit"]
