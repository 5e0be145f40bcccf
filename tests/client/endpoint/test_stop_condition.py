"""Stop condition: the end of reading by the states of the writers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sluiceway.api.endpoints import Endpoint, Position
from sluiceway.endpoint.stop_condition import (
    LostWriterPolicy,
    OnLostWriter,
    WhenFinished,
    WritersOutcome,
    writers_outcome,
)
from sluiceway.errors import (
    GatewayUnavailable,
    KafkaUnavailable,
    SluicewayTimeout,
    WriterFailed,
    WriterLost,
)
from waiting import until

PATIENCE_S = 60.0


class Reader:
    """A reader's view of its writers, with a manual clock."""

    def __init__(self, on_lost_writer: OnLostWriter = "raise", *, writers: int = 1) -> None:
        self.now_s = 0.0
        self.writers = writers
        self.policy = LostWriterPolicy(
            on_lost_writer, heartbeat_timeout_s=PATIENCE_S, monotonic=lambda: self.now_s
        )

    def judges(self, *present: Endpoint, complete: bool = False) -> WritersOutcome | None:
        return writers_outcome(
            present, self.policy, channel="flights", writers=self.writers, complete=complete
        )


def writer(index: int, state: str = "closed", health: str = "healthy", **facts: Any) -> Endpoint:
    return Endpoint(
        id=f"{index:032x}",
        role=facts.pop("role", "writer"),
        group=facts.pop("group", "load"),
        index=index,
        size=9,
        state=state,
        health=health,
        **facts,
    )


def judged(
    *present: Endpoint, writers: int = 1, on_lost_writer: OnLostWriter = "raise"
) -> WritersOutcome | None:
    """Return the outcome of these writers after all deadlines have passed."""
    reader = Reader(on_lost_writer, writers=writers)
    reader.policy.observe(present)
    reader.now_s = PATIENCE_S
    return reader.judges(*present)


@pytest.mark.parametrize("state", ["opened", "started", "stopped"])
@pytest.mark.parametrize("health", ["healthy", "suspect"])
def test_an_open_writer_delays_the_end(state: str, health: str) -> None:
    assert judged(writer(0, ends={0: 5}), writer(1, state, health)) is None


def test_the_end_requires_the_expected_number_of_writers() -> None:
    assert judged() is None
    assert judged(writer(0, role="reader")) is None
    assert judged(writer(0, ends={0: 5}), writers=2) is None
    assert judged(writer(0, ends={0: 5}), writer(1), writers=2) == WritersOutcome(ends={0: 5})


def test_the_end_is_at_the_final_offsets_of_all_writers() -> None:
    outcome = judged(writer(0, ends={0: 5, 1: 9}), writer(1, ends={0: 7}), writer(2))
    assert outcome == WritersOutcome(ends={0: 7, 1: 9})


@pytest.mark.parametrize(("state", "health"), [("error", "healthy"), ("error", "lost")])
def test_a_failed_writer_is_named_after_everything_is_read(state: str, health: str) -> None:
    outcome = judged(writer(0, ends={0: 5}), writer(1, state, health, cause="ValueError: no"))
    assert outcome is not None
    assert isinstance(outcome.error, WriterFailed)
    assert outcome.error.endpoints == (f"{1:032x}",)
    assert "load[1] (ValueError: no) failed" in str(outcome.error)
    assert outcome.unreported == {f"{1:032x}"}


@pytest.mark.parametrize("state", ["opened", "started", "stopped"])
def test_a_lost_writer_is_named_and_ends_at_its_last_known_offsets(state: str) -> None:
    outcome = judged(writer(0, ends={0: 5}), writer(1, state, "lost", lost_at={0: 8}))
    assert outcome is not None
    assert isinstance(outcome.error, WriterLost)
    assert (outcome.ends, outcome.unreported) == ({0: 8}, frozenset())


@pytest.mark.parametrize(("state", "health"), [("error", "healthy"), ("started", "lost")])
def test_the_policy_for_lost_writers_is_an_option(state: str, health: str) -> None:
    present = [writer(0, ends={0: 5}), writer(1, state, health, lost_at={0: 8})]
    assert judged(*present, on_lost_writer="wait") is None
    assert Reader("go_on").judges(*present) == WritersOutcome(ends={0: 8}), "it does not wait"


def test_a_lost_writer_that_had_closed_is_finished() -> None:
    assert judged(writer(0, "closed", "lost", ends={0: 5})) == WritersOutcome(ends={0: 5})


def test_a_failed_writer_that_wrote_nothing_is_ignored() -> None:
    empty = writer(1, "error", ends={})
    assert judged(writer(0, ends={0: 5}), empty) == WritersOutcome(ends={0: 5})
    assert judged(empty) is None, "none has come"
    assert judged(writer(0, ends={0: 5}), empty, writers=2) is None
    # The topic's end offsets at the time it became lost include other writers' records.
    lost = writer(1, "error", "lost", ends={}, lost_at={0: 9})
    assert judged(writer(0, ends={0: 5}), lost) == WritersOutcome(ends={0: 5})


def test_a_failed_writer_with_known_end_offsets_has_finished() -> None:
    outcome = judged(
        writer(0, ends={0: 5}), writer(1, "error", "lost", ends={0: 8}, lost_at={0: 11})
    )
    assert outcome == WritersOutcome(ends={0: 8})


def test_end_offsets_of_a_restarted_lost_writer_are_not_those_of_its_predecessor() -> None:
    again = writer(1, "started", "lost", ends={}, lost_at={0: 9})
    outcome = judged(writer(0, ends={0: 5}), again)
    assert outcome is not None
    assert (outcome.ends, type(outcome.error)) == ({0: 9}, WriterLost)


@pytest.mark.parametrize("group", ["load", None])
def test_the_wait_for_a_failed_writer_starts_when_the_reader_learns_of_the_failure(
    group: str | None,
) -> None:
    reader = Reader()
    assert reader.judges(writer(0, "started", group=group)) is None
    reader.now_s = 100.0
    failed = writer(0, "error", group=group)
    reader.policy.observe([failed])
    reader.now_s += PATIENCE_S - 1
    assert reader.judges(failed) is None
    assert not reader.policy.is_due()
    reader.now_s += 1
    assert reader.policy.is_due()
    outcome = reader.judges(failed)
    assert outcome is not None
    assert isinstance(outcome.error, WriterFailed)
    # A late successor in its place finished.
    assert reader.judges(writer(7, group=group, ends={0: 3})) == WritersOutcome(ends={0: 3})


def test_a_writer_lost_before_the_reader_attached_is_awaited() -> None:
    reader, lost = Reader(), writer(0, "started", "lost", lost_at={0: 3})
    assert reader.judges(lost) is None
    reader.now_s = PATIENCE_S
    outcome = reader.judges(lost)
    assert outcome is not None
    assert isinstance(outcome.error, WriterLost)


def test_a_writer_lost_while_the_reader_is_attached_is_not_awaited_again() -> None:
    reader = Reader()
    assert reader.judges(writer(0, "started")) is None
    outcome = reader.judges(writer(0, "started", "lost", lost_at={0: 3}))
    assert outcome is not None
    assert isinstance(outcome.error, WriterLost)


def test_each_failure_has_its_own_deadline() -> None:
    reader, failed = Reader(), writer(0, "error")
    assert reader.judges(failed) is None
    reader.now_s = PATIENCE_S - 1
    assert reader.judges(failed, writer(1, "error")) is None
    reader.now_s = PATIENCE_S
    assert reader.judges(failed, writer(1, "error")) is None
    reader.now_s = 2 * PATIENCE_S - 1
    outcome = reader.judges(failed, writer(1, "error"))
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.endpoints == (f"{0:032x}", f"{1:032x}")


def test_a_restarted_writer_has_the_full_wait_after_another_failure() -> None:
    reader = Reader()
    assert reader.judges(writer(0, "error")) is None
    reader.now_s = PATIENCE_S - 1
    assert reader.judges(writer(0, "started")) is None
    reader.now_s = PATIENCE_S
    assert reader.judges(writer(0, "error")) is None


def test_a_successor_is_awaited_after_a_predecessor_that_wrote_nothing() -> None:
    reader, done = Reader(), writer(0, ends={0: 5})
    assert reader.judges(done, writer(1, "opened"), writer(2, "opened", group=None)) is None
    # A writer without a group has no successor.
    ended = [writer(1, "error", ends={}), writer(2, "error", ends={}, group=None)]
    assert reader.judges(done, *ended) is None
    assert reader.judges(done, ended[1]) == WritersOutcome(ends={0: 5})
    reader.now_s = PATIENCE_S
    assert reader.judges(done, *ended) == WritersOutcome(ends={0: 5})


@pytest.mark.parametrize("on_lost_writer", ["raise", "wait"])
def test_no_writer_is_awaited_when_the_channel_closes(on_lost_writer: OnLostWriter) -> None:
    outcome = Reader(on_lost_writer).judges(writer(0, "error"), complete=True)
    assert outcome is not None
    assert isinstance(outcome.error, WriterFailed)
    assert "no successor can attach" in str(outcome.error)
    assert "start it again" not in str(outcome.error)


def test_the_error_advises_only_what_is_possible() -> None:
    def reported(*present: Endpoint) -> str:
        outcome = judged(*present)
        assert outcome is not None
        assert outcome.error is not None
        return str(outcome.error)

    grouped = reported(writer(0, "error"))
    assert "start it again with the same group and index" in grouped
    assert f"sluiceway channels dismiss flights --endpoint {0:032x}" in grouped
    alone = reported(writer(0, "error", group=None))
    assert "It has no group, so no successor can attach" in alone
    assert "start it again" not in alone
    assert "on_lost_writer='go_on'" in alone
    many = reported(*(writer(number, "error") for number in range(12)))
    assert "sluiceway channels dismiss flights --failed" in many
    assert "and 2 more failed" in many
    lost = reported(*(writer(number, "started", "lost", lost_at={}) for number in range(2)))
    assert "sluiceway channels dismiss flights --lost" in lost
    assert "end without them" in lost
    assert all(len(text.split()) < 50 for text in (grouped, alone, lost))


def test_a_writer_that_was_read_to_its_end_does_not_count() -> None:
    reader = Reader()
    reader.policy.through = 5
    before = writer(0, number=5, ends={0: 5})
    assert reader.judges(before) is None
    assert reader.judges(before, writer(1, number=None, ends={0: 7})) is not None
    outcome = reader.judges(before, writer(1, number=6, ends={0: 3}))
    assert outcome is not None
    assert (outcome.ends, outcome.through) == ({0: 5}, 6)
    # Also a failed one, which an earlier reader has accepted.
    assert reader.judges(writer(2, "error", number=4)) is None
    # It may have written since.
    assert reader.judges(writer(0, "started", number=5)) is None
    assert reader.judges(before) is not None


@pytest.mark.parametrize(
    ("attached", "counted"),
    [
        ({"number": 3}, [4, 5]),
        ({"number": 3, "finished_through": 4}, [5]),
        ({"number": 3, "finished_through": 1, "positions": {0: Position(offset=7)}}, [2, 3, 4, 5]),
        pytest.param({"number": None}, [1, 2, 3, 4, 5], id="attached by an older gateway"),
    ],
)
def test_a_reader_from_the_latest_records_counts_only_writers_that_ended_after_it_attached(
    attached: dict[str, Any], counted: list[int]
) -> None:
    defaults = {"finished_through": None, "positions": {}, "live_writers": frozenset[str]()}
    reader: Any = SimpleNamespace(**defaults | attached)
    policy = LostWriterPolicy("raise", heartbeat_timeout_s=PATIENCE_S, reader=reader, latest=True)
    ended = [writer(number, number=number, ends={0: 9}) for number in range(1, 6)]
    assert [endpoint.number for endpoint in ended if policy.counts(endpoint)] == counted


def test_a_writer_that_failed_before_it_wrote_counts_as_its_predecessor() -> None:
    failed = writer(0, "error", number=5, ends={0: 5})
    for through, expected in ((5, None), (4, WritersOutcome(ends={0: 5}, through=5))):
        reader = Reader()
        reader.policy.through = through
        reader.policy.observe([writer(0, "started", number=6)])
        assert reader.judges(failed) == expected


def test_without_expected_writers_only_open_ones_are_awaited() -> None:
    reader = Reader(writers=0)
    assert reader.judges(writer(0, "started")) is None
    assert reader.judges() == WritersOutcome(ends={}, short=True)


def handle_of(*present: Endpoint, replacement_timeout_s: float = 0.0) -> Any:
    """The handle of a reader with these writers."""
    return SimpleNamespace(
        attached=SimpleNamespace(
            replacement_timeout_s=replacement_timeout_s,
            live_writers=frozenset(),
            finished_through=None,
        ),
        session=SimpleNamespace(outage=None),
        counterparts=present,
        channel="flights",
        name="reader",
        finish_requested=False,
        subscribe=lambda _: None,
        check=lambda: None,
    )


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_that_was_unknown_in_an_outage_is_requested_again(committed: bool) -> None:
    outages = [KafkaUnavailable("down"), GatewayUnavailable("down")]

    def final_ends() -> dict[int, int]:
        if outages:
            raise outages.pop()
        return {0: 10}

    stop = WhenFinished(
        handle_of(writer(0, "error", settled="some"), replacement_timeout_s=0.05),
        final_ends=final_ends,
        owns=lambda _: True,
        writers=1,
        on_lost_writer="raise",
        committed=committed,
    )
    # It waits for a successor.
    assert stop.ends() is None
    with pytest.raises(GatewayUnavailable):
        until(stop.ends)
    with pytest.raises(KafkaUnavailable):
        stop.ends()
    assert stop.ends() == {0: 10}


def impatient(handle: Any, monotonic: Callable[[], float]) -> WhenFinished:
    """The condition of a reader that waits for two writers for a minute."""
    return WhenFinished(
        handle,
        final_ends=dict,
        owns=lambda _: True,
        writers=2,
        on_lost_writer="raise",
        open_timeout_s=60.0,
        monotonic=monotonic,
    )


def test_the_wait_for_missing_writers_begins_again_after_its_timeout() -> None:
    now_s = 0.0
    stop = impatient(handle_of(writer(0, "started")), lambda: now_s)
    stop.on_idle()
    now_s = 30.0
    assert stop.ends() is None
    for began_s in (0.0, 60.0):
        now_s = began_s + 59.0
        stop.on_idle()
        now_s = began_s + 60.0
        with pytest.raises(SluicewayTimeout, match=r"after 60 s .* 1 of 2 writers have attached"):
            stop.on_idle()
        stop.on_idle()


def test_the_wait_for_writers_does_not_end_before_the_gateway_has_reported_them() -> None:
    now_s = 0.0
    handle = handle_of(writer(0, "closed", ends={}))
    reported, handle.counterparts = handle.counterparts, None
    stop = impatient(handle, lambda: now_s)
    now_s = 61.0
    stop.on_idle()
    handle.counterparts = reported
    with pytest.raises(SluicewayTimeout, match="1 of 2 writers have attached"):
        stop.on_idle()


def test_the_wait_for_writers_begins_when_one_of_them_has_failed() -> None:
    now_s = 0.0
    handle = handle_of(writer(0, "started"), writer(1, "started"))
    stop = impatient(handle, lambda: now_s)
    assert stop.ends() is None
    # It reads for a long time, and is never idle.
    now_s = 100.0
    handle.counterparts = (writer(0, "started"), writer(1, "error", ends={}))
    assert stop.ends() is None
    stop.on_idle()
    now_s = 159.0
    stop.on_idle()
    now_s = 160.0
    with pytest.raises(SluicewayTimeout, match="1 of 2 writers have attached"):
        stop.on_idle()


def test_a_failed_writer_whose_keys_are_committed_is_ignored() -> None:
    done, settled = writer(0), writer(1, "error", group=None, settled="all")
    reader = Reader()
    assert reader.judges(done, writer(1, "started", group=None)) is None
    assert reader.judges(done, settled) == WritersOutcome(ends={})
    assert Reader(writers=2).judges(done, settled) is None, "it is none of the expected ones"
    lost = writer(1, "started", "lost", lost_at={0: 7}, settled="all")
    assert Reader().judges(done, lost) is not None


def test_a_failed_writer_that_committed_nothing_is_ignored_unless_it_was_seen_open() -> None:
    done, nothing = writer(0), writer(1, "error", group=None, settled="none")
    assert Reader().judges(done, nothing) == WritersOutcome(ends={})
    assert Reader(writers=2).judges(done, nothing) is None
    reader = Reader()
    assert reader.judges(done, writer(1, "started", group=None)) is None
    assert reader.judges(done, nothing) is None, "it waits for a successor"
    reader.now_s += PATIENCE_S
    outcome = reader.judges(done, nothing)
    assert outcome is not None
    assert isinstance(outcome.error, WriterFailed)


def test_a_failed_writer_that_left_a_part_undone_is_an_error() -> None:
    outcome = judged(writer(0), writer(1, "error", settled="some"))
    assert outcome is not None
    assert isinstance(outcome.error, WriterFailed)
