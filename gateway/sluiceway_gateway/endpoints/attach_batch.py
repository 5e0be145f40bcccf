"""Batched attach: many simple requests in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sluiceway_gateway.auth.model import Principal
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.service import require_usable
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.endpoints import history, session_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, Event, Mode, Place, Role, event
from sluiceway_gateway.endpoints.placement import (
    Attached,
    AttachSpec,
    new_endpoint,
    superseded,
    taken_by,
    takes_over,
)
from sluiceway_gateway.errors import SluicewayGatewayError
from sluiceway_gateway.groups import store as groups_store
from sluiceway_gateway.groups.model import (
    Group,
    assigned,
    fits,
    founded,
    joined,
    member_of_positions,
)
from sluiceway_gateway.offsets import store as offsets_store
from sluiceway_gateway.offsets.model import Committed
from sluiceway_gateway.schemas import store as schemas_store

_Where = tuple[str, Place]
"""A channel's uid, and a place in it."""


@dataclass(frozen=True, kw_only=True)
class AttachRequest:
    """An instance that asks for its place in a channel, and on whose behalf."""

    channel: str
    uid: str
    asked: AttachSpec
    by: Principal

    @property
    def place(self) -> tuple[object, ...]:
        """What two of them must not have in common to arrive together."""
        asked = self.asked
        own = asked.id if asked.group == ANONYMOUS or asked.dynamic else asked.index
        return self.channel, asked.role, asked.group, own


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """One with whom nothing stands against it so far, but for what its group is like."""

    at: int
    coming: AttachRequest
    by: Principal
    channel: Channel
    place: Place
    """Of one without a group: any."""
    partitions: range

    @property
    def where(self) -> _Where | None:
        """Which place nobody else may have; None for one without a group."""
        return None if self.place.group == ANONYMOUS else (self.channel.uid, self.place)

    @property
    def group(self) -> tuple[str, Role, str]:
        """What names the group."""
        return self.channel.uid, self.coming.asked.role, self.coming.asked.group

    @property
    def whose(self) -> offsets_store.Whose | None:
        """Whose positions it goes on from; None if none are kept for it."""
        if self.place.role is not Role.READER or self.place.group == ANONYMOUS:
            return None
        member = member_of_positions(self.place, self.coming.asked.mode)
        return self.channel.uid, self.place.group, member


@dataclass(frozen=True, kw_only=True)
class _Arrival:
    candidate: _Candidate
    endpoint: Endpoint
    positions: tuple[Committed, ...]


def attach_batch(
    tx: WriteTransaction, coming: Sequence[tuple[AttachRequest, Principal]], *, now: datetime
) -> list[Attached | None]:
    """Give each its place; None for those with whom it is not that simple, and nothing is done.

    Simple is a new instance, in a channel that is ready and that nobody else holds, in a group
    that is as it is asked for, or new. No two may have the same `place`. All that one of them
    would have to be told is left to those who look at it alone.
    """
    session_store.begin(tx, [each.asked.opening(by) for each, by in coming], now=now)
    candidates, before = _held(tx, _candidates(tx, coming))
    stored = _stored(tx, candidates)
    found: dict[tuple[str, Role, str], Group | None] = {}
    joined_groups: dict[tuple[str, Role, str], Group] = {}
    arrivals: list[_Arrival] = []
    for each in candidates:
        asked, key = each.coming.asked, each.group
        kept = stored.get(each.whose, {}) if each.whose else {}
        own = tuple(kept[partition] for partition in each.partitions if partition in kept)
        if any(position.topic_id != each.channel.topic.id for position in own):
            continue
        if key not in found:
            found[key] = groups_store.find(tx, *key)
        group = joined_groups.get(key) or found[key]
        if group is None:
            group = founded(*key, mode=asked.mode, size=asked.size)
        elif not fits(group, mode=asked.mode, size=asked.size):
            continue
        joined_groups[key], place = joined(group, asked.index)
        endpoint = new_endpoint(asked, joined_groups[key], place, now=now)
        arrivals.append(_Arrival(candidate=each, endpoint=endpoint, positions=own))
    if not arrivals:
        return [None] * len(coming)
    _write(tx, arrivals, before, list(joined_groups.values()), now=now)
    return _answers(tx, arrivals, count=len(coming))


def _candidates(
    tx: WriteTransaction, coming: Sequence[tuple[AttachRequest, Principal]]
) -> list[_Candidate]:
    here = channels_store.hold_free(tx, {each.channel for each, _ in coming})
    known = endpoints_store.known(tx, [each.asked.id for each, _ in coming])
    owners = session_store.owners(tx, {each.asked.session for each, _ in coming})
    candidates = []
    for at, (each, by) in enumerate(coming):
        channel, asked = here.get(each.channel), each.asked
        if channel is None or asked.id in known or not _is_simple(each, channel):
            continue
        if owners[asked.session] not in (None, by.subject):
            continue
        place = Place(role=asked.role, group=asked.group, index=asked.index or 0)
        partitions = assigned(
            place, mode=asked.mode, size=asked.size, partitions=channel.topic.partitions or 0
        )
        candidates.append(
            _Candidate(
                at=at, coming=each, by=by, channel=channel, place=place, partitions=partitions
            )
        )
    return candidates


def _is_simple(coming: AttachRequest, channel: Channel) -> bool:
    asked = coming.asked
    if asked.dynamic or channel.uid != coming.uid:
        return False
    shares = asked.role is Role.READER and asked.mode is Mode.SHARED
    if shares and (asked.size or 0) > (channel.topic.partitions or 0):
        return False
    try:
        require_usable(channel, writes=asked.role is Role.WRITER)
    except SluicewayGatewayError:
        return False
    return True


def _held(
    tx: WriteTransaction, candidates: Sequence[_Candidate]
) -> tuple[list[_Candidate], dict[_Where, Endpoint]]:
    """Return, with who has them now, those whose places nobody else is at work on.

    From here on none of those who have them commits any more, so what is read next stays true.
    """
    wanted = [each.where for each in candidates if each.where is not None]
    there = endpoints_store.at_places(tx, wanted)
    held = endpoints_store.hold(tx, [each.id for each in there.values()], patiently=False)
    before = {where: held[each.id] for where, each in there.items() if each.id in held}
    busy = there.keys() - before.keys()
    return [each for each in candidates if each.where not in busy], before


def _stored(
    tx: ReadTransaction, candidates: Sequence[_Candidate]
) -> dict[offsets_store.Whose, Mapping[int, Committed]]:
    wanted: dict[offsets_store.Whose, set[int]] = {}
    for each in candidates:
        if each.whose is not None:
            wanted.setdefault(each.whose, set()).update(each.partitions)
    return {whose: offsets_store.at(tx, whose, own) for whose, own in wanted.items()}


def _write(
    tx: WriteTransaction,
    arrivals: Sequence[_Arrival],
    before: Mapping[_Where, Endpoint],
    joined_groups: Sequence[Group],
    *,
    now: datetime,
) -> None:
    """Write down who is where now, and who is not any more."""
    new = [each.endpoint for each in arrivals]
    gone: list[tuple[Endpoint, Endpoint]] = []
    events: list[tuple[str, Event]] = []
    for arrival, each in zip(arrivals, new, strict=True):
        by, where = arrival.candidate.by.id, arrival.candidate.where
        had = None if where is None else before.get(where)
        if had is not None:
            gone.append((had, superseded(had, by=taken_by(each), now=now)))
            cause = f"superseded by {each.id}"
            events.append((each.channel_uid, event(had, by=by, at=now, cause=cause)))
        events.append((each.channel_uid, event(each, by=by, at=now, cause=None)))
    endpoints_store.save(tx, gone)
    endpoints_store.insert(tx, new)
    for group in joined_groups:
        groups_store.save(tx, group)
    history.add(tx, events)
    endpoints_store.revise(tx, {each.channel_uid for each in new})


def _answers(
    tx: ReadTransaction, arrivals: Sequence[_Arrival], *, count: int
) -> list[Attached | None]:
    uids = {each.candidate.channel.uid for each in arrivals}
    versions = {uid: schemas_store.versions(tx, uid) for uid in sorted(uids)}
    answers: list[Attached | None] = [None] * count
    for each in arrivals:
        endpoint, channel = each.endpoint, each.candidate.channel
        answers[each.candidate.at] = Attached(
            endpoint=endpoint,
            created=True,
            took_over=takes_over(endpoint.place)
            and endpoints_store.was_left_unfinished(tx, endpoint),
            partitions=each.candidate.partitions,
            positions=each.positions,
            channel=channel,
            versions=versions[channel.uid],
        )
    return answers
