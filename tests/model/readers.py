"""Readers: streams with checkpoints, bounded reads, snapshots."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.model.gateway import Gateway, Response
from tests.model.world import Steps, Violation, World, offsets, pause

from sluiceway_gateway.core.errors import NotFound

_PARTITIONS = 10
"""More than any schedule has."""


def fetch(world: World, partition: int, offset: int) -> tuple[Any, ...] | None:
    """Return a record's identity; None if the record has expired."""
    if offset < world.log.starts[partition]:
        return None
    if offset >= len(world.log.records[partition]):
        raise Violation("lost", f"{offset} of {partition} is visible, but Kafka does not have it")
    record = world.log.records[partition][offset]
    if record is None:
        raise Violation("duplicated", f"a foreign record at {offset} of {partition} is visible")
    return record.identity


class StreamReader:
    """Reads up to `stable`, skips offsets outside of runs, and restarts from its checkpoint."""

    def __init__(self, world: World, gateway: Gateway, limit: int) -> None:
        self.world, self.gateway, self.limit = world, gateway, limit
        self.positions: dict[int, int] = {}
        self.seen: dict[tuple[int, int], tuple[Any, ...]] = {}
        """By partition and offset, the records read up to the checkpoint."""
        self.planned: Mapping[int, int] | None = None
        self.replayed: dict[tuple[int, int], tuple[Any, ...]] | None = None
        self.expired_reported = 0

    def read(self) -> Steps:
        """Read forever; each round uses one response."""
        known_number = None
        while True:
            yield
            response = yield from self.response(known_number)
            if response is None:
                continue
            # A replay reads the planned offsets again, whatever was committed since.
            replay = self.planned is not None
            ends = self.ends(response) if self.planned is None else self.planned
            records: dict[tuple[int, int], tuple[Any, ...]] = {}
            self.planned = ends
            for partition, end in ends.items():
                yield
                start = self.positions.get(partition, 0)
                start = self._from_log(partition, start, end)
                for offset in offsets(response.runs.get(partition, ())):
                    if start <= offset < end:
                        identity = fetch(self.world, partition, offset)
                        if identity is None:
                            self.report_expired(partition, offset, offset + 1)
                        else:
                            records[partition, offset] = identity
            self._compare(records)
            self.replayed = records
            if self.world.fault("reader crashed", 0.1):
                known_number = None
                continue
            self.seen.update(records)
            self.positions.update(ends)
            self.planned, self.replayed = None, None
            known_number = None if replay else response.number

    def restart(self) -> None:
        """Discard the plan, which a repair may have changed; keep the positions."""
        self.planned = self.replayed = None

    def ends(self, response: Response) -> Mapping[int, int]:
        """Return by partition the offset up to which a response is read."""
        return {at: max(self.positions.get(at, 0), end) for at, end in response.stable.items()}

    def response(self, known_number: int | None) -> Steps:
        positions = dict(self.positions)
        response = yield from self.world.call(
            "committed", lambda: self.gateway.committed(positions, self.limit, known_number)
        )
        if response is None:
            return None
        runs, rest = dict(response.runs), dict(response.truncated)
        while rest:
            part = yield from self.world.call("committed", self._next_slice(rest, response))
            for at, more in part.runs.items():
                runs[at] = (*runs.get(at, ()), *more)
            rest = dict(part.truncated)
            response = self.joined(response, part)
        return Response(
            number=response.number,
            stable=response.stable,
            visible_end=response.visible_end,
            runs=runs,
            truncated={},
        )

    def _next_slice(self, starts: Mapping[int, int], first: Response) -> Callable[[], Response]:
        return lambda: self.gateway.more(starts, self.limit, first)

    def joined(self, first: Response, _further: Response) -> Response:
        """Return the response whose `stable` is used: the first one."""
        return first

    def _from_log(self, partition: int, start: int, end: int) -> int:
        """Return where to start; report records that expired before they were read."""
        log_start = self.world.log.starts[partition]
        if start < min(end, log_start):
            self.report_expired(partition, start, min(end, log_start))
            return log_start
        return start

    def report_expired(self, partition: int, start: int, end: int) -> None:
        """Report expired records to the user, who continues."""
        self.world.note(f"the records [{start}, {end}) of {partition} have expired")
        self.expired_reported += 1

    def _compare(self, records: dict[tuple[int, int], tuple[Any, ...]]) -> None:
        if self.replayed is None:
            return
        before = {
            place: identity
            for place, identity in self.replayed.items()
            if place[1] >= self.world.log.starts[place[0]]
        }
        after = {place: identity for place, identity in records.items() if place in before}
        if after != before or any(place not in self.replayed for place in records):
            raise Violation("lost", "a replay from a checkpoint reads different records")


def bounded_read(world: World, gateway: Gateway) -> Steps:
    """Read as a group does: a prefix up to `visible_end` of the start, once `stable` is there."""
    first = yield from world.call("committed", lambda: gateway.committed({}, 10_000, None))
    expected = {
        (at, offset)
        for at, runs in gateway.runs.items()
        for offset in offsets(runs)
        if offset < first.visible_end.get(at, 0)
    }
    ends = bounds(first)
    while True:
        response = yield from world.call("committed", lambda: gateway.committed({}, 10_000, None))
        if all(response.stable.get(at, 0) >= end for at, end in ends.items()):
            break
        yield
    actual = {
        (at, offset)
        for at, runs in response.runs.items()
        for offset in offsets(runs)
        if offset < ends.get(at, 0)
    }
    starts = world.log.starts
    if missing := {place for place in expected - actual if place[1] >= starts[place[0]]}:
        raise Violation("lost", f"a bounded read lacks {sorted(missing)[:3]}")


def bounds(first: Response) -> Mapping[int, int]:
    """Return the end of a bounded read, by partition."""
    return first.visible_end


def read_whole(world: World, gateway: Gateway, number: int | None, limit: int) -> Steps:
    """Read the batches up to a number, in slices; return the first response and the places."""
    partitions = gateway.ledger.partitions
    while True:
        starts = dict.fromkeys(range(partitions), 0)
        first = yield from world.call("snapshot", _further(gateway, number, starts, limit))
        added = added_partitions(first, partitions)
        if not added:
            break
        partitions += added
    places = places_of(first.runs)
    rest = dict(first.truncated)
    while rest:
        part = yield from world.call("snapshot", _further(gateway, first.number, rest, limit))
        places |= places_of(part.runs)
        rest = dict(part.truncated)
    return first, places


def added_partitions(first: Response, partitions: int) -> int:
    """Return how many partitions were added between the connection and the response."""
    return max(0, max(first.visible_end, default=-1) + 1 - partitions)


def _further(
    gateway: Gateway, number: int | None, starts: Mapping[int, int], limit: int
) -> Callable[[], Response]:
    return lambda: gateway.whole(number, starts, limit)


def places_of(runs: Mapping[int, Iterable[tuple[int, int]]]) -> set[tuple[int, int]]:
    """Return the partitions and offsets of runs."""
    return {(at, offset) for at, intervals in runs.items() for offset in offsets(intervals)}


def require_whole(
    world: World, gateway: Gateway, number: int, places: set[tuple[int, int]]
) -> None:
    """Raise unless the places are those of the batches up to a number that Kafka still has."""
    starts = world.log.starts
    different = {
        place for place in gateway.committed_up_to(number) ^ places if place[1] >= starts[place[0]]
    }
    if different:
        raise Violation("lost", f"the batches up to {number} are divided: {sorted(different)[:3]}")


def present_read(world: World, gateway: Gateway) -> Steps:
    """Read the batches that are committed now, each wholly, then continue where it ended."""
    limit = world.random.choice([1, 3, 10_000])
    try:
        first, places = yield from read_whole(world, gateway, None, limit)
    except NotFound:
        return
    require_whole(world, gateway, first.number, places)
    positions = resumable(first)
    yield from pause(world, 200)
    following = {place for place in places_of(gateway.runs) if place[1] >= positions[place[0]]}
    if skipped := places_of(gateway.runs) - places - following:
        raise Violation("lost", f"a read from the reported positions skips {sorted(skipped)[:3]}")


def resumable(first: Response) -> Mapping[int, int]:
    """Return the positions that a read of whole batches reports, by partition."""
    return {at: first.stable.get(at, 0) for at in range(_PARTITIONS)}


def repeated_snapshot(world: World, gateway: Gateway) -> Steps:
    """Read one snapshot repeatedly, until it is pruned; it has whole batches each time."""
    while not gateway.snapshots:
        if world.calm:
            return
        yield
    number = world.random.choice([*gateway.snapshots])
    for _ in range(4):
        yield from (None for _ in range(world.random.randint(5, 80)))
        try:
            _, places = yield from read_whole(world, gateway, number, 3)
        except NotFound:
            return
        if not gateway.is_given_up(number):
            require_whole(world, gateway, number, places)
