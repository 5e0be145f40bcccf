from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.core.errors import (
    BatchAborted,
    BatchCommitted,
    BatchFenced,
    BatchKeyTaken,
    BatchOpen,
    BeyondWatermark,
    InvalidManifest,
    LedgerHalted,
    LedgerIntact,
    ManifestConflict,
    RepairChanged,
    StaleBatch,
    UnknownPartition,
)
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.ledger.batches import (
    CommitDecision,
    CommitRequest,
    OpenDecision,
    OpenRequest,
    commit_batch,
    open_batch,
    require_written,
)
from sluiceway_gateway.ledger.model import (
    BATCH_TRANSITIONS,
    AbortDecision,
    Batch,
    BatchState,
    Ending,
    Ledger,
    Manifest,
    Owner,
    abort_batch,
    abort_instances,
    digest_of,
    expired,
    grow,
    halt,
    reap,
    renew,
    reused_offsets,
    stable_of,
)
from sluiceway_gateway.ledger.repairing import RepairDecision, RepairRequest, repair_ledger

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=30)
HOUR = timedelta(hours=1)


@dataclass
class Channel:
    """A channel's ledger, changed by the decisions."""

    ledger: Ledger = field(
        default_factory=lambda: Ledger(channel_uid="c", topic_id="t", partitions=2)
    )
    owners: dict[str, Owner] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    runs: dict[int, set[Interval]] = field(default_factory=dict)
    now: datetime = NOW

    @property
    def open_batches(self) -> list[Batch]:
        return [batch for batch in self.batches.values() if batch.state is BatchState.OPEN]

    def open(self, key: str, instance: str = "i1", owner: str = "job", **more: Any) -> OpenDecision:
        of_key = [batch for batch in self.batches.values() if batch.key == key]
        epochs = [batch.epoch for batch in self.batches.values() if batch.instance == instance]
        decision = open_batch(
            self.ledger,
            self.owners.get(owner),
            of_key[-1] if of_key else None,
            self.open_batches,
            OpenRequest(key=key, owner=owner, instance=instance, **more),
            self.now,
            new_id=f"b{len(self.batches)}",
            max_age=HOUR,
            instance_epoch=max(epochs, default=None),
        )
        self.owners[owner] = decision.owner
        self.store(decision.ledger, *decision.aborted, decision.batch)
        return decision

    def commit(self, batch: Batch, manifest: Manifest, **more: Any) -> CommitDecision:
        counts = {at: sum(e.end - e.first for e in intervals) for at, intervals in manifest.items()}
        values: dict[str, Any] = {
            "batch": batch.id,
            "instance": batch.instance,
            "digest": digest_of(manifest),
            "manifest": manifest,
            "records": sum(counts.values()),
            "counts": counts,
        }
        decision = commit_batch(
            self.ledger,
            self.owners[batch.owner],
            self.batches[batch.id],
            self.open_batches,
            {at: sorted(runs) for at, runs in self.runs.items()},
            CommitRequest(**(values | more)),
            self.now,
        )
        self.owners[batch.owner] = decision.owner
        for at, added in decision.runs_added.items():
            self.runs[at] = self.runs.get(at, set()) - {*decision.runs_removed[at]} | {*added}
        self.store(decision.ledger, decision.batch)
        return decision

    def abort(self, batch: Batch, instance: str | None = None) -> AbortDecision:
        current = self.batches[batch.id]
        decision = abort_batch(self.ledger, current, self.open_batches, "Why.", self.now, instance)
        self.store(decision.ledger, *decision.aborted)
        return decision

    def store(self, ledger: Ledger, *batches: Batch) -> None:
        self.ledger = ledger
        self.batches |= {batch.id: batch for batch in batches}


def manifest(*intervals: tuple[int, int], at: int = 0) -> Manifest:
    return {at: tuple(Interval(*interval) for interval in intervals)}


@pytest.fixture
def channel() -> Channel:
    return Channel()


def test_every_task_of_an_instance_gets_the_same_batch(channel: Channel) -> None:
    first = channel.open("k")
    again = channel.open("k")

    assert not first.replayed
    assert again.replayed
    assert again.batch == first.batch
    assert first.batch.begin == {0: 0, 1: 0}


def test_a_batch_begins_at_the_visible_ends_of_the_partitions_that_it_names(
    channel: Channel,
) -> None:
    channel.commit(channel.open("a").batch, manifest((0, 5), at=1))

    assert channel.open("b").batch.begin == {0: 0, 1: 5}
    assert channel.open("c", partitions=[1]).batch.begin == {1: 5}


def test_an_open_batch_holds_back_only_the_partitions_that_it_names(channel: Channel) -> None:
    channel.open("held", "i2", partitions=[1])
    batch = channel.open("k").batch
    channel.commit(batch, {0: (Interval(0, 4),), 1: (Interval(0, 7),)})

    assert channel.ledger.visible_end == {0: 4, 1: 7}
    assert channel.ledger.stable == {0: 4, 1: 0}


def test_opening_a_committed_key_returns_its_commit(channel: Channel) -> None:
    batch = channel.open("k").batch
    channel.commit(batch, manifest((0, 3)))
    decision = channel.open("k", "i2")

    assert decision.replayed
    assert decision.batch.state is BatchState.COMMITTED
    assert (decision.batch.number, decision.batch.records) == (1, 3)


def test_a_repeated_commit_has_the_same_result(channel: Channel) -> None:
    batch = channel.open("k").batch
    first = channel.commit(batch, manifest((0, 3)))
    again = channel.commit(batch, manifest((0, 3)))

    assert again.repeated
    assert again.batch == first.batch
    assert channel.ledger.number == 1
    with pytest.raises(BatchCommitted, match="with another manifest"):
        channel.commit(batch, manifest((0, 4)))


def test_an_empty_batch_is_committed_and_numbered(channel: Channel) -> None:
    decision = channel.commit(channel.open("k").batch, {})

    assert decision.batch.state is BatchState.COMMITTED
    assert decision.ledger.number == 1
    assert decision.ledger.visible_end == {}


def test_a_key_of_another_owner_is_refused(channel: Channel) -> None:
    channel.open("k")

    with pytest.raises(BatchKeyTaken, match=r"not to 'other'.*needs other keys, too"):
        channel.open("k", "i2", owner="other")


def test_another_instance_waits_for_the_lease(channel: Channel) -> None:
    batch = channel.open("k").batch
    with pytest.raises(BatchOpen, match="open in another instance") as raised:
        channel.open("k", "i2")
    assert raised.value.retriable

    channel.now += LEASE
    decision = channel.open("k", "i2")

    assert [aborted.id for aborted in decision.aborted] == [batch.id]
    assert decision.batch.epoch == 2
    with pytest.raises(BatchAborted):
        channel.commit(batch, manifest((0, 1)))


def test_other_keys_of_an_owner_are_independent_without_a_takeover(channel: Channel) -> None:
    first = channel.open("monday").batch
    second = channel.open("tuesday", "i2").batch
    channel.commit(second, manifest((0, 1)))
    channel.commit(first, manifest((1, 2)))

    assert channel.ledger.stable == {0: 2}


def test_a_takeover_ends_all_batches_of_the_previous_instance_at_once(channel: Channel) -> None:
    first = channel.open("s:1", takeover=True, ordinal=1).batch
    other = channel.open("other", "x", owner="other").batch
    decision = channel.open("s:1", "i2", takeover=True, ordinal=1)

    assert [(aborted.id, aborted.number, aborted.ending) for aborted in decision.aborted] == [
        (first.id, 1, Ending.ABORT)
    ]
    assert channel.batches[other.id].state is BatchState.OPEN
    with pytest.raises(BatchFenced, match="Instance 2 of 'job' has replaced"):
        channel.open("s:2", takeover=True, ordinal=2)


def test_a_commit_of_a_fenced_instance_is_refused_while_its_batch_is_open(
    channel: Channel,
) -> None:
    batch = channel.open("k", takeover=True).batch
    channel.owners["job"] = replace(channel.owners["job"], epoch=5, fence=5)

    with pytest.raises(BatchFenced, match="Instance 5"):
        channel.commit(batch, manifest((0, 1)))


def test_a_replaced_instance_cannot_take_the_key_back(channel: Channel) -> None:
    channel.open("k")
    channel.now += LEASE
    channel.open("k", "i2")
    channel.now += LEASE

    with pytest.raises(BatchFenced):
        channel.open("k")


def test_an_aborted_key_needs_another_instance(channel: Channel) -> None:
    batch = channel.open("k").batch
    channel.abort(batch, "i1")

    with pytest.raises(BatchAborted, match=r"was aborted: Why\. Nothing"):
        channel.open("k")
    assert channel.open("k", "i2").batch.epoch == 2


def test_an_instance_continues_with_new_keys_after_an_abort(channel: Channel) -> None:
    channel.abort(channel.open("flush-1").batch)

    assert channel.open("flush-2").batch.state is BatchState.OPEN


def test_an_older_batch_of_a_stream_is_refused(channel: Channel) -> None:
    channel.commit(channel.open("s:7", takeover=True, ordinal=7).batch, manifest((0, 1)))

    with pytest.raises(StaleBatch, match="restored from an older copy"):
        channel.open("s:6", "i2", takeover=True, ordinal=6)
    with pytest.raises(StaleBatch):
        channel.open("renamed:6", "i2", takeover=True, ordinal=6)
    assert channel.open("s:7", "i2", takeover=True, ordinal=7).replayed


def test_a_micro_batch_may_have_several_keys_and_a_key_has_one_micro_batch(
    channel: Channel,
) -> None:
    channel.commit(channel.open("a:7", ordinal=7).batch, manifest((0, 1)))

    channel.commit(channel.open("b:7", "i2", ordinal=7).batch, manifest((1, 2)))
    with pytest.raises(BatchKeyTaken, match="is that of the batch 7 of 'job'"):
        channel.open("a:7", "i3", ordinal=8)
    assert channel.open("a:7", "i3", ordinal=7).replayed
    assert channel.open("a:7", "i3").replayed


def test_an_abort_after_the_commit_changes_nothing(channel: Channel) -> None:
    batch = channel.open("k").batch
    channel.commit(batch, manifest((0, 1)))

    with pytest.raises(BatchCommitted, match="The abort changed nothing"):
        channel.abort(batch, "i1")


def test_a_repeated_abort_changes_nothing(channel: Channel) -> None:
    batch = channel.open("k").batch
    channel.abort(batch, "i1")

    assert channel.abort(batch, "i1").aborted == ()
    assert channel.ledger.number == 1


def test_only_the_instance_of_a_batch_ends_it(channel: Channel) -> None:
    batch = channel.open("k").batch

    with pytest.raises(BatchFenced, match="Only the instance that opened a batch ends it"):
        channel.abort(batch, "i2")
    with pytest.raises(BatchFenced):
        channel.commit(batch, manifest((0, 1)), instance="i2")


def test_offsets_from_before_the_batch_are_refused(channel: Channel) -> None:
    channel.commit(channel.open("a").batch, manifest((0, 5)))
    batch = channel.open("b").batch

    with pytest.raises(ManifestConflict, match=r"lists the offset 4 .* begins at 5"):
        channel.commit(batch, manifest((4, 6)))


def test_offsets_of_another_commit_are_refused(channel: Channel) -> None:
    first, second = channel.open("a").batch, channel.open("b", "i2").batch
    channel.commit(first, manifest((0, 5)))

    with pytest.raises(ManifestConflict, match=r"\[4, 6\).* committed by another batch"):
        channel.commit(second, manifest((4, 6)))


def test_partitions_outside_of_the_batch_are_refused(channel: Channel) -> None:
    batch = channel.open("k", partitions=[0]).batch

    with pytest.raises(UnknownPartition, match="opened without partition 1"):
        channel.commit(batch, manifest((0, 1), at=1))
    with pytest.raises(UnknownPartition, match="has 2 partitions"):
        channel.open("other", partitions=[2])


def test_a_batch_does_not_get_the_partitions_of_later_growth(channel: Channel) -> None:
    batch = channel.open("k").batch
    channel.ledger = grow(channel.ledger, 3)

    with pytest.raises(UnknownPartition):
        channel.commit(batch, manifest((0, 1), at=2))
    assert channel.open("later", "i2").batch.begin == {0: 0, 1: 0, 2: 0}
    assert grow(channel.ledger, 1).partitions == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"digest": "0" * 64},
        {"records": 4},
        {"counts": {0: 2, 1: 1}},
        {"counts": {0: 4, 1: -1}},
    ],
)
def test_counts_and_digest_must_fit_the_manifest(channel: Channel, wrong: dict[str, Any]) -> None:
    batch = channel.open("k").batch

    with pytest.raises(InvalidManifest):
        channel.commit(batch, manifest((0, 3)), **wrong)


def test_messages_may_hold_many_records(channel: Channel) -> None:
    batch = channel.open("k").batch
    decision = channel.commit(batch, manifest((0, 3)), records=900, counts={0: 900})

    assert decision.batch.records == 900


def test_adjacent_runs_become_one(channel: Channel) -> None:
    channel.commit(channel.open("a").batch, manifest((0, 5)))
    decision = channel.commit(channel.open("b").batch, manifest((5, 7), (9, 12)))

    assert decision.runs_removed == {0: (Interval(0, 5),)}
    assert decision.runs_added == {0: (Interval(0, 7), Interval(9, 12))}


def test_a_lease_is_renewed_up_to_the_batchs_age(channel: Channel) -> None:
    batch = channel.open("k").batch

    assert renew(batch, NOW + LEASE / 2, LEASE).lease_until == NOW + LEASE * 1.5
    assert renew(batch, NOW - LEASE, LEASE).lease_until == batch.lease_until
    assert renew(batch, NOW + HOUR, LEASE).lease_until == NOW + HOUR
    aborted = channel.abort(batch).aborted[0]
    assert renew(aborted, NOW, LEASE) == aborted


def test_vanished_writers_are_reaped_and_release_readers(channel: Channel) -> None:
    vanished = channel.open("a").batch
    channel.now += LEASE / 2
    live = channel.open("b", "i2").batch
    third = channel.open("c", "i3").batch
    channel.commit(third, manifest((0, 4)))
    decision = reap(channel.ledger, channel.open_batches, NOW + LEASE)

    assert [(aborted.id, aborted.ending) for aborted in decision.aborted] == [
        (vanished.id, Ending.REAP)
    ]
    assert decision.ledger.number == 2
    assert decision.ledger.stable == {0: 0}
    assert not expired(live, NOW + LEASE)
    final = reap(decision.ledger, [live], NOW + HOUR)
    assert final.ledger.stable == {0: 4}


def test_the_end_of_an_instance_aborts_its_open_batches_alone(channel: Channel) -> None:
    done = channel.open("a", "ended").batch
    channel.commit(done, manifest((0, 4)))
    left = channel.open("b", "ended").batch
    others = channel.open("c", "i2").batch
    decision = abort_instances(channel.ledger, channel.open_batches, {"ended", "unknown"}, NOW)

    assert [(aborted.id, aborted.ending) for aborted in decision.aborted] == [
        (left.id, Ending.ABORT)
    ]
    assert decision.ledger.number == 2
    channel.store(decision.ledger, *decision.aborted)
    again = abort_instances(channel.ledger, channel.open_batches, {"ended"}, NOW)
    assert again == AbortDecision(aborted=(), ledger=channel.ledger)
    # A task that outlives its driver.
    with pytest.raises(BatchAborted, match="ended before the commit"):
        channel.open("b", "ended")
    assert channel.open("b", "i3").batch.state is BatchState.OPEN
    channel.commit(others, manifest((4, 8)))


def test_a_manifest_beyond_the_watermark_may_be_repeated() -> None:
    require_written(manifest((0, 5)), {0: 5})
    with pytest.raises(BeyondWatermark, match=r"ends at 5 .* watermark is 4") as raised:
        require_written(manifest((0, 5)), {0: 4})
    assert raised.value.retriable
    with pytest.raises(BeyondWatermark):
        require_written(manifest((0, 5), at=9), {0: 4})


def test_reused_offsets_halt_the_ledger(channel: Channel) -> None:
    batch = channel.open("k").batch
    channel.commit(batch, manifest((0, 5)))
    open_batch_ = channel.open("open").batch
    assert reused_offsets(channel.ledger, {0: 5}) == {}
    assert reused_offsets(channel.ledger, {0: 4}) == {0: 4}

    channel.ledger = halt(channel.ledger, {0: 4})
    reason = channel.ledger.halted
    with pytest.raises(LedgerHalted, match=r"from offset 4 on.*`sluiceway channels repair NAME`"):
        channel.open("more")
    with pytest.raises(LedgerHalted):
        channel.commit(open_batch_, manifest((5, 6)))
    assert reused_offsets(channel.ledger, {0: 4}) == {}
    assert reused_offsets(channel.ledger, {0: 3}) == {0: 3}
    channel.ledger = halt(channel.ledger, {0: 3})
    assert (channel.ledger.halted, channel.ledger.lost_from) == (reason, {0: 3})


def repair(channel: Channel, lost_from: dict[int, int], ends: dict[int, int]) -> RepairDecision:
    return repair_ledger(
        channel.ledger,
        [*channel.owners.values()],
        channel.open_batches,
        {at: sorted(runs) for at, runs in channel.runs.items()},
        ends,
        RepairRequest(lost_from=lost_from, reason="r", by="ops"),
        NOW,
    )


def test_a_repair_removes_lost_runs_and_lowers_no_end(channel: Channel) -> None:
    channel.commit(channel.open("k").batch, manifest((0, 5), (7, 9)))
    open_batch_ = channel.open("open").batch
    with pytest.raises(LedgerIntact):
        repair(channel, {0: 4}, {0: 9})
    channel.ledger = halt(channel.ledger, {0: 4})
    with pytest.raises(RepairChanged, match="lost from 4 of partition 0, but the request has 5"):
        repair(channel, {0: 5}, {0: 9})
    with pytest.raises(BeyondWatermark, match="lacks 1 messages up to 9"):
        repair(channel, {0: 4}, {0: 8})
    done = repair(channel, {0: 4}, {0: 9})

    assert (done.runs_removed, done.runs_added) == ({0: ((0, 5), (7, 9))}, {0: ((0, 4),)})
    assert [(records.first, records.end, records.messages) for records in done.repair.lost] == [
        (4, 9, 3)
    ]
    assert (done.ledger.visible_end, done.ledger.stable) == ({0: 9}, {0: 9})
    assert (done.ledger.halted, done.ledger.lost_from) == (None, {})
    assert [aborted.id for aborted in done.aborted] == [open_batch_.id]
    assert done.aborted[0].number == 2
    assert done.ledger.number == done.ledger.repaired == done.repair.number == 3
    assert all(owner.fence == owner.epoch for owner in done.owners)


def test_ends_are_final() -> None:
    assert not BATCH_TRANSITIONS[BatchState.COMMITTED]
    assert not BATCH_TRANSITIONS[BatchState.ABORTED]


ENDS = st.dictionaries(st.integers(0, 3), st.integers(0, 50))


@given(ENDS, st.lists(ENDS))
def test_stable_is_the_lowest_begin_or_the_visible_end(
    visible_end: Mapping[int, int], begins: Sequence[Mapping[int, int]]
) -> None:
    stable = stable_of(visible_end, begins)

    for at, end in visible_end.items():
        assert stable[at] == min([end, *(begin[at] for begin in begins if at in begin)])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "commit", "abort", "reap", "end", "grow"]),
        st.integers(0, 5),
        st.integers(0, 9),
    ),
    max_size=40,
)


@given(STEPS)
def test_stable_and_visible_end_never_fall(steps: list[tuple[str, int, int]]) -> None:
    channel, written = Channel(), 0
    for count, (step, which, offset) in enumerate(steps):
        before = channel.ledger
        live = channel.open_batches
        batch = live[which % len(live)] if live else None
        if step == "open":
            channel.now += LEASE / 10
            channel.open(f"k{count}", f"i{count}", takeover=which == 0, owner=f"o{which % 2}")
        elif step == "grow":
            channel.ledger = grow(channel.ledger, 2 + which)
        elif step == "reap":
            decision = reap(channel.ledger, live, channel.now)
            channel.store(decision.ledger, *decision.aborted)
        elif step == "end":
            decision = abort_instances(channel.ledger, live, {f"i{which}"}, channel.now)
            channel.store(decision.ledger, *decision.aborted)
        elif batch is not None and step == "commit":
            at = [*batch.begin][offset % len(batch.begin)]
            first = max(written, batch.begin[at])
            written = first + 1 + offset
            channel.commit(batch, manifest((first, written), at=at))
        elif batch is not None:
            channel.abort(batch)
        after = channel.ledger
        assert after.number >= before.number
        for at, end in before.visible_end.items():
            assert after.visible_end[at] >= end
            assert after.stable[at] >= before.stable.get(at, 0)
            assert after.stable[at] <= after.visible_end[at]
