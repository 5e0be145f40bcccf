"""Forked children: refusals and finalizers in forked children."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from sluiceway import Channel
from sluiceway.concurrency import Process, this_process
from sluiceway.errors import EndpointClosed
from sluiceway.kafka.errors import create_client
from sluiceway.reader import ChannelReader
from sluiceway.records.to_python import gc_paused
from sluiceway.writer import ChannelWriter
from topics import Topics, readings


class Owner:
    """An object with a finalizer."""


def parent_process() -> Process:
    """Return what `this_process` returned before a fork."""
    return Process()


def holds_in_a_forked_child(condition: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            # It ends the child: without its parent's threads there may never be a response.
            signal.alarm(60)
            os._exit(0 if condition() else 1)
        finally:
            # Also after an exception: the child must not run further tests.
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def refuses(call: Callable[[], object]) -> bool:
    with contextlib.suppress(EndpointClosed):
        call()
        return False
    return True


def test_an_object_of_the_parent_refuses_use_in_a_forked_child_only() -> None:
    process = this_process()
    process.check("the reader")
    assert not process.forked
    process = parent_process()
    assert process.forked
    with pytest.raises(
        EndpointClosed, match=rf"the reader was opened by the process {process.pid}"
    ):
        process.check("the reader")


def test_a_process_is_one_key() -> None:
    entries = {this_process(): "parent"}
    assert this_process() in entries
    assert parent_process() not in entries


@pytest.mark.long
@pytest.mark.parametrize("forked", [False, True])
def test_a_finalizer_runs_in_the_process_that_registered_it(forked: bool) -> None:
    collected: list[str] = []
    owner = Owner()
    process = parent_process() if forked else this_process()
    process.finalize(owner, collected.append, "owner")
    del owner
    gc.collect()
    assert collected == ([] if forked else ["owner"])


def test_a_child_of_a_real_fork_is_forked_and_its_own_process_is_not() -> None:
    process = this_process()
    assert holds_in_a_forked_child(lambda: process.forked and not this_process().forked)
    assert not process.forked


@pytest.mark.long
def test_a_forked_child_returns_none_of_the_records_that_its_parent_has_fetched(
    topics: Topics,
) -> None:
    connection = topics.connect("avro", partitions=1)
    with ChannelWriter(connection) as writer:
        writer.write(readings(10))
    with ChannelReader(connection, until="now") as reader:
        assert reader.read(1, timeout=None) == readings(1)
        assert holds_in_a_forked_child(lambda: refuses(lambda: reader.read(1, timeout=None)))
        assert list(reader) == readings(9, 1)


@pytest.mark.long
def test_a_forked_child_is_refused_the_end_offsets_at_once(topics: Topics) -> None:
    with ChannelWriter(topics.connect("avro", partitions=1), timeout_s=60) as writer:
        assert holds_in_a_forked_child(lambda: refuses(writer.end_offsets))
        assert writer.end_offsets() == {0: 0}


def test_a_child_that_is_forked_while_the_garbage_collector_is_paused_has_one() -> None:
    paused, forked = threading.Event(), threading.Event()

    def pause() -> None:
        with gc_paused():
            paused.set()
            forked.wait(60)

    def collects() -> bool:
        with gc_paused():
            pass
        return gc.isenabled()

    pausing = threading.Thread(target=pause)
    pausing.start()
    paused.wait(60)
    try:
        assert holds_in_a_forked_child(collects)
    finally:
        forked.set()
        pausing.join()
    assert gc.isenabled()


def test_a_child_that_is_forked_in_a_pause_of_the_garbage_collector_ends_it() -> None:
    with gc_paused():
        assert holds_in_a_forked_child(gc.isenabled)
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("kind", [AdminClient, Consumer, Producer])
def test_a_forked_child_frees_no_kafka_client_of_its_parent(kind: type) -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
    clients = [create_client(kind, config)]
    client = weakref.ref(clients[0])

    def keeps() -> bool:
        clients.clear()
        return client() is not None

    assert holds_in_a_forked_child(keeps)


ENDING_CHILD = """
    import os, sys
    from sluiceway.concurrency import keep_in_children

    class Client:
        def __del__(self):
            if os.getpid() != parent:
                os._exit(1)

    parent = os.getpid()
    client = Client()
    keep_in_children(client)
    child = os.fork()
    if child == 0:
        sys.exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_that_ends_frees_no_kafka_client_of_its_parent() -> None:
    program = textwrap.dedent(ENDING_CHILD)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


FORKED_AFTER_A_WRITE = """
    import os, signal, sys, time, warnings
    from sluiceway import Gateway

    # That there are threads is the point.
    warnings.simplefilter("ignore", DeprecationWarning)
    channel = Gateway(sys.argv[1]).channel(sys.argv[2])
    with channel.writer() as writer:
        writer.write(RECORDS[0])
        while "pandas" not in sys.modules:
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            with channel.writer() as own:
                own.write(RECORDS[1:])
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "the child waits forever"
"""


@pytest.mark.long
def test_a_child_that_is_forked_just_after_the_first_write_can_write(
    gateway_url: str, new_channel: Callable[..., Channel]
) -> None:
    """The first conversion imports pandas, in the thread that sends single records."""
    channel = new_channel(partitions=1)
    program = f"RECORDS = {readings(3)!r}" + textwrap.dedent(FORKED_AFTER_A_WRITE)
    done = subprocess.run(
        [sys.executable, "-c", program, gateway_url, channel.name],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with channel.reader() as reader:
        assert sorted(record["id"] for record in reader) == [0, 1, 2]
