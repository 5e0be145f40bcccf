import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from sluiceway.spark.worker import ClientPool


class Client:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pool() -> ClientPool[Client]:
    return ClientPool(close=Client.close)


def test_a_client_is_reused_for_its_key(pool: ClientPool[Client]) -> None:
    with pool.borrow("a", Client) as first:
        pass
    with pool.borrow("a", Client) as second, pool.borrow("b", Client) as other:
        assert second is first
        assert other is not first


def test_a_client_has_one_borrower_at_a_time(pool: ClientPool[Client]) -> None:
    with pool.borrow("a", Client) as first, pool.borrow("a", Client) as second:
        assert first is not second


def test_a_failed_borrowers_client_is_closed(pool: ClientPool[Client]) -> None:
    with pytest.raises(KeyError), pool.borrow("a", Client) as failed:
        raise KeyError
    with pool.borrow("a", Client) as next_one:
        assert next_one is not failed

    assert failed.closed


def test_the_longest_unused_of_many_clients_is_closed(pool: ClientPool[Client]) -> None:
    clients = []
    for key in (*range(40), 20):
        with pool.borrow(key, Client) as client:
            clients.append(client)
    assert clients[-1] is clients[20]
    assert [pooled.closed for pooled in clients[:40]] == [True] * 8 + [False] * 32
    with pool.borrow("new", Client):
        pass
    assert clients[8].closed


def test_a_forked_child_never_touches_its_parents_clients(pool: ClientPool[Client]) -> None:
    with pool.borrow("a", Client) as parents:
        pass

    child = os.fork()
    if child == 0:
        with pool.borrow("a", Client) as own:
            fresh = own is not parents
        os._exit(0 if fresh and not parents.closed else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


PREPARED = """
import gc, sys
from sluiceway.spark.worker import prepare_worker

for archive in sys.argv[1:]:
    sys.path.insert(0, archive)
import sparks, mine
before = gc.get_freeze_count()
prepare_worker()
first = gc.get_freeze_count()
prepare_worker()
print(before < gc.get_freeze_count() <= first)
print(sorted(path.rpartition("/")[2] for path in sys.path_importer_cache if ".zip/" in path))
import sparks.late
"""


def prepared(directory: Path, **environment: str) -> list[str]:
    """Return the output of PREPARED, with two archives, in a process with this environment."""
    archives = {"sparks": directory / "pyspark.zip", "mine": directory / "mine.zip"}
    for package, archive in archives.items():
        with ZipFile(archive, "w") as made:
            made.writestr(f"{package}/__init__.py", f"import {package}.part")
            made.writestr(f"{package}/part.py", "")
            made.writestr(f"{package}/late.py", "")
    done = subprocess.run(
        [sys.executable, "-c", PREPARED, *map(str, archives.values())],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=480,
    )
    return done.stdout.splitlines()


@pytest.mark.long
def test_a_prepared_worker_does_not_cache_sparks_archives(tmp_path: Path) -> None:
    assert prepared(tmp_path, SPARK_REUSE_WORKER="1") == ["True", "['mine']"]


@pytest.mark.long
def test_a_process_that_is_not_a_worker_is_unchanged(tmp_path: Path) -> None:
    assert prepared(tmp_path) == ["False", "['mine', 'sparks']"]
