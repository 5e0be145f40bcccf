import os

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
