"""Members of a dynamic group in random schedules."""

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
    """The state of a client that reads its partitions and releases them on request."""

    asked: AttachSpec
    index: int
    epoch: int
    has: int | None = None
    number: int = 0
    beats: int = 0
    gone: bool = False
    reads: set[int] = field(default_factory=set)
    wishes: list[SyncRequest] = field(default_factory=list)


class DynamicRules:
    """Rules for a state machine whose channel also has a dynamic group."""

    services: Services
    name: str
    uid: str

    def __init__(self) -> None:
        super().__init__()
        self.members: list[Member] = []
        self.committed: dict[int, int] = {}
        # Whether the group may have changed since all members took their shares.
        self.unsettled = True

    @property
    def staying(self) -> list[Member]:
        """Members that may still return."""
        return [each for each in self.members if not each.gone]

    # More members than partitions, so that some have none.
    @precondition(lambda self: len(self.staying) < PARTITIONS + 2)
    @rule()
    def join(self) -> None:
        self.unsettled = True
        asked = AttachSpec(
            id=uuid.uuid4().hex,
            session=uuid.uuid4().hex,
            client="",
            role=Role.READER,
            group=GROUP,
            static_id=uuid.uuid4().hex,
        )
        found = self.services.attach(self.name, asked, uid=self.uid)
        index = found.endpoint.place.index
        assert index not in {each.index for each in self.members}
        self.members.append(Member(asked=asked, index=index, epoch=found.endpoint.epoch))

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5))
    def restart(self, which: int) -> None:
        self.unsettled = True
        before = self.members[-1 - which % len(self.members)]
        asked = replace(before.asked, id=uuid.uuid4().hex, session=uuid.uuid4().hex)
        found = self.services.attach(self.name, asked, uid=self.uid).endpoint
        assert found.place.index == before.index
        assert found.epoch > before.epoch
        before.gone = True
        before.reads.clear()
        self.members.remove(before)
        self.members.append(Member(asked=asked, index=before.index, epoch=found.epoch))
        known = self.known(before.asked.id)
        assert known.superseded
        assert not known.may_return

    def known(self, id_: str):  # type: ignore[no-untyped-def]
        return self.services.endpoints.get(self.name, id_).endpoint

    def sync(self, one: Member, wish: SyncRequest) -> MemberAssignment:
        return self.services.groups.sync(
            self.name, one.asked.id, wish, uid=self.uid, principal=LOOPBACK
        )

    def ask(self, one: Member) -> MemberAssignment | None:
        """Get the assignment, and stop reading revoked partitions; None if fenced."""
        try:
            found = self.sync(one, SyncRequest(epoch=one.epoch, take=None, has=None))
        except (Fenced, IllegalTransition, StaleGeneration):
            known = self.known(one.asked.id)
            assert not known.lives
            # A failed or lost member may return.
            out = known.superseded and not known.may_return
            one.gone = out or known.state is State.CLOSED
            one.reads.clear()
            return None
        one.reads &= set(found.held)
        return found

    def take(self, one: Member) -> MemberAssignment | None:
        """Sync as a client does after a new generation."""
        found = self.ask(one)
        return None if found is None else self.take_told(one, found)

    def take_told(self, one: Member, found: MemberAssignment) -> MemberAssignment:
        """Take the given assignment."""
        one.reads &= set(found.partitions)
        wish = SyncRequest(epoch=one.epoch, take=found.generation, has=found.has)
        one.wishes.append(wish)
        found = self.sync(one, wish)
        if found.taken:
            one.has, one.reads = found.generation, set(found.partitions)
        return found

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5))
    def take_share(self, which: int) -> None:
        self.unsettled = True
        one = self.members[-1 - which % len(self.members)]
        self.take(one)
        self.nobody_reads_what_another_reads()

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5), wish=st.integers(0, 3))
    def take_share_again(self, which: int, wish: int) -> None:
        self.unsettled = True
        one = self.members[-1 - which % len(self.members)]
        if not one.wishes:
            return
        before = self.known(one.asked.id)
        try:
            self.sync(one, one.wishes[-1 - wish % len(one.wishes)])
        except Conflict:
            assert not before.lives
        assert self.known(one.asked.id) == before

    def nobody_reads_what_another_reads(self) -> None:
        read: set[int] = set()
        for each in self.staying:
            # A member whose share was released learns that by its next sync.
            found = self.ask(each)
            mine = each.reads if found else set()
            assert not read & mine
            read |= mine

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
        endpoint = self.known(one.asked.id)
        asked = (
            self.sync(one, SyncRequest(epoch=one.epoch, take=None, has=None))
            if endpoint.lives
            else None
        )
        right = (
            asked is not None
            and stale == 0
            and one.has == endpoint.generation
            and partition in asked.held
            and offset >= before
        )
        commit = Commit(
            channel=self.name,
            channel_uid=self.uid,
            group=GROUP,
            endpoint=one.asked.id,
            epoch=one.epoch,
            generation=max(1, (one.has or 1) + stale),
            topic_id="t",
            number=one.number + 1,
            positions=(Position(partition=partition, offset=offset),),
        )
        try:
            self.services.offsets.submit(commit, principal=LOOPBACK).result(30)
        except Conflict:
            assert not right
            return
        assert right
        one.number += 1
        self.committed[partition] = offset
        assert not any(
            partition in each.reads
            for each in self.staying
            if each is not one and self.ask(each) is not None
        )

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5), state=st.sampled_from([State.CLOSED, State.ERROR]))
    def leave(self, which: int, state: State) -> None:
        self.unsettled = True
        one = self.members[-1 - which % len(self.members)]
        lived = self.known(one.asked.id).lives
        try:
            self.services.endpoints.detach(
                self.name,
                one.asked.id,
                DetachSpec(epoch=one.epoch, state=state),
                uid=self.uid,
                principal=LOOPBACK,
            )
        except Conflict:
            assert not lived
        one.reads.clear()

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 5), often=st.integers(0, 5))
    def put_out(self, which: int, often: int) -> None:
        if often:
            return
        self.unsettled = True
        one = self.members[-1 - which % len(self.members)]
        self.services.endpoints.remove(self.name, one.asked.id, uid=self.uid, principal=LOOPBACK)
        known = self.known(one.asked.id)
        assert (known.superseded, known.may_return) == (True, False)
        one.gone = True
        one.reads.clear()

    @precondition(lambda self: self.members)
    @rule(
        which=st.integers(0, 5), state=st.sampled_from([State.STARTED, State.STARTED, State.ERROR])
    )
    def beat_as_member(self, which: int, state: State) -> None:
        self.unsettled = True
        one = self.members[-1 - which % len(self.members)]
        one.beats += 1
        report = EndpointReport(
            id=one.asked.id,
            epoch=one.epoch,
            state=state,
            counters={},
            payload=None,
            listens=False,
            seen=None,
        )
        (reply,) = self.services.beats.beat(
            one.asked.session, one.beats, [report], principal=LOOPBACK
        ).replies
        assert (reply.status == "fenced") == self.known(one.asked.id).superseded
        if state is State.ERROR:
            one.reads.clear()

    @precondition(lambda self: self.members and self.unsettled)
    @rule()
    def all_take_their_shares(self) -> None:
        self.unsettled = False
        for each in self.staying:
            self.take(each)
        told = []
        for each in self.staying:
            found = self.ask(each)
            if found is not None:
                assert found.taken
                told.append(self.take_told(each, found))
        shared = [partition for found in told for partition in found.partitions]
        assert sorted(shared) == (list(range(PARTITIONS)) if told else [])
        assert not any(found.pending for found in told)
        report = self.services.offsets.fetch(self.name, GROUP, index=None)
        stored = {each.position.partition: each.position.offset for _, each in report.positions}
        assert stored == self.committed
        assert report.group.size == max(1, len(told))
