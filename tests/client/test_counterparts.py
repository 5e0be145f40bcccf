"""Counterparts: states and payloads that writers and readers exchange."""

import queue
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sluiceway import Channel, Endpoint
from sluiceway.errors import ChannelClosed, OptionError, SluicewayTimeout
from topics import readings
from waiting import until

NewChannel = Callable[..., Channel]
Word = tuple[Endpoint, ...]


def test_counterparts_receive_each_others_states_and_payloads(channel: Channel) -> None:
    words: queue.Queue[Word] = queue.Queue()

    def until(good: Callable[[Word], bool]) -> Word:
        while not good(word := words.get(timeout=60)):
            pass
        return word

    with channel.reader(group="delays", until=None) as reader:
        reader.on_status(words.put)
        assert until(lambda word: word == ()) == ()
        with channel.writer() as writer:
            (received,) = until(lambda word: len(word) == 1)
            assert (received.id, received.role, received.group) == (
                writer.endpoint_id,
                "writer",
                None,
            )
            writer.payload = {"day": "2013-01-01", "rows": 5}
            (received,) = until(lambda word: word[0].payload is not None)
            assert received.payload == writer.payload == {"day": "2013-01-01", "rows": 5}
            writer.write(readings(5))
        (received,) = until(lambda word: word[0].state == "closed")
        assert sum((received.ends or {}).values()) == 5


def test_an_exception_in_a_callback_stops_nothing(
    channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    words: queue.Queue[Word] = queue.Queue()

    def broken(word: Word) -> None:
        raise RuntimeError(f"no use for {len(word)}")

    with channel.reader(group="delays", until=None) as reader:
        reader.on_status(broken)
        reader.on_status(words.put)
        while not words.get(timeout=60):
            with channel.writer():
                pass
        assert "no use for" in caplog.text


def test_heartbeats_do_not_wait_for_a_callback_which_then_gets_the_latest_state(
    channel: Channel,
) -> None:
    words: list[Word] = []
    called, proceed = threading.Event(), threading.Event()

    def slow(word: Word) -> None:
        words.append(word)
        called.set()
        assert proceed.wait(60)

    with channel.reader(group="delays", until=None) as reader:
        reader.on_status(slow)
        assert called.wait(60)
        for _ in range(2):
            with channel.writer():
                pass
        until(lambda: len(reader.handle.counterparts or ()) == 2)
        reader.handle.heartbeat_now(60)
        assert len(words) == 1
        proceed.set()
        until(lambda: [endpoint.state for endpoint in words[-1]] == ["closed"] * 2)
    assert len(words) <= 3


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"x": object()}, "a payload must be a JSON object"),
        ({"x": float("nan")}, "a payload must be a JSON object"),
        ({"x": "\ud800"}, "a payload must be a JSON object"),
        ({"x": "a" * 4096}, "the limit is 4,096"),
    ],
)
def test_a_payload_that_cannot_be_sent_is_refused(
    channel: Channel, payload: dict[str, object], message: str
) -> None:
    with channel.writer() as writer:
        with pytest.raises(OptionError, match=message):
            writer.payload = payload
        assert writer.payload is None


def test_waiting_ends_when_all_have_attached(channel: Channel) -> None:
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(channel.wait_for, writers=1, readers=1, timeout_s=60)
        with channel.reader(group="delays", until=None), channel.writer() as writer:
            present = waiting.result(60)
            assert {endpoint.role for endpoint in present} == {"reader", "writer"}
            waiting = threads.submit(channel.wait_for, writers=1, state="closed", timeout_s=60)
            writer.write(readings(5))
            writer.close()
            assert {endpoint.state for endpoint in waiting.result(60)} >= {"closed"}


@pytest.mark.long
def test_a_wait_timeout_names_the_missing_endpoints(channel: Channel) -> None:
    with channel.writer(group="load", index=1, size=3):
        with pytest.raises(SluicewayTimeout) as raised:
            channel.wait_for(writers=3, readers=2, timeout_s=0.5)
        assert "writers: 1 of 3 opened (load[0] never attached, load[2] never attached)" in str(
            raised.value
        )
        assert "readers: 0 of 2 opened (2 never attached)" in str(raised.value)
        with channel.writer():
            # At that time only one has finished.
            pass
        with pytest.raises(SluicewayTimeout, match=r"load\[1\] is opened"):
            channel.wait_for(writers=1, state="closed", timeout_s=0.5)
    assert channel.wait_for(writers=1, state="closed")


def test_a_failed_writer_does_not_count_as_attached(channel: Channel) -> None:
    with pytest.raises(KeyError), channel.writer(group="load"):
        raise KeyError("gone")
    with pytest.raises(SluicewayTimeout, match=r"load\[0\] is error: KeyError"):
        channel.wait_for(writers=1, timeout_s=0.5)


def test_a_closed_channel_asks_its_writers_to_finish(channel: Channel) -> None:
    with channel.writer() as writer:
        assert not writer.finish_requested
        channel.close()
        words: queue.Queue[Word] = queue.Queue()
        writer.on_status(words.put)
        words.get(timeout=60)
        assert writer.finish_requested
        writer.write(readings(5))
    with pytest.raises(ChannelClosed):
        channel.writer()
    assert len(list(channel.reader())) == 5


def test_endpoints_are_listed_with_client_and_payload(channel: Channel) -> None:
    with channel.writer(group="load", index=0, size=2) as writer:
        writer.write(readings(5))
    (listed,) = channel.endpoints()
    assert (listed.id, listed.place, listed.size) == (writer.endpoint_id, "load[0]", 2)
    assert (listed.state, listed.health) == ("closed", "healthy")
    assert listed.counters == {"records": 5, "sentRecordCount": 5}


FORKING = """
    import os, sys, warnings
    from sluiceway import Gateway
    from sluiceway.errors import EndpointClosed

    # That there are threads is the point.
    warnings.simplefilter("ignore", DeprecationWarning)
    gateway = Gateway(sys.argv[1])
    channel = gateway.channel(sys.argv[2])
    with (
        channel.reader(until="now", share_connection=True) as sharing,
        channel.reader(group="delays", until="now") as reader,
    ):
        assert len(reader.read(3, timeout=None)) == 3
        assert len(sharing.read(3, timeout=None)) == 3
        child = os.fork()
        if child == 0:
            uses = (reader.commit, lambda: reader.read(1), lambda: sharing.seek({0: 0}))
            for use in uses:
                try:
                    use()
                except EndpointClosed as error:
                    assert "was opened by the process" in str(error), error
                else:
                    os._exit(1)
            # Leaving in the child is not the end of the parent's reader.
            reader.close()
            sharing.close()
            reader._handle.fail(ValueError("the child's"))
            assert reader._handle.is_open
            inherited = gateway._control._transport._http
            channel.refresh()
            assert gateway._control._transport._http is not inherited
            with channel.reader(group="others", share_connection=True) as other:
                assert len(list(other)) == 10
                other.commit()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        states = {each.place: each.state for each in channel.endpoints() if each.role == "reader"}
        assert states["delays[0]"] in ("opened", "started"), states
        assert states["others[0]"] == "closed"
        assert len(list(sharing)) == 7
        reader.commit()
"""


@pytest.mark.long
def test_a_forked_process_has_its_own_session(channel: Channel, gateway_url: str) -> None:
    with channel.writer() as writer:
        writer.write(readings(10))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKING), gateway_url, channel.name],
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sum(place.offset for place in channel.committed("delays").values()) == 3
    assert sum(place.offset for place in channel.committed("others").values()) == 10
