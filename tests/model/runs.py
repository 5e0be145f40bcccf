"""Runs of a job and of its readers `until="finished"`, with the rules of gateway and client.

Each run has writers, which close, fail, or are lost, and are retried with their keys. Each place of
a group of readers reads once per run; it may start before, during and after the run's writers.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

from tests.model.gateway import Gateway
from tests.model.readers import places_of
from tests.model.world import JobFailed, Log, Process, Record, Steps, Violation, World, pause

from sluiceway.api.endpoints import Endpoint
from sluiceway.endpoint import stop_condition
from sluiceway.endpoint.stop_condition import LostWriterPolicy
from sluiceway.errors import CounterpartError
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.endpoints import model as endpoints
from sluiceway_gateway.endpoints.groups import model as groups
from sluiceway_gateway.endpoints.groups.model import GroupConfig, new_group
from sluiceway_gateway.endpoints.model import ANONYMOUS, Health, Mode, Place, Role, State
from sluiceway_gateway.ledger import model
from sluiceway_gateway.ledger.batches import CommitRequest, OpenRequest
from sluiceway_gateway.ledger.model import BatchState, Settlement, digest_of

TIMEOUT_S = 10
"""The heartbeat timeout of writers."""
CALM_STEPS = 3_000


class JobRuns:
    """The runs of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(f"runs {seed}")  # noqa: S311 - not for secrets
        self.world = World(rng, Log(2))
        self.gateway = Gateway(self.world, 2)
        self.runs = rng.randint(2, 3)
        self.jobs = rng.randint(1, 2)
        self.sizes = [rng.choice([1, 2, 2]) for _ in range(self.runs)]
        self.group = new_group("c", Role.READER, "g", GroupConfig(size=self.sizes[0]))
        self.writers: dict[str, endpoints.Endpoint] = {}
        self.silent_since: dict[str, float] = {}
        """By writer, when it was killed."""
        self.number = 0
        self.through: Mapping[int, int] = {}
        """By place, the number of the last writer that it has read to its end."""
        self.positions: dict[int, int] = {}
        self.returned: set[tuple[int, int]] = set()
        self.done: set[tuple[str, int, int]] = set()
        """Role, number of the run, and number of the job or place of what has finished."""

    def run(self) -> int:
        """Run with faults, then without; return the number of steps."""
        self.world.spawn("health", self._watch())
        for job in range(self.jobs):
            self.world.spawn("jobs", self._jobs(job))
        for place in range(max(self.sizes)):
            self.world.spawn("places", self._places(place))
        faulty = self.random.randint(50, 300)
        for step in range(CALM_STEPS):
            self.world.calm = step > faulty
            self.world.step()
            if len(self.world.processes) == 1:
                return step
        raise Violation("stuck", f"of {self.runs} runs only {sorted(self.done)} have finished")

    # --- the gateway

    def _watch(self) -> Steps:
        """Find silent writers lost, and abort their batches."""
        while True:
            yield
            for name, since in [*self.silent_since.items()]:
                if self.world.seconds - since >= TIMEOUT_S:
                    del self.silent_since[name]
                    self.writers[name] = replace(self.writers[name], health=Health.LOST)
                    self._abort(name)

    def _abort(self, name: str) -> None:
        self.gateway.over.add(name)
        self.gateway.end(name)

    def _next_number(self) -> int:
        self.number += 1
        return self.number

    def _attach_writer(self, job: int, group: str) -> str:
        name = self.world.new_id("w")
        place = Place(role=Role.WRITER, group=group, index=job if group else self.number)
        for before in self.writers.values():
            if group and before.place == place and not before.superseded:
                replaced = endpoints.superseded(before, by="its successor", now=self.world.now)
                self.writers[before.id] = replaced
        self.writers[name] = endpoints.Endpoint(
            id=name,
            channel_uid="c",
            session=name,
            place=place,
            size=self.jobs if group else None,
            mode=Mode.SHARED,
            epoch=1,
            generation=1,
            attached_at=self.world.now,
            changed_at=self.world.now,
            number=self._next_number(),
        )
        return name

    def _detach_writer(self, name: str, state: State, ends: Mapping[int, int] | None) -> None:
        endpoint = endpoints.moved(self.writers[name], state, now=self.world.now)
        self._abort(name)
        earlier = [
            before
            for before in self.writers.values()
            if endpoint.place.group and before.place == endpoint.place and before.id != name
        ]
        unfinished = earlier and earlier[-1].state is not State.CLOSED and earlier[-1].ends is None
        if state is State.ERROR and (ends is None or unfinished):
            ends = None
        else:
            wrote = bool(ends)
            for before in earlier:
                ends = endpoints.merged_ends(ends, before.ends)
            if state is State.ERROR and ends and not wrote:
                endpoint = replace(endpoint, number=earlier[-1].number)
        self.writers[name] = replace(endpoint, ends=ends)

    def _listed(self) -> list[Endpoint]:
        """Return the writers, as the answer to a heartbeat has them."""
        return [
            Endpoint(
                id=writer.id,
                role="writer",
                group=writer.place.group or None,
                index=writer.place.index,
                size=writer.size,
                state=str(writer.state),
                health=str(writer.health),
                ends=endpoints.reported_ends(writer),
                lost_at=self.world.log.watermarks() if writer.health is Health.LOST else None,
                number=writer.number,
                settled=None if writer.lives or writer.is_finished else self._settled(writer.id),
            )
            for writer in self.writers.values()
            if not writer.superseded
        ]

    def _settled(self, name: str) -> Settlement:
        batches = [batch for batch in self.gateway.batches.values() if batch.instance == name]
        states = {batch.state for batch in batches}
        return model.settlement(
            is_open=BatchState.OPEN in states,
            committed=BatchState.COMMITTED in states,
            aborted=BatchState.ABORTED in states,
            abandoned=bool({batch.key for batch in batches} - self._committed_keys()),
        )

    def _committed_keys(self) -> set[str]:
        return {*self.gateway.committed_keys.values()}

    # --- writers

    def _jobs(self, job: int) -> Steps:
        """Write the job's part of each run, after the readers of the run before have ended."""
        group = self.random.choice([ANONYMOUS, "writers"])
        for run in range(self.runs):
            while run and not self._have_read(run - 1):
                yield
            yield from pause(self.world, 40)
            keys = [f"{run}.{job}.{at}" for at in range(self.random.randint(1, 2))]
            while True:
                name = self._attach_writer(job, group)
                process = self.world.spawn(name, self._write(name, keys))
                while not process.over:
                    yield
                    if not process.over and self.world.fault("writer killed", 0.04):
                        self.world.crash(process)
                        self.silent_since[name] = self.world.seconds
                if process.error is None:
                    break
                yield from pause(self.world, 60)
                while any(batch.instance == name for batch in self.gateway.open_batches()):
                    yield
            self.done.add(("job", run, job))

    def _write(self, name: str, keys: list[str]) -> Steps:
        """Write each key that is not committed, in a batch of its own, and close."""
        ends: dict[int, int] = {}
        for key in keys:
            yield from self._may_fail(name, ends)
            request = OpenRequest(key=key, owner=key, instance=name)
            batch = self.gateway.open(request)
            if batch.state is BatchState.COMMITTED:
                continue
            manifest = {}
            for at in self.random.choice([(0,), (1,), (0, 1)]):
                yield from self._may_fail(name, ends)
                offset = self.world.log.append(at, Record((key, at), batch.id))
                manifest[at] = (Interval(offset, offset + 1),)
                ends[at] = offset + 1
            yield from self._may_fail(name, ends)
            self.gateway.commit(
                CommitRequest(
                    batch=batch.id,
                    instance=name,
                    digest=digest_of(manifest),
                    manifest=manifest,
                    records=len(manifest),
                    counts=dict.fromkeys(manifest, 1),
                )
            )
        yield from self._may_fail(name, ends)
        self._detach_writer(name, State.CLOSED, ends)

    def _may_fail(self, name: str, ends: Mapping[int, int]) -> Steps:
        yield
        if self.world.fault("writer failed", 0.15):
            self._detach_writer(name, State.ERROR, None if ends else {})
            raise JobFailed(name)

    # --- readers

    def _have_read(self, run: int) -> bool:
        return all(("place", run, place) in self.done for place in range(self.sizes[run]))

    def _places(self, place: int) -> Steps:
        """Read once per run; a run that failed starts again."""
        for run, size in enumerate(self.sizes):
            # Places of a group of the same size start their next runs on their own.
            while run and size != self.sizes[run - 1] and not self._have_read(run - 1):
                yield
            if place >= size:
                # Its index exists in another size only.
                while not self._have_read(run):
                    yield
                continue
            yield from pause(self.world, 80)
            self._resize(size)
            while ("place", run, place) not in self.done:
                process = self.world.spawn("reader", self._read(run, place, size))
                while not process.over:
                    yield
                    if not process.over and self.world.fault("reader killed", 0.04):
                        self._end_reader(process, place)

    def _resize(self, size: int) -> None:
        before = self.group
        self.group = before.reconfigured(GroupConfig(size=size), live=0, now=self.world.now)
        if self.group is not before:
            self.through = groups.finished_after(before, self.group, self.through)

    def _end_reader(self, process: Process, place: int) -> None:
        """Kill a reader, which stores nothing."""
        self.world.crash(process)
        self.after_failure(place)

    def after_failure(self, place: int) -> None:
        """Store what a crash or an exception of a reader stores: nothing."""

    def _read(self, run: int, place: int, size: int) -> Steps:
        """Read the place's partitions until all writers of a run have finished."""
        live = frozenset(name for name, writer in self.writers.items() if writer.lives)
        policy = LostWriterPolicy(
            "raise",
            heartbeat_timeout_s=TIMEOUT_S,
            reader=SimpleNamespace(  # the fields of an AttachResult that matter
                live_writers=live,
                finished_through=self.through.get(place, self.through.get(-1, 0)),
                positions={},
                number=self._next_number(),
            ),
            monotonic=lambda: self.world.seconds,
        )
        seen_open = {*live}
        own = range(place, 2, size)
        at = {partition: self.positions.get(partition, 0) for partition in own}
        listed, committed = self._listed(), self._committed_keys()
        raised = False
        while True:
            yield
            if self.random.random() < 0.3:
                listed, committed = self._listed(), self._committed_keys()
            seen_open |= {endpoint.id for endpoint in listed if endpoint.lives}
            outcome = stop_condition.writers_outcome(listed, policy, channel="c", writers=self.jobs)
            yield
            response = self.gateway.committed(at, 1000, None)
            for partition, offset in places_of(response.runs):
                if partition in own and at[partition] <= offset:
                    self.returned.add((partition, offset))
            at = {
                partition: max(at[partition], response.stable.get(partition, 0))
                for partition in own
            }
            if self.random.random() < 0.2:
                self.positions.update(at)
            if outcome is None or any(
                response.visible_end.get(partition, 0) > at[partition] for partition in own
            ):
                raised = False
                continue
            if outcome.error is None:
                yield
                self.positions.update(at)
                self.through = {**self.through, place: outcome.through or 0}
                self._check_end(run, own)
                self.done.add(("place", run, place))
                return
            if raised:
                self._check_error(outcome.error, seen_open, committed)
                self.after_failure(place)
                raise JobFailed("reader")
            # Before it raises, a heartbeat lists the writers again.
            listed, committed, raised = self._listed(), self._committed_keys(), True

    # --- properties

    def _check_end(self, run: int, own: range) -> None:
        """Raise unless a read that has ended has all records of its run and of earlier ones."""
        late = [job for job in range(self.jobs) if not self._has_committed(run, job)]
        if late:
            raise Violation("lost", f"a read of the run {run} ended before the jobs {late}")
        missing = {
            (at, offset)
            for number, manifest in self.gateway.manifests.items()
            if int(self.gateway.committed_keys[number].split(".")[0]) <= run
            for at, offset in places_of(manifest)
            if at in own and (at, offset) not in self.returned
        }
        if missing:
            raise Violation("lost", f"a read of the run {run} ended without {sorted(missing)}")

    def _has_committed(self, run: int, job: int) -> bool:
        return any(key.startswith(f"{run}.{job}.") for key in self._committed_keys())

    def _check_error(
        self, error: CounterpartError, seen_open: set[str], committed_keys: set[str]
    ) -> None:
        """Raise if a reader fails for a writer that had left nothing undone when it looked."""
        for name in error.endpoints:
            batches = [batch for batch in self.gateway.batches.values() if batch.instance == name]
            has_open = any(batch.state is BatchState.OPEN for batch in batches)
            left = {batch.key for batch in batches} - committed_keys
            if batches and not left and not has_open:
                raise Violation("stuck", f"a reader fails for {name}, whose keys are committed")
            committed = any(batch.state is BatchState.COMMITTED for batch in batches)
            if not committed and not has_open and name not in seen_open:
                raise Violation("stuck", f"a reader fails for {name}, which it never saw open")
