"""Exactly-once writes of Spark whose driver is killed."""

from datetime import UTC, datetime, timedelta

import pytest

from attempts import ROWS, AttemptsJob
from ledger_view import LedgerView
from sluiceway import Gateway
from sluiceway.channel import Channel
from sluiceway.rest.ledger_models import DEFAULT_LEASE_MS, BatchRequest
from spark_tasks import fill
from waiting import until

pytestmark = pytest.mark.long


def keep_open(ledger: LedgerView, channel: Channel, run: AttemptsJob) -> None:
    """Renew the lease of the batch of a killed query for the time of the test."""
    (found,) = ledger.calls.commits(channel.name).open
    instance = run.instance()
    request = BatchRequest(
        channel=channel.name,
        uid=channel.uid,
        key=found.key,
        owner=found.owner,
        instance=instance,
        takeover=True,
        ordinal=0,
    )
    batch = ledger.calls.open(request)
    leases = ledger.calls.renew(
        channel.name, {batch.id: instance}, uid=channel.uid, lease_ms=3_600_000
    )
    assert leases[batch.id].is_open


def test_a_job_whose_driver_was_killed_is_written_once_by_its_key(
    channel: Channel, ledger: LedgerView, run: AttemptsJob
) -> None:
    with run.holding("batch"):
        status, output = run.outcome("batch", "held")
        assert status != 0
        assert "The batch 'held' is open in another instance" in output
        assert "Wait until it ends, or stop that job" in output
        assert ledger.open_keys(channel) == ["held"]
        killed = datetime.now(UTC)

    until(lambda: not ledger.open_keys(channel))
    (reaped,) = ledger.calls.commits(channel.name).events
    assert reaped.at - killed < 4 * timedelta(milliseconds=DEFAULT_LEASE_MS)
    assert ledger.messages(channel) > 0
    assert ledger.ids(channel) == []
    run("batch", "held")

    assert ledger.ids(channel) == [*range(ROWS)]
    assert ledger.kinds(channel) == ["reap", "commit"]


def test_a_query_whose_driver_was_killed_goes_on_at_once(
    gateway_url: str, channel: Channel, ledger: LedgerView, run: AttemptsJob
) -> None:
    with Gateway(gateway_url) as gateway:
        fill(gateway.channel(f"{channel.name}-in"), range(ROWS))
    with run.holding("stream"):
        (held,) = ledger.open_keys(channel)
    keep_open(ledger, channel, run)
    written = ledger.messages(channel)

    run("stream", "held")

    assert written > 0
    assert ledger.ids(channel) == [*range(ROWS)]
    assert [event.key for event in ledger.calls.commits(channel.name).events] == [held] * 2
    assert ledger.kinds(channel) == ["abort", "commit"]
