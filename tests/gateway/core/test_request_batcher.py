"""Batcher: waiting requests run together, and each gets its own result."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from faults import no_threads
from sluiceway_gateway.core.errors import DatabaseUnavailable, Unavailable
from sluiceway_gateway.core.request_batcher import Batcher


class Road:
    """Work that blocks until the test releases it, and its requests."""

    def __init__(self) -> None:
        self.taken: list[list[Any]] = []
        self.free = threading.Event()
        self.arrived = threading.Semaphore(0)

    def work(self, asked: Sequence[Any]) -> list[Any]:
        self.taken.append(list(asked))
        self.arrived.release()
        assert self.free.wait(30)
        if "broken" in asked:
            raise ValueError("the whole batch")
        if "away" in asked:
            raise DatabaseUnavailable("it is away")
        return [KeyError(request) if request == "bad" else f"{request}!" for request in asked]

    @staticmethod
    def alone(asked: str) -> str:
        if asked == "broken":
            raise ValueError("this one")
        return f"{asked} alone!"


@pytest.fixture
def road() -> Iterator[Road]:
    road = Road()
    yield road
    road.free.set()


def sent(batcher: "Batcher[Any, Any]", road: Road, *asked: Any) -> "list[Future[Any]]":
    """Have the first be on its way before the others come."""
    first = batcher.submit(asked[0])
    assert road.arrived.acquire(timeout=30)
    futures = [first, *map(batcher.submit, asked[1:])]
    road.free.set()
    return futures


def test_requests_during_a_batch_form_the_next_batch_in_order(road: Road) -> None:
    batcher: Batcher[str, str] = Batcher(road.work, road.alone, name="test", threads=1)
    futures = sent(batcher, road, "a", "b", "c", "d")
    assert [future.result(30) for future in futures] == ["a!", "b!", "c!", "d!"]
    assert road.taken == [["a"], ["b", "c", "d"]]
    # Later requests start a new batch.
    assert batcher.submit("e").result(30) == "e!"
    batcher.close()


def test_requests_of_one_key_are_in_different_batches_in_order(road: Road) -> None:
    batcher: Batcher[str, str] = Batcher(
        road.work, road.alone, name="test", threads=1, key=lambda asked: asked[0]
    )
    futures = sent(batcher, road, "a1", "b1", "c1", "b2", "b3", "d1")
    assert [future.result(30) for future in futures] == ["a1!", "b1!", "c1!", "b2!", "b3!", "d1!"]
    assert road.taken == [["a1"], ["b1", "c1", "d1"], ["b2"], ["b3"]]


def test_heavy_requests_are_spread_over_batches(road: Road) -> None:
    batcher: Batcher[str, str] = Batcher(
        road.work, road.alone, name="test", threads=1, weight=len, most=4
    )
    futures = sent(batcher, road, "a", "bb", "cc", "dddddddd", "e")
    assert futures[-1].result(30) == "e!"
    assert road.taken == [["a"], ["bb", "cc"], ["dddddddd"], ["e"]]


def test_an_error_of_one_request_does_not_affect_the_batch(road: Road) -> None:
    batcher: Batcher[str, str] = Batcher(road.work, road.alone, name="test", threads=1)
    futures = sent(batcher, road, "a", "b", "bad", "c")
    assert [futures[at].result(30) for at in (0, 1, 3)] == ["a!", "b!", "c!"]
    with pytest.raises(KeyError):
        futures[2].result(30)


def test_after_a_failure_of_a_batch_each_request_runs_alone(road: Road) -> None:
    batcher: Batcher[str, str] = Batcher(road.work, road.alone, name="test", threads=1)
    futures = sent(batcher, road, "a", "b", "broken", "c")
    assert [futures[at].result(30) for at in (0, 1, 3)] == ["a!", "b alone!", "c alone!"]
    with pytest.raises(ValueError, match="this one"):
        futures[2].result(30)
    assert batcher.submit("d").result(30) == "d!"


def test_an_unavailable_database_fails_the_whole_batch(road: Road) -> None:
    batcher: Batcher[str, str] = Batcher(road.work, road.alone, name="test", threads=1)
    futures = sent(batcher, road, "a", "b", "away")
    for future in futures[1:]:
        with pytest.raises(DatabaseUnavailable):
            future.result(30)
    assert batcher.submit("c").result(30) == "c!"


def test_a_request_that_waits_for_a_lock_delays_no_other() -> None:
    unlocked = threading.Event()

    def alone(asked: str) -> str:
        assert unlocked.wait(30)
        return f"{asked} at last"

    batcher: Batcher[str, str] = Batcher(
        lambda asked: [None if request == "a" else request for request in asked],
        alone,
        name="test",
        threads=1,
    )
    waiting = batcher.submit("a")
    assert batcher.submit("b").result(30) == "b"
    assert not waiting.done()
    unlocked.set()
    assert waiting.result(30) == "a at last"
    batcher.close()


def test_a_request_cancelled_before_its_batch_is_skipped(road: Road) -> None:
    batcher: Batcher[str, str] = Batcher(road.work, road.alone, name="test", threads=1)
    first = batcher.submit("a")
    assert road.arrived.acquire(timeout=30)
    given_up, last = batcher.submit("b"), batcher.submit("c")
    assert given_up.cancel()
    road.free.set()
    assert (first.result(30), last.result(30)) == ("a!", "c!")
    assert road.taken == [["a"], ["c"]]


def test_all_requests_are_answered_after_a_failure_while_no_thread_can_be_started(
    road: Road,
) -> None:
    batcher: Batcher[str, str] = Batcher(road.work, road.alone, name="test", threads=2)
    with no_threads("test-alone"):
        futures = sent(batcher, road, "a", "b", "broken", "c")
        assert [futures[at].result(30) for at in (0, 1, 3)] == ["a!", "b alone!", "c alone!"]
        with pytest.raises(ValueError, match="this one"):
            futures[2].result(30)
        assert batcher.submit("d").result(30) == "d!"
    batcher.close()


def test_a_work_without_a_response_for_each_request_runs_them_alone(road: Road) -> None:
    batcher: Batcher[str, str] = Batcher(lambda _asked: [], road.alone, name="test", threads=1)
    assert batcher.submit("a").result(30) == "a alone!"
    assert batcher.submit("b").result(30) == "b alone!"
    batcher.close()


def test_once_its_thread_has_ended_no_request_waits_for_ever(road: Road) -> None:
    failures: list[int] = []

    def end(asked: Sequence[str]) -> list[Any]:
        road.work(asked)
        raise SystemExit

    batcher: Batcher[str, str] = Batcher(
        end,
        road.alone,
        name="test",
        threads=1,
        most=1,
        on_pass=lambda _name, in_a_row: failures.append(in_a_row),
    )
    futures = sent(batcher, road, "a", "b", "c")
    for future in futures:
        with pytest.raises(Unavailable, match="'test' has ended"):
            future.result(30)
    with pytest.raises(Unavailable):
        batcher.submit("d").result(30)
    batcher.close()
    assert batcher.failing() == {"test": "ThreadEnded"}
    assert failures == [3]
