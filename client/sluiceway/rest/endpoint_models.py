"""Answers about endpoints, positions and heartbeats as frozen values.

Each class has a `parse` that takes an answer's JSON; fields that this version does not know are
ignored, a missing or mistyped one raises IncompatibleGateway.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sluiceway.errors import OptionError
from sluiceway.rest.models import Answer, Connection
from sluiceway.rest.transport import group_path


@dataclass(frozen=True, kw_only=True, order=True)
class Position:
    """The next record to read: message `offset`, of which `records` records are done already.

    An `arrow` message holds many records, so an offset alone would not be exact. A message that
    is done as a whole is `Position(offset=its offset + 1)`. Positions of one partition are
    ordered.
    """

    offset: int
    records: int = 0

    def __post_init__(self) -> None:
        for name in ("offset", "records"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise OptionError(f"{name} of a position is {value!r}; it takes a number from 0")

    @classmethod
    def of(cls, given: "Position | int") -> "Position":
        """Return `given`, where an int is an offset."""
        return given if isinstance(given, Position) else cls(offset=given)


_MAX_PAYLOAD_BYTES = 4096

Role = Literal["reader", "writer"]
Mode = Literal["shared", "broadcast"]


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A place in a group: `index` of `size`, both known to whoever starts the members.

    Members of dynamic groups have neither.
    """

    group: str
    index: int | None
    size: int | None
    mode: Mode = "shared"

    @property
    def dynamic(self) -> bool:
        """Whether its partitions change as others come and go."""
        return self.size is None

    def __str__(self) -> str:
        return self.group if self.dynamic else f"{self.group}[{self.index} of {self.size}]"


def membership(
    group: str | None,
    index: int | None,
    size: int | None,
    mode: Mode = "shared",
    *,
    dynamic: bool = False,
) -> Membership | None:
    """Return the place that is asked for; a group alone is one of one member. OptionError."""
    if dynamic:
        if group is None or index is not None or size is not None or mode != "shared":
            raise OptionError(
                "a member of a dynamic group shares it: give the group's name, and no index, size "
                "or other mode"
            )
        group_path("any", group)
        return Membership(group=group, index=None, size=None)
    if group is None:
        if index is not None or size is not None or mode != "shared":
            raise OptionError("index, size and mode are of a group: give its name, group=…")
        return None
    if mode not in ("shared", "broadcast"):
        raise OptionError(f"mode is {mode!r}; it takes 'shared' or 'broadcast'")
    if index is None and size is None:
        index, size = 0, 1
    if type(index) is not int or type(size) is not int or not 0 <= index < size:
        raise OptionError(
            f"index is {index!r} of size {size!r}; members are numbered from 0 to size - 1, and "
            "both are given, or neither"
        )
    group_path("any", group)
    return Membership(group=group, index=index, size=size, mode=mode)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A writer or reader at a channel, as the gateway last knew it.

    `state` is what it says of itself (opened, started, stopped, closed, error, with `cause`),
    `health` what the gateway makes of its beats (healthy, suspect, lost). `group` and `size` are
    None where it has no group; `title` is what it is, for people, where somebody said. `ends` has,
    of a writer that finished, the offset up to which each partition holds its records, and of one
    that failed, up to where everything lies that was written in its place, if that is known;
    `lost_at` what was in the channel when it was found lost.
    """

    id: str
    role: str
    group: str | None
    index: int
    size: int | None
    state: str
    health: str
    cause: str | None = None
    payload: Mapping[str, Any] | None = None
    ends: Mapping[int, int] | None = None
    lost_at: Mapping[int, int] | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    changed_at: datetime | None = None
    title: str | None = None

    @property
    def place(self) -> str:
        """Name it for a message: `delays[2]`, or by its id."""
        return f"{self.group}[{self.index}]" if self.group else f"{self.role} {self.id[:8]}"

    @property
    def lives(self) -> bool:
        """Whether it is at work, as far as anybody knows."""
        return self.state in ("opened", "started", "stopped") and self.health != "lost"

    @property
    def is_accounted_for(self) -> bool:
        """Whether it is known where its records end, be they none: it finished, or reported so."""
        return self.state == "closed" or (self.state == "error" and self.ends is not None)

    @property
    def wrote_nothing(self) -> bool:
        """Whether it failed, and it is certain that nothing was written in its place."""
        return self.state == "error" and self.ends == {}

    @classmethod
    def parse(cls, read: Answer) -> "Endpoint":
        """Read the JSON of an endpoint, in a list or as a counterpart."""
        counters, changed_at = read.given("counters"), read.given("changed_at")
        return cls(
            id=read.text("id"),
            role=read.text("role"),
            group=read.optional(read.text, "group"),
            index=read.number("index"),
            size=read.optional(read.number, "size"),
            state=read.text("state"),
            health=read.text("health"),
            cause=_given(read, "cause", str),
            payload=_given(read, "payload", dict),
            ends=None if _given(read, "ends", dict) is None else read.numbers("ends"),
            lost_at=None if _given(read, "lost_at", dict) is None else read.numbers("lost_at"),
            counters={} if counters is None else counters.mapping(),
            changed_at=None if changed_at is None else changed_at.time(),
            title=_given(read, "title", str),
        )


@dataclass(frozen=True, kw_only=True)
class Attached:
    """The answer to an attach.

    `took_over` says of a writer that who had its place before did not come to an end; `takes`
    names what beats may carry beyond what every gateway takes.
    `positions` has what the group has committed of the partitions assigned.
    `patience_ms` is how long an endpoint may be silent before it counts as lost.
    """

    epoch: int
    generation: int
    took_over: bool
    partitions: tuple[int, ...]
    beat_ms: int
    patience_ms: int
    positions: Mapping[int, Position]
    connection: Connection
    takes: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, answer: object) -> "Attached":
        """Read the JSON of the answer."""
        read = Answer(answer, "attached")
        return cls(
            epoch=read.number("endpoint", "epoch"),
            generation=read.number("endpoint", "generation"),
            took_over=_given(read.at("endpoint"), "took_over", bool) or False,
            partitions=tuple(each.number() for each in read.items("endpoint", "partitions")),
            beat_ms=read.number("beat", "interval_ms"),
            patience_ms=read.number("beat", "patience_ms"),
            positions=positions(read),
            connection=Connection.parse(read.mapping("connection")),
            takes=_takes(read),
        )


@dataclass(frozen=True, kw_only=True)
class HeartbeatResult:
    """What a beat brought to one endpoint; `counterparts` None: they are as they were."""

    status: str
    reason: str | None
    asked: str | None
    revision: int | None
    generation: int | None
    counterparts: tuple[Endpoint, ...] | None

    @classmethod
    def parse(cls, read: Answer) -> "HeartbeatResult":
        """Read the JSON of one endpoint in the answer to a beat."""
        counterparts = read.given("counterparts")
        known = counterparts is not None and counterparts.value is not None
        return cls(
            status=read.text("status"),
            reason=_given(read, "reason", str),
            asked=_given(read, "asked", str),
            revision=_given(read, "endpoints_revision", int),
            generation=_given(read, "generation", int),
            counterparts=(
                tuple(Endpoint.parse(each) for each in read.items("counterparts"))
                if known
                else None
            ),
        )


@dataclass(frozen=True, kw_only=True)
class ShareAnswer:
    """The gateway's word on a share: of the group's generation `generation`, if it is `taken`.

    `has` is the generation of the share that the member has (None: it has none), and `held` what
    it has by that.
    """

    generation: int
    taken: bool
    has: int | None
    partitions: tuple[int, ...]
    pending: tuple[int, ...]
    held: tuple[int, ...]
    positions: Mapping[int, Position]
    total: int

    @classmethod
    def parse(cls, answer: object) -> "ShareAnswer":
        """Read the JSON of the answer."""
        read = Answer(answer, "sharing")

        def numbers(key: str) -> tuple[int, ...]:
            return tuple(each.number() for each in read.items(key))

        return cls(
            generation=read.number("generation"),
            taken=read.flag("taken"),
            has=read.optional(read.number, "has"),
            partitions=numbers("partitions"),
            pending=numbers("pending"),
            held=numbers("held"),
            positions=positions(read),
            total=read.number("total"),
        )


def checked_payload(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a payload as its counterparts will have it. Raises OptionError."""
    try:
        text = json.dumps(dict(payload), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise OptionError(f"a payload is an object of JSON's own values: {error}") from error
    size = len(text.encode())
    if size > _MAX_PAYLOAD_BYTES:
        raise OptionError(f"the payload takes {size:,} bytes, {_MAX_PAYLOAD_BYTES:,} at most")
    known: dict[str, Any] = json.loads(text)
    return known


def positions(read: Answer) -> dict[int, Position]:
    """Read the list `positions`."""
    return {
        each.number("partition"): Position(
            offset=each.number("offset"), records=each.number("record")
        )
        for each in read.items("positions")
    }


def _takes(read: Answer) -> frozenset[str]:
    takes = read.given("takes")
    return frozenset() if takes is None else frozenset(each.text() for each in takes.items())


def _given(read: Answer, key: str, kind: type[Any]) -> Any:
    found = read.given(key)
    return None if found is None or found.value is None else found.typed(kind)


@dataclass(frozen=True, kw_only=True)
class PartitionShortfall:
    """Where a group is not there yet; `index` is that of a broadcast group's member."""

    index: int | None
    partition: int
    committed: int | None
    wanted: int


@dataclass(frozen=True, kw_only=True)
class CommitProgress:
    """Whether a group has committed as far as was asked; `lacking` counts what is missing."""

    passed: bool
    known: bool
    lacking: int
    missing: tuple[PartitionShortfall, ...]

    @classmethod
    def parse(cls, answer: object) -> "CommitProgress":
        """Read the JSON of the answer."""
        read = Answer(answer, "passed")
        return cls(
            passed=read.flag("passed"),
            known=read.flag("known"),
            lacking=read.number("lacking"),
            missing=tuple(
                PartitionShortfall(
                    index=each.optional(each.number, "index"),
                    partition=each.number("partition"),
                    committed=each.optional(each.number, "committed"),
                    wanted=each.number("wanted"),
                )
                for each in read.items("missing")
            ),
        )


__all__ = [
    "Attached",
    "CommitProgress",
    "Endpoint",
    "HeartbeatResult",
    "Membership",
    "Mode",
    "PartitionShortfall",
    "Position",
    "Role",
    "ShareAnswer",
    "checked_payload",
]
