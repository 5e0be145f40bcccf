"""Members of dynamic groups that are silent, or do not release partitions."""

import uuid
from datetime import timedelta
from typing import Any

import pytest

from endpoints import PARTITIONS, Services
from gateways import TOPIC_ID
from sluiceway_gateway.core.auth.service import LOOPBACK
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import Fenced, StaleGeneration
from sluiceway_gateway.endpoints.attach_request import AttachSpec
from sluiceway_gateway.endpoints.groups.service import MemberAssignment, SyncRequest
from sluiceway_gateway.endpoints.heartbeats import EndpointReport
from sluiceway_gateway.endpoints.liveness_store import stale_shares
from sluiceway_gateway.endpoints.model import Endpoint, Health, Role, State
from sluiceway_gateway.endpoints.positions import Position
from sluiceway_gateway.endpoints.pruning import Pruner
from sluiceway_gateway.endpoints.service import DetachSpec
from sluiceway_gateway.offsets.model import Commit


class Team:
    """A dynamic group of one channel, whose heartbeat timeout is 120 s."""

    def __init__(self, database: Database) -> None:
        self.services = Services(database)
        self.name, self.uid = self.services.channel()
        self.beats = 0

    def join(self, **place: int) -> Endpoint:
        asked = AttachSpec(
            id=uuid.uuid4().hex,
            session=uuid.uuid4().hex,
            client="",
            role=Role.READER,
            group="d",
            **place,
        )
        attached = self.services.attach(self.name, asked, uid=self.uid)
        return attached.endpoint

    def sync(
        self, member: Endpoint, take: int | None = None, has: int | None = None
    ) -> MemberAssignment:
        wish = SyncRequest(epoch=member.epoch, take=take, has=has)
        return self.services.groups.sync(
            self.name, member.id, wish, uid=self.uid, principal=LOOPBACK
        )

    def take(self, member: Endpoint, has: int | None = None) -> MemberAssignment:
        return self.sync(member, self.sync(member).generation, has)

    def commit(self, member: Endpoint, generation: int) -> None:
        commit = Commit(
            channel=self.name,
            channel_uid=self.uid,
            group="d",
            endpoint=member.id,
            epoch=member.epoch,
            generation=generation,
            topic_id=TOPIC_ID,
            number=1,
            positions=(Position(partition=1, offset=5),),
        )
        self.services.offsets.submit(commit, principal=LOOPBACK).result(30)

    def pass_time(self, seconds: int, *beating: Endpoint, late: bool = False) -> None:
        """Advance by five seconds at a time, with heartbeats of `beating` and the reaper."""
        for _ in range(0, seconds, 5):
            self.beats += 1
            for member in beating:
                self.beat(member)
            if late:
                self.services.now_s += 9
            self.services.pass_time(5)

    def beat(self, member: Endpoint, state: State = State.STARTED) -> Any:
        report = EndpointReport(
            id=member.id,
            epoch=member.epoch,
            state=state,
            counters={},
        )
        number = self.beats
        (reply,) = self.services.beats.beat(
            member.session, number, [report], principal=LOOPBACK
        ).replies
        return reply

    def endpoint_of(self, member: Endpoint) -> Endpoint:
        return self.services.endpoints.get(self.name, member.id).endpoint

    def behind(self) -> list[str]:
        """Return the endpoints that the reaper waits for."""
        with self.services.database.read() as tx:
            return [share.endpoint for share in stale_shares(tx)]


@pytest.fixture
def team(database: Database) -> Team:
    return Team(database)


@pytest.mark.sample
def test_a_lost_member_has_no_place_and_the_others_take_its_partitions(team: Team) -> None:
    silent, other = team.join(), team.join()
    team.take(silent)
    team.take(other)
    team.pass_time(100, other)
    assert team.sync(other).partitions == (1, 3)
    team.pass_time(25, other)
    lost = team.endpoint_of(silent)
    assert (lost.health, lost.superseded, lost.share) == (Health.LOST, True, None)
    asked = team.sync(other)
    assert (asked.taken, asked.size, asked.pending) == (False, 1, ())
    assert len(team.take(other, asked.generation - 1).partitions) == PARTITIONS


def test_a_lost_member_returns_by_a_heartbeat_and_commits_only_with_a_new_share(
    team: Team,
) -> None:
    paused = team.join()
    has = team.take(paused).generation
    team.commit(paused, has)
    other = team.join()
    team.take(other)
    team.pass_time(125, other)
    assert team.endpoint_of(paused).may_return
    with pytest.raises(StaleGeneration, match="Send a heartbeat, sync"):
        team.sync(paused)
    with pytest.raises(StaleGeneration):
        team.commit(paused, has)
    team.beats += 1
    reply = team.beat(paused)
    assert (reply.status, reply.health) == ("ok", Health.HEALTHY)
    # The member is back without partitions: its former assignment is void.
    assert (team.endpoint_of(paused).lives, team.endpoint_of(paused).share) == (True, None)
    with pytest.raises(StaleGeneration):
        team.commit(paused, has)
    asked = team.sync(paused)
    assert (asked.held, asked.size, asked.generation > has) == ((), 2, True)
    team.take(other, team.endpoint_of(other).generation)
    assignment = team.take(paused)
    assert assignment.partitions == (0, 2)
    with pytest.raises(StaleGeneration):
        team.commit(paused, has)


@pytest.mark.long
def test_an_old_heartbeat_does_not_return_a_lost_member(team: Team) -> None:
    paused = team.join()
    team.take(paused)
    team.pass_time(5, paused)
    team.pass_time(125)
    team.beats = 1
    team.beat(paused)
    assert team.endpoint_of(paused).may_return


def test_a_lost_member_that_ran_for_long_is_still_known(team: Team) -> None:
    paused = team.join()
    team.services.clock.advance(timedelta(days=40))
    team.pass_time(125)
    Pruner(database=team.services.database, days=30, clock=team.services.clock).run_once()
    assert team.endpoint_of(paused).may_return
    team.beats += 1
    assert team.beat(paused).status == "ok"


def test_a_lost_member_that_was_removed_does_not_return(team: Team) -> None:
    paused = team.join()
    team.take(paused)
    team.pass_time(125)
    team.services.endpoints.dismiss(team.name, paused.id, uid=team.uid, principal=LOOPBACK)
    team.beats += 1
    reply = team.beat(paused)
    assert reply.status == "fenced"
    assert "loopback dismissed it at" in reply.reason
    with pytest.raises(Fenced, match="loopback dismissed it at"):
        team.sync(paused)


def test_a_lost_member_does_not_return_to_a_group_of_fixed_places(team: Team) -> None:
    paused = team.join()
    team.take(paused)
    team.pass_time(125)
    team.join(index=0, size=2)
    team.beats += 1
    reply = team.beat(paused)
    assert (reply.status, "the group changed its size or its mode" in reply.reason) == (
        "fenced",
        True,
    )


def test_a_lost_member_that_closes_is_closed_and_a_repeat_changes_nothing(team: Team) -> None:
    paused, other = team.join(), team.join()
    team.take(paused)
    team.pass_time(125, other)
    generation = team.sync(other).generation
    departure = DetachSpec(epoch=paused.epoch, state=State.CLOSED)
    for _ in range(2):
        team.services.endpoints.detach(
            team.name, paused.id, departure, uid=team.uid, principal=LOOPBACK
        )
        endpoint = team.endpoint_of(paused)
        assert (endpoint.state, endpoint.superseded) == (State.CLOSED, False)
    assert team.sync(other).generation == generation


def test_a_member_that_does_not_sync_loses_its_share_after_the_timeout(
    team: Team,
) -> None:
    slow = team.join()
    has = team.take(slow).generation
    new = team.join()
    assert team.take(new).pending == (1, 3)
    team.pass_time(100, slow, new)
    assert team.sync(new).pending == (1, 3)
    team.commit(slow, has)
    team.pass_time(25, slow, new)
    assignment = team.sync(new)
    assert (assignment.partitions, assignment.pending) == ((1, 3), ())
    assert [committed.position.offset for committed in assignment.positions] == [5]
    with pytest.raises(StaleGeneration, match="not released in time"):
        team.commit(slow, has)
    # The member is live, and takes its current share.
    assert team.endpoint_of(slow).lives
    asked = team.sync(slow)
    assert (asked.taken, asked.held) == (False, ())
    assert team.take(slow).partitions == (0, 2)


def test_only_shares_of_an_earlier_generation_can_be_overdue(team: Team) -> None:
    slow = team.join()
    team.sync(slow)
    assert team.behind() == []
    team.take(slow)
    assert team.behind() == []
    new = team.join()
    assert team.behind() == [slow.id]
    team.take(new)
    team.pass_time(125, slow, new)
    assert team.behind() == []
    team.take(slow)
    failing = team.join()
    team.take(failing)
    team.join()
    assert failing.id in team.behind()
    team.beats += 1
    team.beat(failing, State.ERROR)
    assert failing.id not in team.behind()


def test_after_a_gap_of_the_reaper_no_share_is_overdue(team: Team) -> None:
    slow = team.join()
    team.take(slow)
    new = team.join()
    team.take(new)
    team.pass_time(100, slow, new)
    team.pass_time(5, slow, new, late=True)
    team.pass_time(100, slow, new)
    assert team.sync(new).pending == (1, 3)
    team.pass_time(25, slow, new)
    assert team.sync(new).pending == ()
