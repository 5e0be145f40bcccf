"""Permissions to read and write messages, and responses without Kafka."""

import threading
from unittest.mock import Mock

import httpx
import pytest

from gateways import Rig, code
from sluiceway_gateway.channels.model import Phase
from waiting import until

PATH = "/v1/channels/flights/messages"
BODY = {"records": [{"a": 1}]}


def responses(rig: Rig, headers: dict[str, str]) -> tuple[httpx.Response, httpx.Response]:
    read = rig.http.get(PATH, headers=headers)
    return read, rig.http.post(PATH, json=BODY, headers=headers)


def test_reading_needs_read_and_writing_needs_write(rig: Rig) -> None:
    rig.put("flights").raise_for_status()
    rig.observe("flights", Phase.READY)
    for scope, forbidden in {
        "read:fl": (False, True),
        "write:fl": (True, False),
        "manage:fl": (False, False),
        "manage:trains": (True, True),
    }.items():
        found = responses(rig, rig.token(scope))
        assert tuple(each.status_code == 403 for each in found) == forbidden, scope
    assert [each.status_code for each in responses(rig, {})] == [401, 401]


def test_without_kafka_both_are_unavailable_and_say_so(rig: Rig) -> None:
    rig.put("flights").raise_for_status()
    rig.observe("flights", Phase.READY)
    for response in responses(rig, {}):
        assert (response.status_code, code(response)) == (503, "kafka_unavailable")
        assert "does not answer" in response.json()["detail"]
        assert response.headers["Retry-After"]


def test_a_channel_without_a_topic_is_not_ready(rig: Rig) -> None:
    assert [code(each) for each in responses(rig, {})] == ["channel_not_found"] * 2
    rig.put("flights").raise_for_status()
    assert [code(each) for each in responses(rig, {})] == ["channel_not_ready"] * 2


@pytest.mark.long
def test_concurrent_and_waiting_reads_are_limited(rig: Rig) -> None:
    rig.put("flights").raise_for_status()
    rig.observe("flights", Phase.READY)
    goes_on, running = threading.Event(), threading.Semaphore(0)

    def slow(*_: object, **__: object) -> None:
        running.release()
        assert goes_on.wait(60)
        raise TimeoutError

    rig.replace(message_reads=Mock(read=slow))
    statuses: list[int] = []

    def fetch_messages() -> None:
        with httpx.Client(base_url=rig.url, timeout=60, verify=False) as http:  # noqa: S501
            statuses.append(http.get(PATH).status_code)

    threads = [threading.Thread(target=fetch_messages) for _ in range(24)]
    for each in threads:
        each.start()
    for _ in range(4):
        assert running.acquire(timeout=60)
    refused = 24 - 4 - 16
    until(lambda: len(statuses) == refused, 60)
    assert set(statuses) == {503}
    # Other requests are served meanwhile.
    assert rig.http.get("/v1/channels/flights").status_code == 200
    assert not running.acquire(blocking=False)
    goes_on.set()
    for each in threads:
        each.join(60)
    assert sorted(statuses) == [500] * 20 + [503] * refused
