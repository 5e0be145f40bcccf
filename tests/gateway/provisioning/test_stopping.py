"""Stopping the background loops."""

import threading
import time
from contextlib import closing

from faults import at_call
from sluiceway_gateway.core.clock import system_clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.leases import Leader
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.loops import Loops

TIMEOUT_S = 1.5


def test_the_time_limit_to_stop_applies_to_all_loops_together(
    database: Database, database_url: str
) -> None:
    entered, released = threading.Semaphore(0), threading.Event()

    def hold(_: Leader) -> None:
        entered.release()
        released.wait(60)

    before = set(threading.enumerate())
    with (
        # The only call that all loops make, so that all are busy at the same time.
        at_call(Leader, "leads", hold),
        closing(KafkaAdmin("127.0.0.1:1", {}, timeout_s=0.1)) as kafka,
    ):
        loops = Loops(
            database=database,
            kafka=kafka,
            settings=Settings(database_url=database_url),
            clock=system_clock,
        )
        loops.start()
        try:
            running = [thread for thread in threading.enumerate() if thread not in before]
            assert len(running) > 4
            for _ in running:
                assert entered.acquire(timeout=60)
            begun_s = time.monotonic()
            assert not loops.stop(TIMEOUT_S)
            # One after the other, each would take the time.
            assert time.monotonic() - begun_s < 0.9 * len(running) * TIMEOUT_S
        finally:
            released.set()
        assert loops.stop()
