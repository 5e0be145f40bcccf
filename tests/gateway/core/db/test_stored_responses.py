import threading
from datetime import UTC, datetime, timedelta

import pytest

from sluiceway_gateway.core.db import idempotency
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.idempotency import REMEMBERED_FOR, Request, StoredResponse
from sluiceway_gateway.core.errors import IdempotencyKeyReused

NOW = datetime(2030, 1, 1, tzinfo=UTC)
REQUEST = Request(key="k", principal="p", digest="d")
RESPONSE = StoredResponse(status=201, headers={"ETag": '"x"'}, body='{"a":"é"}')


def give(
    database: Database, request: Request = REQUEST, now: datetime = NOW
) -> StoredResponse | None:
    """Return the stored response of a repeated request; store one for a new request."""
    acts: list[StoredResponse] = []

    def act() -> StoredResponse:
        acts.append(RESPONSE)
        return RESPONSE

    with database.write() as tx:
        response = idempotency.once(tx, request, now, act)
    return None if acts else response


def test_a_repeat_gets_the_response_of_the_first_request(database: Database) -> None:
    assert give(database) is None
    assert give(database) == RESPONSE


def test_a_key_belongs_to_its_principal(database: Database) -> None:
    assert give(database) is None
    assert give(database, Request(key="k", principal="q", digest="e")) is None


def test_a_key_of_another_request_is_refused(database: Database) -> None:
    give(database)
    with pytest.raises(IdempotencyKeyReused):
        give(database, Request(key="k", principal="p", digest="other"))


def test_a_failed_request_leaves_its_key_free(database: Database) -> None:
    def fail() -> StoredResponse:
        raise RuntimeError

    with pytest.raises(RuntimeError), database.write() as tx:
        idempotency.once(tx, REQUEST, NOW, fail)
    assert give(database) is None


def test_a_stored_response_expires(database: Database) -> None:
    give(database)
    assert give(database, now=NOW + REMEMBERED_FOR) == RESPONSE
    later = NOW + REMEMBERED_FOR + timedelta(seconds=1)
    assert give(database, now=later) is None
    assert give(database, now=later) == RESPONSE


def test_expired_responses_are_deleted_in_batches(database: Database) -> None:
    for number in range(5):
        asked = Request(key=str(number), principal="p", digest="d")
        give(database, asked, NOW + timedelta(seconds=number))
    before, forgotten = NOW + timedelta(seconds=4), []
    for _ in range(3):
        with database.write() as tx:
            forgotten.append(idempotency.forget(tx, before=before, limit=3))
    assert forgotten == [3, 1, 0]
    with database.read() as tx:
        assert idempotency.known(tx, Request(key="4", principal="p", digest="d"))


def test_concurrent_requests_with_one_key_get_one_response(database: Database) -> None:
    responses: list[StoredResponse | None] = []
    start = threading.Barrier(6)

    def run() -> None:
        start.wait(10)
        responses.append(give(database))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert responses.count(None) == 1
    assert responses.count(RESPONSE) == 5
