"""Group membership requests: join, sync, heartbeat, leave."""

import uuid
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.errors import Refusal, of_group
from sluiceway.broker.exceptions import (
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownError,
    UnknownMemberId,
)
from sluiceway.broker.group_members import MEMBERS, REACH, Member
from sluiceway.broker.requests import in_bytes, in_text
from sluiceway.broker.responses import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    MemberAssignment,
    SyncGroupResponse,
)
from sluiceway.errors import OptionError, SluicewayError, StaleGeneration
from sluiceway.rest.endpoint_models import Membership, SyncResult

__all__ = ["Members"]

R = TypeVar("R")


class _Refused(Exception):
    """What a call is answered with."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class Members:
    """What one Broker asks about groups; `Broker` says what each call promises."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._calls = handler.control.endpoints

    def join(self, group: Any, member_id: Any, topic: Any, protocol: Any) -> JoinGroupResponse:
        """Join, or join anew."""
        name, id_ = in_text(group, "group"), in_text(member_id, "member")
        topic_name = in_text(topic, "topic")
        known = MEMBERS.find(id_, name) if id_ else None

        def joined() -> JoinGroupResponse:
            member = self._attach(name, topic_name) if not id_ else _found(known, id_, name)
            if member.channel != topic_name:
                raise _Refused(_other_topic(member, topic_name))
            with member.lock:
                asked = self._sync(member)
                # A reset may have taken its share away, or nobody waits for it any longer.
                member.joined, member.generation = asked.generation, asked.has
            ids = self._living(member)
            leader = ids[0] if ids else member.id
            own = getattr(protocol, "metadata", None)
            return JoinGroupResponse(
                generation_id=asked.generation,
                group_protocol=in_bytes(getattr(protocol, "protocol_name", b""), "protocol"),
                leader_id=leader.encode(),
                member_id=member.id.encode(),
                members={each.encode(): own for each in ids} if leader == member.id else {},
            )

        return _told(
            joined,
            lambda refusal: JoinGroupResponse(
                refusal.err, reason=refusal.reason, member_id=id_.encode()
            ),
            known,
        )

    def sync(
        self, group: Any, generation: Any, member_id: Any, assignment: Iterable[Any]
    ) -> SyncGroupResponse:
        """Take the share of a generation."""
        member, id_, name = _named(group, member_id)
        _checked_generation(generation)
        # The gateway shares the partitions out; what a leader has made up is not needed.
        list(assignment)

        def synced() -> SyncGroupResponse:
            found = _found(member, id_, name)
            with found.lock:
                if generation != found.joined:
                    raise _Refused(_stale(found, generation))
                told = self._sync(found, take=True)
                if not told.taken or told.generation != generation:
                    raise _Refused(_rejoin("members came or went since it was joined"))
                found.generation, found.started = generation, True
                found.partitions, found.pending = told.partitions, told.pending
                found.known.clear()
                found.learn(told.positions)
                pairs = [(found.channel.encode(), list(told.partitions))]
            return SyncGroupResponse(member_assignment=MemberAssignment(pairs))

        return _told(
            synced, lambda refusal: SyncGroupResponse(refusal.err, reason=refusal.reason), member
        )

    def heartbeat(self, group: Any, generation: Any, member_id: Any) -> HeartbeatResponse:
        """Beat, and say whether to join anew."""
        member, id_, name = _named(group, member_id)
        _checked_generation(generation)

        def beaten() -> HeartbeatResponse:
            found = _found(member, id_, name)
            with found.lock:
                now = self._beat(found)
                if generation not in (found.generation, found.joined):
                    raise _Refused(_stale(found, generation))
                if now != found.joined:
                    raise _Refused(_rejoin("members came or went"))
                if found.pending and self._sync(found).pending != found.pending:
                    raise _Refused(_rejoin("partitions that another had are free"))
            return HeartbeatResponse()

        return _told(
            beaten, lambda refusal: HeartbeatResponse(refusal.err, reason=refusal.reason), member
        )

    def leave(self, group: Any, member_id: Any) -> LeaveGroupResponse:
        """Leave."""
        member, id_, name = _named(group, member_id)

        def left() -> LeaveGroupResponse:
            found = _found(member, id_, name)
            body = {"uid": found.uid, "epoch": found.epoch, "state": "closed", **_places(found)}
            self._calls.detach(found.channel, found.id, body, timeout_s=self._handler.timeout_s)
            MEMBERS.drop(found)
            return LeaveGroupResponse()

        return _told(
            left, lambda refusal: LeaveGroupResponse(refusal.err, reason=refusal.reason), member
        )

    def _attach(self, group: str, topic: str) -> Member:
        connection = self._handler.connection(topic, fresh=True)
        id_, session = uuid.uuid4().hex, uuid.uuid4().hex
        attached = self._calls.attach(
            connection.channel_name,
            uid=connection.channel_uid,
            instance=id_,
            session=session,
            role="reader",
            membership=Membership(group=group, index=None, size=None),
        )
        member = Member(
            id=id_,
            channel=connection.channel_name,
            uid=connection.channel_uid,
            topic_id=connection.topic_id,
            group=group,
            epoch=attached.epoch,
            session=session,
            takes=attached.takes,
        )
        MEMBERS.put(member)
        return member

    def _sync(self, member: Member, *, take: bool = False) -> SyncResult:
        body: dict[str, Any] = {"uid": member.uid, "epoch": member.epoch}
        if take:
            body |= {"take": member.joined, "has": member.generation}
        try:
            return self._calls.sync(member.channel, member.id, body)
        except StaleGeneration:
            # It was lost, and no heartbeat has brought it back yet.
            self._beat(member)
        return self._calls.sync(member.channel, member.id, body)

    def _beat(self, member: Member) -> int | None:
        """Beat; return the group's generation."""
        member.beats += 1
        state = "started" if member.started else "opened"
        report = {"id": member.id, "epoch": member.epoch, "state": state, **_places(member)}
        answer = self._calls.heartbeat(
            member.session, member.beats, [report], timeout_s=self._handler.timeout_s
        )
        heard = answer.results.get(member.id)
        if heard is None or heard.status in ("fenced", "gone"):
            why = "the gateway knows it no more" if heard is None else heard.reason or heard.status
            raise _Refused(_unknown(member.id, member.group, why))
        if heard.status != "ok":
            raise _Refused(Refusal.of(UnknownError, heard.reason or heard.status))
        return heard.generation

    def _living(self, member: Member) -> list[str]:
        """Return the members at work, those that came first at first."""
        found, _ = self._calls.endpoints(member.channel, group=member.group)
        readers = [each for each in found or () if each.role == "reader" and each.lives]
        return [each.id for each in sorted(readers, key=lambda each: each.index)]


def _told(call: Callable[[], R], refused: Callable[[Refusal], R], member: Member | None) -> R:
    """Return what a call answers, or how it is refused; a member that is no more is forgotten."""
    try:
        return call()
    except _Refused as stopped:
        refusal = stopped.refusal
    except OptionError:
        raise
    except SluicewayError as error:
        refusal = of_group(error)
    if member is not None and refusal.err == UnknownMemberId.ERROR_CODE:
        MEMBERS.drop(member)
    return refused(refusal)


def _named(group: Any, member_id: Any) -> tuple[Member | None, str, str]:
    name, id_ = in_text(group, "group"), in_text(member_id, "member")
    return MEMBERS.find(id_, name), id_, name


def _found(member: Member | None, id_: str, group: str) -> Member:
    if member is None:
        raise _Refused(_unknown(id_, group, "it did not join by this process, or has left"))
    return member


def _checked_generation(generation: Any) -> None:
    if type(generation) is not int:
        raise OptionError(f"the generation is {generation!r}; it takes a number")


def _places(member: Member) -> dict[str, Any]:
    if "positions" not in member.takes:
        return {}
    reach = REACH.of(member.topic_id)
    places = {str(p): [reach[p], 0] for p in member.partitions if p in reach}
    return {"positions": places} if places else {}


def _unknown(id_: str, group: str, why: str) -> Refusal:
    return Refusal.of(
        UnknownMemberId,
        f"the group {group!r} has no member {id_!r}: {why}. Join with an empty id",
    )


def _stale(member: Member, generation: int) -> Refusal:
    return Refusal.of(
        IllegalGeneration,
        f"the generation is {generation}, and the member {member.id!r} of the group "
        f"{member.group!r} was told {member.joined}: join anew",
    )


def _rejoin(why: str) -> Refusal:
    return Refusal.of(RebalanceInProgress, f"{why}: commit, and join anew with the same id")


def _other_topic(member: Member, topic: str) -> Refusal:
    return Refusal.of(
        InconsistentGroupProtocol,
        f"the member {member.id!r} joined for {member.channel!r} and not for {topic!r}: a group "
        "is one channel's; join with an empty id for another",
    )
