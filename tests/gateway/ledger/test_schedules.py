"""Random concurrent requests to one ledger, on SQLite and PostgreSQL."""

import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from endpoints import Site
from ledger_sites import FEATURES, LedgerSite, ledger_site, written_topic
from shared_kafka import SharedKafka
from sluiceway_gateway.core.auth.service import LOOPBACK
from sluiceway_gateway.core.errors import Conflict, SluicewayGatewayError
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.ledger import batch_store, store
from sluiceway_gateway.ledger.batches import CommitRequest, OpenRequest
from sluiceway_gateway.ledger.model import BatchState, Manifest, digest_of, merge_runs, reap
from sluiceway_gateway.ledger.pruning import LedgerPruner
from sluiceway_gateway.ledger.reading import CommittedQuery, LedgerReads
from sluiceway_gateway.ledger.service import Ledgers, save_aborted

WRITERS, READERS, BATCHES = 6, 2, 12
LEASE_MS = 10_000
LEASE = timedelta(milliseconds=LEASE_MS)
ALL = CommittedQuery(limit=10_000)


def offsets(runs: Any) -> set[tuple[int, int]]:
    """Return partition and offset of everything in the runs."""
    return {
        (partition, offset)
        for partition, intervals in runs.items()
        for first, end in intervals
        for offset in range(first, end)
    }


class Log:
    """The offsets that Kafka would give to writers: each once, in order."""

    def __init__(self, partitions: int, records: int) -> None:
        self._next = [0] * partitions
        self._records = records
        self._lock = threading.Lock()

    def append(self, partition: int, count: int) -> Interval | None:
        with self._lock:
            first = self._next[partition]
            if first + count > self._records:
                return None
            self._next[partition] = first + count
            return Interval(first, first + count)


class Writers:
    """Writers that open, write, repeat, vanish and take over at random."""

    def __init__(self, ledger: LedgerSite, seed: int) -> None:
        self._site = ledger
        self._ledgers: Ledgers = ledger.rig.app.state.parts.ledgers
        self._log = Log(ledger.topic.partitions, 1000)
        self._seed = seed
        self._lock = threading.Lock()
        self.committed: dict[str, Manifest] = {}
        """By key, what a commit was answered for."""
        self._ordered: set[str] = set()

    def ordered(self, key: str) -> bool:
        """Whether a key's batch had a place in an order."""
        return key in self._ordered

    def run(self, number: int) -> None:
        chance = random.Random(self._seed * 1000 + number)  # noqa: S311
        for count in range(BATCHES):
            # Two writers share each owner, so they take over and meet each other's keys.
            owner = f"owner-{number // 2}"
            with suppress(Conflict):
                self._write(chance, owner, f"{owner}/{count}", count)

    def _write(self, chance: random.Random, owner: str, key: str, ordinal: int) -> None:
        request = OpenRequest(
            key=key,
            owner=owner,
            instance=uuid.uuid4().hex,
            takeover=chance.random() < 0.5,
            ordinal=ordinal if chance.random() < 0.3 else None,
            partitions=chance.choice([None, [0, 1], [1, 2]]),
            lease_ms=LEASE_MS,
        )
        name, uid = self._site.name, self._site.uid
        batch = self._ledgers.open(name, request, uid=uid, principal=LOOPBACK).batch
        again = self._ledgers.open(name, request, uid=uid, principal=LOOPBACK).batch
        # Another instance may have taken over and committed the key meanwhile.
        assert again.id == batch.id or again.state is BatchState.COMMITTED
        if batch.number is not None:
            return
        if chance.random() < 0.5:
            self._ledgers.renew(
                name, {batch.id: batch.instance}, uid=uid, lease=LEASE, principal=LOOPBACK
            )
        manifest: dict[int, tuple[Interval, ...]] = {}
        for partition in sorted(chance.sample(sorted(batch.begin), k=2)):
            written = [self._log.append(partition, chance.randint(1, 4)) for _ in range(3)]
            # What another attempt wrote is listed by nobody.
            listed = [
                interval for interval in written if interval is not None and chance.random() < 0.8
            ]
            manifest[partition] = merge_runs(listed)
        end = chance.random()
        if end < 0.15:
            return
        if end < 0.3:
            self._ledgers.abort(
                name, batch.id, uid=uid, instance=batch.instance, cause="chance", principal=LOOPBACK
            )
            return
        commit = CommitRequest(
            batch=batch.id,
            instance=batch.instance,
            digest=digest_of(manifest),
            manifest=manifest,
            records=len(offsets(manifest)),
            counts={at: len(offsets({at: intervals})) for at, intervals in manifest.items()},
        )
        responses = [self._commit(commit) for _ in range(chance.choice([1, 2]))]
        assert all(response == responses[0] for response in responses)
        with self._lock:
            assert key not in self.committed, "a key is committed once"
            self.committed[key] = manifest
            if batch.ordinal is not None:
                self._ordered.add(key)

    def _commit(self, request: CommitRequest) -> tuple[int | None, Any]:
        done = self._ledgers.commit(
            self._site.name,
            request,
            uid=self._site.uid,
            slices=0,
            positions=None,
            principal=LOOPBACK,
        )
        return done.batch.number, done.stable


class Care:
    """Lets time pass, and aborts batches whose leases are over, as the gateway does by itself."""

    def __init__(self, ledger: LedgerSite, seed: int) -> None:
        self._site = ledger
        self._chance = random.Random(seed)  # noqa: S311
        self.reaped = 0

    def run(self, done: threading.Event) -> None:
        while not done.wait(0.002):
            self._site.rig.clock.advance(timedelta(seconds=self._chance.randint(0, 2)))
            self.reap()

    def reap(self) -> None:
        rig = self._site.rig
        with rig.database.write() as tx:
            was = store.hold_existing(tx, self._site.uid)
            if was is None:
                return
            ended = reap(was, batch_store.open_batches(tx, self._site.uid), rig.clock())
            save_aborted(tx, ended, was=was, now=rig.clock())
        self.reaped += len(ended.aborted)


class Reader:
    """Reads again and again; what was final stays as it was."""

    def __init__(self, ledger: LedgerSite) -> None:
        self._site = ledger
        self._reads: LedgerReads = ledger.rig.app.state.parts.ledger_reads
        self.states: dict[int, tuple[Any, Any]] = {}

    def run(self, done: threading.Event) -> None:
        stable: dict[int, int] = {}
        seen: set[tuple[int, int]] = set()
        while True:
            last = done.is_set()
            state = self._reads.committed(self._site.name, ALL, uid=self._site.uid)
            for partition, before in stable.items():
                assert state.stable.get(partition, 0) >= before, "stable never goes back"
            visible = offsets(state.runs)
            final = {record for record in visible if record[1] < stable.get(record[0], 0)}
            assert final == seen, "what is below stable never changes"
            stable, seen = dict(state.stable), visible
            self.states[state.number] = (state.stable, state.runs)
            if last:
                return


def run_schedule(ledger: LedgerSite, seed: int) -> Writers:
    """Let writers, readers and the reaper work at once, and check what is left."""
    writers, readers = Writers(ledger, seed), [Reader(ledger) for _ in range(READERS)]
    care, done = Care(ledger, seed), threading.Event()
    with ThreadPoolExecutor(WRITERS + READERS + 1) as pool:
        others = [pool.submit(actor.run, done) for actor in (*readers, care)]
        writing = [pool.submit(writers.run, number) for number in range(WRITERS)]
        for future in writing:
            future.exception()
        done.set()
        for future in (*writing, *others):
            future.result()
    # Whoever vanished is reaped, and nothing is held back any more.
    ledger.rig.clock.advance(LEASE)
    care.reap()
    reads: LedgerReads = ledger.rig.app.state.parts.ledger_reads
    state = reads.committed(ledger.name, ALL, uid=ledger.uid)
    assert state.open == ()
    assert dict(state.stable) == dict(state.visible_end)
    expected = [record for manifest in writers.committed.values() for record in offsets(manifest)]
    assert len(expected) == len(set(expected)) > 0
    assert offsets(state.runs) == set(expected)
    assert all(
        before.end < after.first
        for intervals in state.runs.values()
        for before, after in pairwise(intervals)
    )
    ended = reads.commits(ledger.name, uid=ledger.uid, before=None, limit=10_000).ended
    assert [batch.number for batch in ended] == [*range(state.number, 0, -1)]
    committed = {batch.key for batch in ended if batch.state is BatchState.COMMITTED}
    assert committed == writers.committed.keys()
    for reader in readers:
        for number, (stable, runs) in reader.states.items():
            if number:
                past = CommittedQuery(limit=10_000, number=number)
                again = reads.committed(ledger.name, past, uid=ledger.uid)
                assert (again.stable, offsets(again.runs)) == (stable, offsets(runs))
    return writers


@pytest.mark.sample
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_random_concurrent_batches_are_visible_once_or_never(ledger: LedgerSite, seed: int) -> None:
    assert run_schedule(ledger, seed).committed


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 30))
def test_many_random_concurrent_batches_are_visible_once_or_never(
    ledger: LedgerSite, seed: int
) -> None:
    run_schedule(ledger, seed)


@pytest.mark.long
def test_no_committed_key_is_lost_while_ledgers_are_pruned(ledger: LedgerSite) -> None:
    writers = run_schedule(ledger, 3)
    ledgers: Ledgers = ledger.rig.app.state.parts.ledgers
    ledger.rig.clock.advance(timedelta(days=31))
    pruner = LedgerPruner(database=ledger.rig.database, days=30, clock=ledger.rig.clock)

    def reopen(key: str) -> str:
        owner = key.split("/")[0]
        request = OpenRequest(key=key, owner=owner, instance=uuid.uuid4().hex, lease_ms=LEASE_MS)
        return str(
            ledgers.open(ledger.name, request, uid=ledger.uid, principal=LOOPBACK).batch.state
        )

    kept = [key for key in writers.committed if not writers.ordered(key)]
    with ThreadPoolExecutor(4) as pool:
        pruned = pool.submit(pruner.run_once)
        states = list(pool.map(reopen, kept * 3))
    assert pruned.result().shortened > 0
    assert states == ["committed"] * len(states)
    assert len(states) > 0


@pytest.mark.sample
def test_one_of_many_concurrent_openings_creates_the_batch(ledger: LedgerSite) -> None:
    ledgers: Ledgers = ledger.rig.app.state.parts.ledgers
    request = OpenRequest(key="k", owner="o", instance="i", lease_ms=LEASE_MS)
    with ThreadPoolExecutor(12) as pool:
        openings = [
            pool.submit(ledgers.open, ledger.name, request, uid=ledger.uid, principal=LOOPBACK)
            for _ in range(24)
        ]
    assert len({opening.result().batch.id for opening in openings}) == 1


@pytest.mark.sample
def test_a_concurrent_commit_and_abort_have_one_outcome(ledger: LedgerSite) -> None:
    ledgers: Ledgers = ledger.rig.app.state.parts.ledgers
    name, uid = ledger.name, ledger.uid
    for count in range(15):
        manifest = {0: (Interval(count, count + 1),)}
        request = OpenRequest(key=f"k{count}", owner="o", instance="i", lease_ms=LEASE_MS)
        batch = ledgers.open(name, request, uid=uid, principal=LOOPBACK).batch
        commit = CommitRequest(
            batch=batch.id,
            instance="i",
            digest=digest_of(manifest),
            manifest=manifest,
            records=1,
            counts={0: 1},
        )
        both = threading.Barrier(2)

        def end(
            how: str,
            batch_id: str = batch.id,
            commit: CommitRequest = commit,
            both: threading.Barrier = both,
        ) -> str:
            both.wait()
            try:
                if how == "abort":
                    ledgers.abort(
                        name, batch_id, uid=uid, instance="i", cause="c", principal=LOOPBACK
                    )
                else:
                    ledgers.commit(
                        name, commit, uid=uid, slices=0, positions=None, principal=LOOPBACK
                    )
            except SluicewayGatewayError as error:
                return error.code
            return "done"

        with ThreadPoolExecutor(2) as pool:
            outcomes = list(pool.map(end, ("abort", "commit")))
        visible = (0, count) in offsets(
            ledger.rig.app.state.parts.ledger_reads.committed(name, ALL, uid=uid).runs
        )
        assert outcomes == (["batch_committed", "done"] if visible else ["done", "batch_aborted"])


@pytest.mark.sample
def test_transactions_of_two_channels_in_both_directions_do_not_deadlock(
    ledger: LedgerSite, kafka: SharedKafka
) -> None:
    """Each one's output is the other's input, so both transactions lock both channels."""
    topic = written_topic(kafka.bootstrap_servers, partitions=1, records=40)
    other = ledger_site(ledger.rig, topic, "delays")
    ledger.rig.http.headers.update(FEATURES)
    both = threading.Barrier(2)

    def copy(source: LedgerSite, sink: LedgerSite) -> None:
        place = Site(rig=source.rig, name=source.name, uid=source.uid)
        reader = place.attach(group="copy", index=0, size=1)
        for count in range(40):
            batch = sink.open(f"k{count}", owner=f"into {sink.name}")
            positions = {
                "channel": source.name,
                "uid": source.uid,
                "topic_id": source.topic.id,
                "group": "copy",
                "id": reader["id"],
                "epoch": reader["epoch"],
                "generation": reader["generation"],
                "number": count + 1,
                "positions": [
                    {
                        "partition": 0,
                        "from": {"offset": count, "record": 0} if count else None,
                        "to": {"offset": count + 1, "record": 0},
                    }
                ],
            }
            both.wait(30)
            sink.commit(batch, {0: [(count, count + 1)]}, positions=positions)

    with ThreadPoolExecutor(2) as pool:
        directions = [pool.submit(copy, ledger, other), pool.submit(copy, other, ledger)]
    for direction in directions:
        direction.result()
    for site in (ledger, other):
        state = site.committed()
        assert (state["stable"]["0"], state["open"]) == (40, [])
