"""Decisions about attach requests, on groups and endpoints in memory."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from endpoints import NOW
from sluiceway_gateway.channels.change import created
from sluiceway_gateway.channels.model import Channel, Spec, TopicRef
from sluiceway_gateway.core.auth.model import Principal, parse_scopes
from sluiceway_gateway.core.errors import ChannelNotReady, Forbidden, GroupSize
from sluiceway_gateway.core.names import MAX_GROUP_SIZE
from sluiceway_gateway.endpoints.attach_request import (
    AttachPlan,
    AttachRequest,
    AttachSpec,
    AttachState,
    Candidate,
    decide,
    displaced_members,
    draft,
    requested_places,
)
from sluiceway_gateway.endpoints.groups.model import Group, departures
from sluiceway_gateway.endpoints.model import (
    ANONYMOUS,
    Endpoint,
    Health,
    Mode,
    Role,
    RoleGroup,
    State,
)
from sluiceway_gateway.schemas.model import SchemaVersion

SCHEMA = SchemaVersion(id=1, version=1, fingerprint="f", definition="", created_at=NOW)
CHANNEL = replace(
    created(
        Spec(partitions=4, max_partitions=6),
        name="flights",
        uid="c" * 32,
        schema=SCHEMA,
        prefix="",
        now=NOW,
    ),
    topic=TopicRef(name="flights", id="t", partitions=4),
)


@dataclass
class Rows:
    """The groups and endpoints of a channel, as the stores keep them."""

    channel: Channel = CHANNEL
    groups: dict[RoleGroup, Group] = field(default_factory=dict)
    endpoints: dict[str, Endpoint] = field(default_factory=dict)

    def attach(self, *requests: AttachRequest, busy: Iterable[str] = ()) -> list[Any]:
        """Return places and epochs, or errors; requests without an outcome follow alone."""
        outcomes: dict[object, Any] = {}
        candidates = []
        for request in requests:
            group = self.groups.get((CHANNEL.uid, request.spec.role, request.spec.group))
            if group is not None and not request.principal.may_use(group.owned(CHANNEL.name)):
                outcomes[request.key] = Forbidden, "of another owner"
                continue
            endpoint = draft(request, self.channel, number=1, now=NOW)
            candidates.append(
                Candidate(request=request, channel=self.channel, endpoint=endpoint, is_new=True)
            )
        plan = decide(candidates, self.load(candidates, frozenset(busy)), now=NOW)
        self.save(plan)
        outcomes |= {key: (type(error), str(error)) for key, error in plan.errors.items()}
        for candidate in plan.attached:
            endpoint = candidate.endpoint
            outcomes[candidate.request.key] = endpoint.place, endpoint.epoch
        return [
            outcomes[request.key] if request.key in outcomes else self.attach(request)[0]
            for request in requests
        ]

    def load(self, new: Sequence[Candidate], busy: frozenset[str]) -> AttachState:
        rows = sorted(self.endpoints.values(), key=lambda endpoint: endpoint.epoch)
        predecessors = {
            (row.channel_uid, row.place.group, row.static_id): row for row in rows if row.static_id
        }
        members = {
            candidate.group: [
                row
                for row in rows
                if (row.place.role, row.place.group) == candidate.group[1:]
                if not row.superseded or row.may_return
            ]
            for candidate in new
            if candidate.group in self.groups
            if not self.groups[candidate.group].matches(candidate.request.spec.config)
        }
        places = requested_places(new, self.groups, predecessors)
        occupants = {
            (row.channel_uid, row.place): row
            for row in rows
            if not row.superseded and (row.channel_uid, row.place) in places
        }
        displaced = (row for group in members.values() for row in displaced_members(group))
        locked = {row.id: row for row in (*occupants.values(), *predecessors.values(), *displaced)}
        return AttachState(
            groups=self.groups,
            members=members,
            predecessors=predecessors,
            occupants=occupants,
            locked={id_: row for id_, row in locked.items() if id_ not in busy},
            busy=busy,
            stored=defaultdict(dict),
        )

    def save(self, plan: AttachPlan) -> None:
        for _, channel in plan.growth.values():
            self.channel = channel
        new = [candidate.endpoint for candidate in plan.attached]
        self.endpoints |= {id_: after for id_, (_, after) in plan.superseded.items()}
        self.endpoints |= {endpoint.id: endpoint for endpoint in new}
        self.groups |= plan.groups
        self.rebalance(*((None, endpoint) for endpoint in new))
        places = Counter(row.place for row in self.endpoints.values() if not row.superseded)
        assert set(places.values()) <= {1}

    def rebalance(self, *changes: tuple[Endpoint | None, Endpoint]) -> None:
        for uid, name in departures(changes):
            rows = [row for row in self.endpoints.values() if row.group_key == (uid, name)]
            live = sum(row.lives and row.place.role is Role.READER for row in rows)
            group = self.groups[uid, Role.READER, name]
            self.groups[uid, Role.READER, name] = group.rebalanced(live=live, now=NOW)

    def end(self, id_: str, how: str) -> None:
        before = self.endpoints[id_]
        if not before.lives:
            return
        if how == "lost":
            after = replace(before, health=Health.LOST, superseded=before.is_dynamic)
        else:
            after = replace(before, state=State(how))
        self.endpoints[id_] = after
        self.rebalance((before, after))

    def view(self) -> Any:
        """Return everything but the generations of dynamic groups: each batch starts one."""
        return (
            self.channel.spec,
            {
                key: replace(group, generation=0) if group.dynamic else group
                for key, group in self.groups.items()
            },
            {
                row.id: replace(row, generation=0) if row.is_dynamic else row
                for row in self.endpoints.values()
            },
        )


def request(number: int, label: str | None = "x", **spec: Any) -> AttachRequest:
    spec = {"role": Role.READER, "group": "a"} | spec
    if spec["role"] is Role.WRITER:
        spec["mode"] = Mode.SHARED
    if spec.get("size") is not None:
        spec["index"] %= spec["size"]
    return AttachRequest(
        channel=CHANNEL.name,
        channel_uid=CHANNEL.uid,
        spec=AttachSpec(id=f"{number:032x}", session="s" * 32, client="", **spec),
        principal=Principal(id="token", scopes=parse_scopes(["read", "write"]), subject=label),
    )


KINDS = st.one_of(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from([Role.READER, Role.READER, Role.WRITER]),
            "group": st.sampled_from("aab"),
            "size": st.sampled_from([2, 2, 2, 3, 5, 6, 7]),
            "index": st.integers(0, 6),
            "mode": st.sampled_from([Mode.SHARED, Mode.SHARED, Mode.BROADCAST]),
        }
    ),
    st.fixed_dictionaries(
        {"group": st.sampled_from("aab"), "static_id": st.sampled_from([None, "s", "t"])}
    ),
    st.fixed_dictionaries({"role": st.sampled_from(Role), "group": st.just(ANONYMOUS)}),
)
#: Before a gateway had tokens, groups had no owner.
HISTORIES = st.lists(st.tuples(KINDS, st.sampled_from(["x", None])), max_size=6)
BATCHES = st.lists(st.tuples(KINDS, st.sampled_from("xxxy")), min_size=1, max_size=6)
ENDS = st.lists(st.sampled_from(["closed", "closed", "error", "lost", None]), max_size=6)


def fixed(index: int, size: int = 2, mode: Mode = Mode.SHARED) -> tuple[dict[str, Any], str]:
    return {"role": Role.READER, "group": "a", "size": size, "index": index, "mode": mode}, "x"


DYNAMIC = ({"group": "a"}, "x")


@example(history=[], ends=[], batch=[fixed(0, 6), fixed(1, 5)])
@example(history=[fixed(0), fixed(1)], ends=["closed", "closed"], batch=[DYNAMIC, DYNAMIC])
@example(history=[fixed(0), fixed(1)], ends=[], batch=[fixed(0), fixed(2, 3)])
@example(history=[fixed(1)], ends=["error"], batch=[fixed(n, 2, Mode.BROADCAST) for n in (0, 1)])
@given(history=HISTORIES, ends=ENDS, batch=BATCHES)
def test_a_batch_decides_as_its_requests_one_after_another_would(
    history: list[Any], ends: list[str | None], batch: list[Any]
) -> None:
    rows = Rows()
    for number, (kind, label) in enumerate(history):
        rows.attach(request(number, label, **kind))
    for id_, how in zip(list(rows.endpoints), ends, strict=False):
        if how is not None:
            rows.end(id_, how)
    requests = [request(100 + number, label, **kind) for number, (kind, label) in enumerate(batch)]
    # A batch has one request for a place.
    requests = list({new.key: new for new in requests}.values())
    alone = deepcopy(rows)
    outcomes = [alone.attach(new)[0] for new in requests]
    assert rows.attach(*requests) == outcomes
    assert rows.view() == alone.view()


def test_a_request_for_a_busy_endpoint_waits_and_the_others_do_not() -> None:
    rows = Rows()
    rows.attach(*(request(index, index=index, size=2) for index in (0, 1)))
    new = [request(10 + index, index=index, size=2) for index in (0, 1)]
    assert [epoch for _, epoch in rows.attach(*new, busy=[f"{0:032x}"])] == [4, 3]


def test_a_full_dynamic_group_admits_restarts_of_its_live_members_only() -> None:
    rows = Rows()
    (first,) = rows.attach(request(0, static_id="s"))
    key = CHANNEL.uid, Role.READER, "a"
    rows.groups[key] = replace(rows.groups[key], size=MAX_GROUP_SIZE - 1)
    restarted, joined, refused = rows.attach(
        request(1, static_id="s"), request(2, static_id="t"), request(3)
    )
    assert restarted[0] == first[0]
    assert (joined[1], refused[0]) == (3, GroupSize)


@pytest.mark.parametrize(
    ("size", "scopes", "error", "partitions"),
    [
        (4, "read", None, 4),
        (6, "read", ChannelNotReady, 6),
        (7, "read", Forbidden, 4),
        (7, "manage", ChannelNotReady, 7),
    ],
)
def test_a_larger_group_lets_the_channel_grow_as_far_as_its_scopes_allow(
    size: int, scopes: str, error: type[Exception] | None, partitions: int
) -> None:
    rows = Rows()
    asked = request(0, index=0, size=size)
    principal = replace(asked.principal, scopes=parse_scopes([scopes]))
    (outcome,) = rows.attach(replace(asked, principal=principal))
    assert outcome[0] is error or (error is None and outcome[1] == 1)
    assert rows.channel.spec.partitions == partitions
