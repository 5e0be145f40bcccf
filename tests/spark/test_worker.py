import os
import subprocess
import sys

import pytest

from sluiceway.spark.worker import ClientPool


class Client:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pool() -> ClientPool[Client]:
    return ClientPool(close=Client.close)


def test_a_client_is_kept_for_the_next_borrower_of_its_key(pool: ClientPool[Client]) -> None:
    with pool.borrow("a", Client) as first:
        pass
    with pool.borrow("a", Client) as second, pool.borrow("b", Client) as other:
        assert second is first
        assert other is not first


def test_a_client_has_one_borrower_at_a_time(pool: ClientPool[Client]) -> None:
    with pool.borrow("a", Client) as first, pool.borrow("a", Client) as second:
        assert first is not second


def test_the_client_of_a_borrower_that_failed_is_closed(pool: ClientPool[Client]) -> None:
    with pytest.raises(KeyError), pool.borrow("a", Client) as failed:
        raise KeyError
    with pool.borrow("a", Client) as next_one:
        assert next_one is not failed

    assert failed.closed


def test_a_forked_child_never_touches_its_parents_clients(pool: ClientPool[Client]) -> None:
    with pool.borrow("a", Client) as parents:
        pass

    child = os.fork()
    if child == 0:
        with pool.borrow("a", Client) as own:
            fresh = own is not parents
        pool.close()
        os._exit(0 if fresh and own.closed and not parents.closed else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_closing_ends_the_idle_clients(pool: ClientPool[Client]) -> None:
    with pool.borrow("a", Client) as client:
        pool.close()
        assert not client.closed
    pool.close()

    assert client.closed


SETTLED = """
import gc, sys, zipimport
from sluiceway.spark.worker import settle

sys.path.append("/nowhere/spark-core.jar")
sys.path_importer_cache["/nowhere/spark-core.jar"] = None
settle()
first = gc.get_freeze_count()
settle()
print([path for path in sys.path if path.endswith(".jar")], first > 0)
print(gc.get_freeze_count() <= first, "/nowhere/spark-core.jar" in sys.path_importer_cache)
"""


def settled(**environment: str) -> list[str]:
    """Return what SETTLED prints in a process with this environment."""
    done = subprocess.run(
        [sys.executable, "-c", SETTLED],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_a_settled_worker_has_no_jars_to_import_from_and_its_modules_are_no_garbage() -> None:
    assert settled(SPARK_REUSE_WORKER="1") == ["[] True", "True False"]


def test_a_process_that_is_no_worker_of_sparks_is_left_as_it_is() -> None:
    assert settled() == ["['/nowhere/spark-core.jar'] False", "True True"]
