"""Failover between two gateway processes on one PostgreSQL and one Kafka."""

import signal
from contextlib import ExitStack, closing

import psutil
import pytest

from databases import Postgres
from faults import suspended
from processes import Process, process
from shared_kafka import SharedKafka
from sluiceway import Gateway
from sluiceway_gateway.core.db import leases
from sluiceway_gateway.core.db.engine import Database
from waiting import until

LEASE_MS = 2_000
SERVING = r"serving on (\S+)"
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


@pytest.mark.long
def test_another_replica_takes_over_from_a_leader_that_hangs_dies_or_stops(
    kafka: SharedKafka, postgres: Postgres
) -> None:
    url = postgres.migrated()
    variables = {
        "SLUICEWAY_DATABASE_URL": url,
        "SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "SLUICEWAY_LEASE_MS": str(LEASE_MS),
    }
    with ExitStack() as stack:

        def replica() -> Process:
            return stack.enter_context(process("serve", "--port", "0", **variables))

        two = [replica(), replica()]
        fail_over(url, two, signal.SIGSTOP)
        # The suspended replica leads again.
        last = fail_over(url, two, signal.SIGKILL)
        fail_over(url, [last, replica()], signal.SIGTERM)


def fail_over(url: str, replicas: list[Process], number: signal.Signals) -> Process:
    """Send a signal to the leader, wait for its successor, and return that."""
    leader, other = leader_and_other(url, replicas)
    with Gateway(other.until(SERVING)) as gateway, ExitStack() as suspension:
        before = gateway.channel(f"before-{number.name.lower()}", SCHEMA)
        if number == signal.SIGSTOP:
            suspension.enter_context(suspended(psutil.Process(leader.pid)))
        elif number == signal.SIGKILL:
            leader.end(number)
        else:
            # Until the leader resigns, it may create topics.
            leader.send_signal(number)
            until(lambda: leader_and_other(url, replicas)[0] is other)
        # Far longer than the lease, for a busy machine.
        after = gateway.channel(f"after-{number.name.lower()}", SCHEMA, wait_s=60)
        assert leader_and_other(url, replicas)[0] is other
        # A suspended leader notices that it no longer leads.
        suspension.close()
        assert gateway.channel(before.name).status == before.status
        assert gateway.channel(after.name).status == after.status
    return other


def leader_and_other(url: str, replicas: list[Process]) -> tuple[Process, Process]:
    """Return the leader and the other replica."""
    with closing(Database(url)) as database:

        def current() -> leases.Lease | None:
            with database.read() as tx:
                return leases.current(tx, "reconcile")

        lease = until(current)
    pid = int(lease.holder.split(":")[1])
    (leader,) = [replica for replica in replicas if replica.pid == pid]
    (other,) = [replica for replica in replicas if replica.pid != pid]
    return leader, other
