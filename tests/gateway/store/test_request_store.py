import threading
from datetime import UTC, datetime, timedelta

import pytest

from sluiceway_gateway.domain.errors import IdempotencyKeyReused
from sluiceway_gateway.domain.request import REMEMBERED_FOR, Answer, Request
from sluiceway_gateway.store import requests
from sluiceway_gateway.store.engine import Database

NOW = datetime(2030, 1, 1, tzinfo=UTC)
REQUEST = Request(key="k", principal="p", digest="d")
ANSWER = Answer(status=201, headers={"ETag": '"x"'}, body='{"a":"é"}')


def give(database: Database, request: Request = REQUEST, now: datetime = NOW) -> Answer | None:
    """Answer the request, unless it was answered."""
    with database.write() as tx:
        kept = requests.claim(tx, request, now)
        if kept is None:
            requests.settle(tx, request, ANSWER)
        return kept


def test_a_repeat_gets_the_answer_of_the_first(database: Database) -> None:
    assert give(database) is None
    assert give(database) == ANSWER


def test_a_key_belongs_to_its_principal(database: Database) -> None:
    assert give(database) is None
    assert give(database, Request(key="k", principal="q", digest="e")) is None


def test_a_key_used_for_something_else_is_refused(database: Database) -> None:
    give(database)
    with pytest.raises(IdempotencyKeyReused):
        give(database, Request(key="k", principal="p", digest="other"))


def test_a_request_that_failed_leaves_its_key_free(database: Database) -> None:
    def fail() -> None:
        with database.write() as tx:
            requests.claim(tx, REQUEST, NOW)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert give(database) is None


def test_answers_are_forgotten_after_their_time(database: Database) -> None:
    give(database)
    assert give(database, now=NOW + REMEMBERED_FOR) == ANSWER
    later = NOW + REMEMBERED_FOR + timedelta(seconds=1)
    assert give(database, Request(key="k2", principal="p", digest="d"), later) is None
    with database.read() as tx:
        assert not requests.known(tx, REQUEST)


def test_of_many_at_once_one_is_answered_and_the_others_repeat_it(database: Database) -> None:
    answers: list[Answer | None] = []
    start = threading.Barrier(6)

    def run() -> None:
        start.wait(10)
        answers.append(give(database))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers.count(None) == 1
    assert answers.count(ANSWER) == 5
