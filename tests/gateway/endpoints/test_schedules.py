"""Random schedules of attaches, commits, silence, detaches and resets.

Whatever the order: positions and ends go back by a reset alone, or to what all places of a former
size have read, no commit by a stale instance counts, a place is one instance's, and a partition of
a dynamic group is read by one member at a time.
"""

import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import event

from endpoints import PARTITIONS, Services
from gateways import TOPIC_ID
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.auth.service import LOOPBACK
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.idempotency import Request, StoredResponse
from sluiceway_gateway.core.errors import (
    Conflict,
    Fenced,
    GroupSize,
    IllegalTransition,
    MembersOpen,
    StaleGeneration,
)
from sluiceway_gateway.endpoints.attach_request import AttachSpec
from sluiceway_gateway.endpoints.groups.service import MemberAssignment, SyncRequest
from sluiceway_gateway.endpoints.heartbeats import EndpointReport
from sluiceway_gateway.endpoints.model import Role, State
from sluiceway_gateway.endpoints.positions import Position
from sluiceway_gateway.endpoints.service import DetachSpec
from sluiceway_gateway.offsets.model import Commit
from sluiceway_gateway.offsets.service import Reset
from sluiceway_gateway.provisioning.store import remove


@dataclass
class Instance:
    """A client's own state."""

    asked: AttachSpec
    epoch: int
    generation: int
    attached: int
    """The number of its endpoint."""
    number: int = 0
    beats: int = 0
    state: State = State.OPENED


GROUP = "d"


@dataclass
class Member:
    """The state of a client that reads its assigned partitions and releases revoked ones."""

    spec: AttachSpec
    index: int
    epoch: int
    taken: int | None = None
    number: int = 0
    beats: int = 0
    gone: bool = False
    reads: set[int] = field(default_factory=set)
    requests: list[SyncRequest] = field(default_factory=list)


class DynamicRules:
    """Rules of a state machine for a channel with a dynamic group."""

    services: Services
    name: str
    uid: str

    def __init__(self) -> None:
        super().__init__()
        self.members: list[Member] = []
        self.committed: dict[int, int] = {}
        # Whether the group may have changed since all members took their assignments.
        self.unsettled = True

    @property
    def staying(self) -> list[Member]:
        """Members that are attached or may return."""
        return [member for member in self.members if not member.gone]

    # More members than partitions, so that some have none.
    @precondition(lambda self: len(self.staying) < PARTITIONS + 2)
    @rule()
    def join(self) -> None:
        self.unsettled = True
        spec = AttachSpec(
            id=uuid.uuid4().hex,
            session=uuid.uuid4().hex,
            client="",
            role=Role.READER,
            group=GROUP,
            static_id=uuid.uuid4().hex,
        )
        attached = self.services.attach(self.name, spec, uid=self.uid)
        index = attached.endpoint.place.index
        assert index not in {member.index for member in self.members}
        self.members.append(Member(spec=spec, index=index, epoch=attached.endpoint.epoch))

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5))
    def restart(self, which: int) -> None:
        self.unsettled = True
        before = self.members[-1 - which % len(self.members)]
        spec = replace(before.spec, id=uuid.uuid4().hex, session=uuid.uuid4().hex)
        endpoint = self.services.attach(self.name, spec, uid=self.uid).endpoint
        assert endpoint.place.index == before.index
        assert endpoint.epoch > before.epoch
        before.gone = True
        before.reads.clear()
        self.members.remove(before)
        self.members.append(Member(spec=spec, index=before.index, epoch=endpoint.epoch))
        previous = self.endpoint_of(before.spec.id)
        assert previous.superseded
        assert not previous.may_return

    def endpoint_of(self, id_: str):  # type: ignore[no-untyped-def]
        return self.services.endpoints.get(self.name, id_).endpoint

    def sync(self, one: Member, request: SyncRequest) -> MemberAssignment:
        return self.services.groups.sync(
            self.name, one.spec.id, request, uid=self.uid, principal=LOOPBACK
        )

    def fetch(self, one: Member) -> MemberAssignment | None:
        """Fetch the assignment, and stop reading revoked partitions; None if refused."""
        try:
            assignment = self.sync(one, SyncRequest(epoch=one.epoch, take=None, has=None))
        except (Fenced, IllegalTransition, StaleGeneration):
            endpoint = self.endpoint_of(one.spec.id)
            assert not endpoint.lives
            # A failed or lost member may return.
            fenced = endpoint.superseded and not endpoint.may_return
            one.gone = fenced or endpoint.state is State.CLOSED
            one.reads.clear()
            return None
        one.reads &= set(assignment.held)
        return assignment

    def take(self, one: Member) -> MemberAssignment | None:
        """Fetch and take the assignment, as a client does after a new generation."""
        assignment = self.fetch(one)
        return None if assignment is None else self.take_assignment(one, assignment)

    def take_assignment(self, one: Member, assignment: MemberAssignment) -> MemberAssignment:
        """Take an assignment that was fetched."""
        one.reads &= set(assignment.partitions)
        request = SyncRequest(epoch=one.epoch, take=assignment.generation, has=assignment.has)
        one.requests.append(request)
        assignment = self.sync(one, request)
        if assignment.taken:
            one.taken, one.reads = assignment.generation, set(assignment.partitions)
        return assignment

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5))
    def take_share(self, which: int) -> None:
        self.unsettled = True
        one = self.members[-1 - which % len(self.members)]
        self.take(one)
        self.check_each_partition_has_one_reader()

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5), wish=st.integers(0, 3))
    def take_share_again(self, which: int, wish: int) -> None:
        self.unsettled = True
        one = self.members[-1 - which % len(self.members)]
        if not one.requests:
            return
        before = self.endpoint_of(one.spec.id)
        try:
            self.sync(one, one.requests[-1 - wish % len(one.requests)])
        except Conflict:
            assert not before.lives
        assert self.endpoint_of(one.spec.id) == before

    def check_each_partition_has_one_reader(self) -> None:
        read: set[int] = set()
        for member in self.staying:
            # A member learns by its next sync that its share was released.
            assignment = self.fetch(member)
            partitions = member.reads if assignment else set()
            assert not read & partitions
            read |= partitions

    @precondition(lambda self: self.members)
    @rule(
        which=st.integers(0, 3),
        partition=st.integers(0, PARTITIONS - 1),
        by=st.integers(-1, 3),
        stale=st.sampled_from([0, 0, 0, 1, -1]),
    )
    def commit_share(self, which: int, partition: int, by: int, stale: int) -> None:
        self.unsettled = True
        one = self.members[-1 - which % len(self.members)]
        before = self.committed.get(partition, 0)
        offset = max(0, before + by)
        endpoint = self.endpoint_of(one.spec.id)
        assignment = (
            self.sync(one, SyncRequest(epoch=one.epoch, take=None, has=None))
            if endpoint.lives
            else None
        )
        valid = (
            assignment is not None
            and stale == 0
            and one.taken == endpoint.generation
            and partition in assignment.held
            and offset >= before
        )
        commit = Commit(
            channel=self.name,
            channel_uid=self.uid,
            group=GROUP,
            endpoint=one.spec.id,
            epoch=one.epoch,
            generation=max(1, (one.taken or 1) + stale),
            topic_id=TOPIC_ID,
            number=one.number + 1,
            positions=(Position(partition=partition, offset=offset),),
        )
        try:
            self.services.offsets.submit(commit, principal=LOOPBACK).result(30)
        except Conflict:
            assert not valid
            return
        assert valid
        one.number += 1
        self.committed[partition] = offset
        assert not any(
            partition in member.reads
            for member in self.staying
            if member is not one and self.fetch(member) is not None
        )

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5), state=st.sampled_from([State.CLOSED, State.ERROR]))
    def leave(self, which: int, state: State) -> None:
        self.unsettled = True
        one = self.members[-1 - which % len(self.members)]
        was_live = self.endpoint_of(one.spec.id).lives
        try:
            self.services.endpoints.detach(
                self.name,
                one.spec.id,
                DetachSpec(epoch=one.epoch, state=state),
                uid=self.uid,
                principal=LOOPBACK,
            )
        except Conflict:
            assert not was_live
        one.reads.clear()

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5), seldom=st.integers(0, 5))
    def remove(self, which: int, seldom: int) -> None:
        if seldom:
            return
        self.unsettled = True
        one = self.members[-1 - which % len(self.members)]
        self.services.endpoints.dismiss(self.name, one.spec.id, uid=self.uid, principal=LOOPBACK)
        endpoint = self.endpoint_of(one.spec.id)
        assert (endpoint.superseded, endpoint.may_return) == (True, False)
        one.gone = True
        one.reads.clear()

    @precondition(lambda self: self.members)
    @rule(
        which=st.integers(0, 5), state=st.sampled_from([State.STARTED, State.STARTED, State.ERROR])
    )
    def send_member_heartbeat(self, which: int, state: State) -> None:
        self.unsettled = True
        one = self.members[-1 - which % len(self.members)]
        one.beats += 1
        report = EndpointReport(
            id=one.spec.id,
            epoch=one.epoch,
            state=state,
            counters={},
        )
        (reply,) = self.services.beats.beat(
            one.spec.session, one.beats, [report], principal=LOOPBACK
        ).replies
        assert (reply.status == "fenced") == self.endpoint_of(one.spec.id).superseded
        if state is State.ERROR:
            one.reads.clear()

    @precondition(lambda self: self.members and self.unsettled)
    @rule()
    def all_take_their_assignments(self) -> None:
        self.unsettled = False
        for member in self.staying:
            self.take(member)
        assignments = []
        for member in self.staying:
            assignment = self.fetch(member)
            if assignment is not None:
                assert assignment.taken
                assignments.append(self.take_assignment(member, assignment))
        shared = [partition for assignment in assignments for partition in assignment.partitions]
        assert sorted(shared) == (list(range(PARTITIONS)) if assignments else [])
        assert not any(assignment.pending for assignment in assignments)
        report = self.services.offsets.fetch(self.name, GROUP, index=None)
        stored = {
            committed.position.partition: committed.position.offset
            for _, committed in report.positions
        }
        assert stored == self.committed
        assert report.group.size == max(1, len(assignments))


#: A partition and whether it may be another's, how far it goes, whether back, and a wrong epoch.
RARELY = st.integers(0, 9).map(lambda drawn: drawn == 9)
COMMITS = st.tuples(st.integers(0, 1), RARELY, st.integers(0, 3), st.integers(0, 2), RARELY, RARELY)


#: How many steps there are at least, 10,000 in all, most of them where they are quick.
#: Steps for each example of the profile; few of the schedules end before their time.
STEPS = {"sqlite": 80, "postgresql": 16}


class Schedule(DynamicRules, RuleBasedStateMachine):
    """Clients with random requests, and the invariants."""

    def __init__(self, services: Services, done: Counter[str]) -> None:
        super().__init__()
        self.services, self.done = services, done
        self.instances: list[Instance] = []
        self.live: dict[int, str] = {}
        self.sent: list[Commit] = []
        self.positions: dict[int, tuple[int, int]] = {}
        self.generation = 1
        self.size = 0
        # By place, the highest number of the writers that it has read to their end; -1: all others.
        self.ends: dict[int, int] = {}
        self.ahead = False
        self.resets: list[tuple[Reset, Request]] = []

    @initialize()
    def begin(self) -> None:
        self.name, self.uid = self.services.channel()
        # It is no step of theirs.
        self.done["steps"] -= 1

    @invariant()
    def count(self) -> None:
        self.done["steps"] += 1

    def teardown(self) -> None:
        """Leave no endpoint for the reaper of the next schedule."""
        with self.services.database.write() as tx:
            remove(tx, self.uid, from_phases=tuple(Phase))

    def one(self, which: int) -> Instance:
        return self.instances[-1 - which % len(self.instances)]

    @rule(index=st.integers(0, 2), size=st.sampled_from([2, 2, 2, 2, 2, 2, 2, 3]))
    def attach(self, index: int, size: int) -> None:
        asked = AttachSpec(
            id=uuid.uuid4().hex,
            session=uuid.uuid4().hex,
            client="",
            role=Role.READER,
            group="g",
            index=index % size,
            size=size,
        )
        try:
            attached = self.attached(asked)
        except GroupSize:
            return
        resized = attached.endpoint.generation != self.generation
        if resized:
            # Members beyond the new size were fenced, unless finished.
            closed = {
                instance.asked.id for instance in self.instances if instance.state is State.CLOSED
            }
            self.live = {i: id_ for i, id_ in self.live.items() if id_ in closed}
            self.generation = attached.endpoint.generation
            self.ends = {-1: min(self.end_of(place) for place in range(self.size))}
        self.size = size
        assert attached.finished_through == self.end_of(index % size)
        self.live[index % size] = asked.id
        self.instances.append(
            Instance(
                asked=asked,
                epoch=attached.endpoint.epoch,
                generation=attached.endpoint.generation,
                attached=attached.endpoint.number,
            )
        )
        stored = {
            committed.position.partition: (committed.position.offset, committed.position.record)
            for committed in attached.positions
        }
        own = {p: at for p, at in self.positions.items() if p % size == index % size}
        assert stored == own

    def end_of(self, index: int) -> int:
        return self.ends.get(index, self.ends.get(-1, 0))

    def attached(self, asked: AttachSpec) -> Any:
        return self.services.attach(self.name, asked, uid=self.uid)

    @precondition(lambda self: self.instances)
    @rule(which=st.integers(0, 4))
    def attach_again(self, which: int) -> None:
        one = self.one(which)
        if self.lives(one):
            again = self.attached(one.asked)
            assert (again.created, again.endpoint.epoch) == (False, one.epoch)
        else:
            with pytest.raises(Fenced):
                self.attached(one.asked)

    def lives(self, one: Instance) -> bool:
        return one.asked.id in self.live.values()

    @precondition(lambda self: self.instances)
    @rule(which=st.integers(0, 2), asked=st.lists(COMMITS, min_size=1, max_size=4))
    def commit(self, which: int, asked: list[tuple[int, bool, int, int, bool, bool]]) -> None:
        # Mostly one that lives: the others are refused whatever they ask.
        live = [instance for instance in self.instances if self.lives(instance)]
        one = live[which % len(live)] if live and which else self.one(which)
        for drawn in asked:
            self.commit_one(one, *drawn)

    def commit_one(
        self,
        one: Instance,
        which: int,
        foreign: bool,
        messages: int,
        records: int,
        back: bool,
        wrong_epoch: bool,
    ) -> None:
        size, own = one.asked.size or 1, one.asked.index or 0
        partition = (own + size * which + foreign) % PARTITIONS
        stored = self.positions.get(partition, (0, 0))
        offset, record = stored[0] + messages, stored[1] + records
        if back:
            offset, record = max(0, stored[0] - messages), records
        asked = Commit(
            channel=self.name,
            channel_uid=self.uid,
            group="g",
            endpoint=one.asked.id,
            epoch=one.epoch + wrong_epoch,
            generation=one.generation,
            topic_id=TOPIC_ID,
            number=one.number + 1,
            positions=(Position(partition=partition, offset=offset, record=record),),
        )
        right = (
            self.lives(one)
            and not wrong_epoch
            and one.generation == self.generation
            and one.state is not State.CLOSED
            and partition % size == one.asked.index
            and (offset, record) >= stored
        )
        if not right:
            with pytest.raises(Conflict):
                self.services.offsets.submit(asked, principal=LOOPBACK).result(30)
        else:
            self.services.offsets.submit(asked, principal=LOOPBACK).result(30)
            one.number += 1
            self.sent.append(asked)
            self.positions[partition] = (offset, record)

    @precondition(lambda self: self.sent)
    @rule(which=st.integers(0, 9))
    def commit_again(self, which: int) -> None:
        asked = self.sent[-1 - which % len(self.sent)]
        with suppress(Fenced, StaleGeneration):
            self.services.offsets.submit(asked, principal=LOOPBACK).result(30)

    @precondition(lambda self: self.instances)
    @rule()
    def look_at_positions(self) -> None:
        report = self.services.offsets.fetch(self.name, "g", index=None)
        stored = {
            committed.position.partition: (committed.position.offset, committed.position.record)
            for _, committed in report.positions
        }
        assert stored == self.positions
        assert report.group.generation == self.generation

    @precondition(lambda self: self.instances)
    @rule(
        partition=st.integers(0, PARTITIONS - 1),
        offset=st.integers(0, 5) | st.none(),
        force=RARELY,
    )
    def reset(self, partition: int, offset: int | None, force: bool) -> None:
        asked = Reset(
            positions=None if offset is None else (Position(partition=partition, offset=offset),),
            topic_id=TOPIC_ID,
            index=None,
            generation=None,
            reason="why not",
            force=force,
        )
        request = Request(principal="loopback", key=uuid.uuid4().hex, digest="d")
        try:
            self.send_reset(asked, request)
        except MembersOpen:
            assert not force
            return
        self.resets.append((asked, request))
        self.generation += 1
        self.ends = {}
        self.positions = {} if offset is None else {**self.positions, partition: (offset, 0)}

    def send_reset(self, asked: Reset, request: Request) -> None:
        self.services.offsets.reset(
            self.name,
            "g",
            asked,
            uid=self.uid,
            principal=LOOPBACK,
            request=request,
            render=lambda _report: StoredResponse(status=200, headers={}, body=""),
        )

    @precondition(lambda self: self.resets)
    @rule(which=st.integers(0, 9))
    def reset_again(self, which: int) -> None:
        # A late repeat gets the same response, and is not applied again.
        self.send_reset(*self.resets[-1 - which % len(self.resets)])

    @rule()
    def set_the_clock(self) -> None:
        # An hour forward, an hour back.
        self.services.clock.advance(timedelta(hours=-1 if self.ahead else 1))
        self.ahead = not self.ahead

    @precondition(lambda self: self.instances)
    @rule(
        which=st.integers(0, 4),
        state=st.sampled_from([State.CLOSED, State.ERROR]),
        at_end=st.booleans(),
    )
    def detach(self, which: int, state: State, at_end: bool) -> None:
        one = self.one(which)
        through = one.attached if at_end else None
        departure = DetachSpec(epoch=one.epoch, state=state, finished_through=through)
        try:
            self.services.endpoints.detach(
                self.name, one.asked.id, departure, uid=self.uid, principal=LOOPBACK
            )
        except Fenced:
            assert not self.lives(one)
        except Conflict:
            assert self.lives(one)
        else:
            assert self.lives(one)
            closes = state is State.CLOSED and one.state is not State.CLOSED
            if closes and at_end and one.generation == self.generation:
                self.ends[one.asked.index or 0] = one.attached
            one.state = state

    @precondition(lambda self: self.instances)
    @rule(
        which=st.integers(0, 4),
        state=st.sampled_from(State),
        by=st.sampled_from([1, 1, 1, 1000, 0, -1]),
    )
    def beat(self, which: int, state: State, by: int) -> None:
        # The next one, or from the future, or once more, or one that comes after the next.
        one = self.one(which)
        number = max(1, one.beats + by)
        late = number <= one.beats
        one.beats = max(number, one.beats)
        report = EndpointReport(
            id=one.asked.id,
            epoch=one.epoch,
            state=state,
            counters={"beats": number},
        )
        response = self.services.beats.beat(one.asked.session, number, [report], principal=LOOPBACK)
        (reply,) = response.replies
        assert (reply.status == "fenced") == (not self.lives(one))
        if reply.status == "ok" and not late:
            one.state = state

    @rule(seconds=st.sampled_from([1, 1, 7, 130]))
    def fall_silent(self, seconds: int) -> None:
        self.unsettled = True
        self.services.reaper.run_once()
        self.services.pass_time(seconds)

    @rule()
    def look(self) -> None:
        page = self.services.endpoints.page(
            self.name, role=Role.READER, group="g", after=None, limit=100
        )
        places = [(endpoint.place.index, endpoint.id) for endpoint in page.endpoints]
        assert dict(places) == self.live
        assert len(places) == len(self.live)


@pytest.mark.parametrize(
    "databases", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True
)
def test_only_a_reset_moves_positions_back_and_no_stale_commit_counts(database: Database) -> None:
    if database.dialect == "sqlite":
        # No schedule simulates a power loss, and fsync takes most of the time.
        event.listen(
            database.engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous=OFF")
        )
    services, done = Services(database), Counter[str]()
    steps = STEPS[database.dialect] * settings.default.max_examples
    run_state_machine_as_test(
        lambda: Schedule(services, done),
        settings=settings(
            max_examples=steps // 36 + 1,
            # The first one makes the channel.
            stateful_step_count=51,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert done["steps"] >= steps
