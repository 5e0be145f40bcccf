"""Journals of chaos jobs: the batches that a job still has to write."""

from pathlib import Path

import pytest
from tests.chaos.journal import Task


@pytest.fixture
def task(tmp_path: Path) -> Task:
    for name in ("journal", "stop"):
        (tmp_path / name).mkdir()
    return Task(
        kind="write",
        name="write",
        url="",
        directory=str(tmp_path),
        delivery="exactly_once",
        channel="direct",
    )


def stop(task: Task) -> None:
    (Path(task.directory) / "stop" / task.kind).touch()


def test_a_batch_is_repeated_until_it_is_committed(task: Task) -> None:
    batches = task.batches()
    assert [next(batches), next(batches)] == [0, 0]

    task.journal.note("committed", "write-0", batch=0)
    assert next(batches) == 1


def test_a_stopping_job_writes_batches_that_another_process_of_it_began(task: Task) -> None:
    batches = task.batches()
    assert next(batches) == 0
    task.journal.note("begun", "write-0", batch=0)
    task.journal.note("committed", "write-0", batch=0)

    # Written by a process that was paused, resumed and killed.
    task.journal.note("begun", "write-1", batch=1)
    stop(task)
    assert next(batches) == 1

    task.journal.note("committed", "write-1", batch=1)
    assert list(batches) == []
