from dataclasses import replace
from typing import Any

import pytest

from endpoints import ENDPOINT, NOW
from sluiceway_gateway.core.auth.service import LOOPBACK
from sluiceway_gateway.core.errors import (
    EndpointNotFound,
    Fenced,
    Forbidden,
    GoesBack,
    IllegalTransition,
    NoGroup,
    NotAssigned,
    SluicewayGatewayError,
    StaleGeneration,
    TopicChanged,
)
from sluiceway_gateway.endpoints.groups.model import GroupConfig, new_group
from sluiceway_gateway.endpoints.model import ANONYMOUS, Place, Role, State
from sluiceway_gateway.endpoints.positions import Committed, Position
from sluiceway_gateway.offsets.model import (
    Commit,
    CommitContext,
    CommitResult,
    CommitTarget,
    decide,
)

READER = replace(ENDPOINT, state=State.STARTED, commits=4)
STORED = Committed(
    position=Position(partition=3, offset=10, record=5),
    topic_id="t",
    epoch=6,
    number=9,
    committed_at=NOW,
)
GROUP = new_group("c" * 32, Role.READER, "delays", GroupConfig(size=2))
STANDING = CommitContext(
    endpoint=READER,
    target=CommitTarget(
        endpoint=READER.id,
        channel="flights",
        group=GROUP,
        topic_id="t",
        partitions=6,
        session_owner=None,
    ),
    stored={3: STORED},
)
COMMIT = Commit(
    channel="flights",
    channel_uid="c" * 32,
    group="delays",
    endpoint=READER.id,
    epoch=7,
    generation=1,
    topic_id="t",
    number=5,
    positions=(Position(partition=3, offset=10, record=5), Position(partition=5, offset=0)),
)
WRITER = Place(role=Role.WRITER, group="delays", index=1)
ALONE = Place(role=Role.READER, group=ANONYMOUS, index=1)


def at(partition: int, offset: int, record: int = 0) -> Commit:
    position = Position(partition=partition, offset=offset, record=record)
    return replace(COMMIT, positions=(position,))


def with_endpoint(**changed: Any) -> CommitContext:
    return replace(STANDING, endpoint=replace(READER, **changed))


def with_target(**changed: Any) -> CommitContext:
    return replace(STANDING, target=replace(STANDING.target, **changed))


def decided(commit: Commit, standing: CommitContext | None = STANDING) -> CommitResult:
    return decide(commit, LOOPBACK, standing, now=NOW)


@pytest.mark.parametrize("commit", [COMMIT, at(3, 10, 6), at(3, 11, 0)])
def test_a_new_valid_commit_is_accepted(commit: Commit) -> None:
    result = decided(commit)
    assert (result.is_new, result.number) == (True, 5)
    assert tuple(committed.position for committed in result.positions) == commit.positions
    assert {committed.committed_at for committed in result.positions} == {NOW}


@pytest.mark.parametrize("standing", [STANDING, with_endpoint(state=State.CLOSED)])
@pytest.mark.parametrize("number", [1, 4])
def test_a_repeated_commit_is_not_applied_again(number: int, standing: CommitContext) -> None:
    result = decided(replace(COMMIT, number=number), standing)
    assert (result.is_new, result.number, result.positions) == (False, 4, (STORED,))


@pytest.mark.parametrize(
    ("commit", "standing", "error"),
    [
        (COMMIT, None, EndpointNotFound),
        (replace(COMMIT, channel="departures"), STANDING, EndpointNotFound),
        (replace(COMMIT, channel_uid="d" * 32), STANDING, EndpointNotFound),
        (COMMIT, with_target(session_owner="another"), Forbidden),
        (replace(COMMIT, epoch=6), STANDING, Fenced),
        (replace(COMMIT, epoch=8), STANDING, Fenced),
        (COMMIT, with_endpoint(superseded=True), Fenced),
        (replace(COMMIT, number=1), with_endpoint(superseded=True), Fenced),
        (COMMIT, with_endpoint(place=WRITER), NoGroup),
        (COMMIT, with_endpoint(place=ALONE, size=None), NoGroup),
        (replace(COMMIT, group="others"), STANDING, NotAssigned),
        (replace(COMMIT, generation=2), STANDING, StaleGeneration),
        (COMMIT, with_target(group=replace(GROUP, generation=2)), StaleGeneration),
        (COMMIT, with_endpoint(generation=2), StaleGeneration),
        (replace(COMMIT, topic_id="u"), STANDING, TopicChanged),
        (COMMIT, with_target(topic_id=None), TopicChanged),
        (COMMIT, with_endpoint(state=State.CLOSED), IllegalTransition),
        (at(2, 1), STANDING, NotAssigned),
        (at(7, 1), STANDING, NotAssigned),
        (at(3, 10, 4), STANDING, GoesBack),
        (at(3, 9, 99), STANDING, GoesBack),
    ],
)
def test_invalid_commits_are_refused(
    commit: Commit, standing: CommitContext | None, error: type[SluicewayGatewayError]
) -> None:
    with pytest.raises(error):
        decided(commit, standing)


def test_a_refusal_has_the_committed_position_and_advice() -> None:
    with pytest.raises(GoesBack, match=r"has committed offset 10, record 5 .* use offsets/reset"):
        decided(at(3, 1))
