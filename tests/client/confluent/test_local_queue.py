"""LocalQueue: what a thread sees that holds no lock."""

import itertools
import math
from functools import partial

import pytest
from confluent_kafka import Message

from confluent_facade import KafkaError
from faults import interrupted_at_call
from sluiceway.confluent.local_queue import LocalQueue, OnDelivery, PendingMessage


def ignore(_error: KafkaError | None, _message: Message) -> None:
    """Take a report."""


@pytest.mark.unit
@pytest.mark.parametrize("on_delivery", [None, ignore])
def test_a_message_that_fails_is_in_the_queue_or_reported_at_each_moment(
    on_delivery: OnDelivery | None,
) -> None:
    message = PendingMessage("flights", b"x", None, -1, on_delivery, 0, None, math.inf)
    for number in itertools.count(1):
        queue = LocalQueue(max_messages=1, max_bytes=1000)
        queue.add(message, others=0)

        def check(queue: LocalQueue = queue) -> None:
            assert len(queue) or queue.lost_error is not None

        fail = partial(queue.remove, message, KafkaError(KafkaError._FAIL))
        if not interrupted_at_call(number, fail, action=check):
            break
    assert number > 5
    assert not queue.remove(message)
