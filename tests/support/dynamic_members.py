"""Rules for members of a dynamic group in random schedules."""

import uuid
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from endpoints import PARTITIONS, Services
from sluiceway_gateway.auth.service import LOOPBACK
from sluiceway_gateway.endpoints.attach_request import AttachSpec
from sluiceway_gateway.endpoints.heartbeats import EndpointReport
from sluiceway_gateway.endpoints.model import Role, State
from sluiceway_gateway.endpoints.service import DetachSpec
from sluiceway_gateway.errors import Conflict, Fenced, IllegalTransition, StaleGeneration
from sluiceway_gateway.groups.service import MemberAssignment, SyncRequest
from sluiceway_gateway.offsets.model import Commit, Position

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
        return [each for each in self.members if not each.gone]

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
        assert index not in {each.index for each in self.members}
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
        known = self.known(before.spec.id)
        assert known.superseded
        assert not known.may_return

    def known(self, id_: str):  # type: ignore[no-untyped-def]
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
            known = self.known(one.spec.id)
            assert not known.lives
            # A failed or lost member may return.
            fenced = known.superseded and not known.may_return
            one.gone = fenced or known.state is State.CLOSED
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
        before = self.known(one.spec.id)
        try:
            self.sync(one, one.requests[-1 - wish % len(one.requests)])
        except Conflict:
            assert not before.lives
        assert self.known(one.spec.id) == before

    def check_each_partition_has_one_reader(self) -> None:
        read: set[int] = set()
        for each in self.staying:
            # A member learns by its next sync that its share was released.
            assignment = self.fetch(each)
            partitions = each.reads if assignment else set()
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
        endpoint = self.known(one.spec.id)
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
            topic_id="t",
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
            partition in each.reads
            for each in self.staying
            if each is not one and self.fetch(each) is not None
        )

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5), state=st.sampled_from([State.CLOSED, State.ERROR]))
    def leave(self, which: int, state: State) -> None:
        self.unsettled = True
        one = self.members[-1 - which % len(self.members)]
        was_live = self.known(one.spec.id).lives
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
        known = self.known(one.spec.id)
        assert (known.superseded, known.may_return) == (True, False)
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
            payload=None,
            listens=False,
            seen=None,
        )
        (reply,) = self.services.beats.beat(
            one.spec.session, one.beats, [report], principal=LOOPBACK
        ).replies
        assert (reply.status == "fenced") == self.known(one.spec.id).superseded
        if state is State.ERROR:
            one.reads.clear()

    @precondition(lambda self: self.members and self.unsettled)
    @rule()
    def all_take_their_assignments(self) -> None:
        self.unsettled = False
        for each in self.staying:
            self.take(each)
        assignments = []
        for each in self.staying:
            assignment = self.fetch(each)
            if assignment is not None:
                assert assignment.taken
                assignments.append(self.take_assignment(each, assignment))
        shared = [partition for assignment in assignments for partition in assignment.partitions]
        assert sorted(shared) == (list(range(PARTITIONS)) if assignments else [])
        assert not any(assignment.pending for assignment in assignments)
        report = self.services.offsets.fetch(self.name, GROUP, index=None)
        stored = {each.position.partition: each.position.offset for _, each in report.positions}
        assert stored == self.committed
        assert report.group.size == max(1, len(assignments))
