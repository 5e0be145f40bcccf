from dataclasses import replace
from datetime import UTC, datetime

import pytest

from endpoints import ENDPOINT
from sluiceway_gateway.core.errors import (
    Conflict,
    Fenced,
    GoesBack,
    IllegalTransition,
    NoGroup,
    NotAssigned,
    StaleGeneration,
    TopicChanged,
)
from sluiceway_gateway.endpoints.groups.model import GroupConfig, new_group
from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, Place, Role, State
from sluiceway_gateway.endpoints.positions import Committed, Position
from sluiceway_gateway.offsets.model import Commit, CommitContext, validate_commit

READER = replace(ENDPOINT, state=State.STARTED, commits=4)
STORED = Committed(
    position=Position(partition=3, offset=10, record=5),
    topic_id="t",
    epoch=6,
    number=9,
    committed_at=datetime(2030, 1, 1, tzinfo=UTC),
)
STANDING = CommitContext(
    endpoint=READER,
    group=new_group("c" * 32, Role.READER, "delays", GroupConfig(size=2)),
    topic_id="t",
    partitions=6,
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
WRITER = replace(READER, place=Place(role=Role.WRITER, group="delays", index=1))
ALONE = replace(READER, place=Place(role=Role.READER, group=ANONYMOUS, index=1), size=None)


def at(partition: int, offset: int, record: int = 0) -> Commit:
    position = Position(partition=partition, offset=offset, record=record)
    return replace(COMMIT, positions=(position,))


def with_endpoint(endpoint: Endpoint) -> CommitContext:
    return replace(STANDING, endpoint=endpoint)


def test_a_new_valid_commit_is_accepted() -> None:
    assert validate_commit(COMMIT, STANDING)
    assert validate_commit(at(3, 10, 6), STANDING)
    assert validate_commit(at(3, 11, 0), STANDING)


@pytest.mark.parametrize("number", [1, 4])
def test_a_repeated_commit_is_not_applied_again(number: int) -> None:
    assert not validate_commit(replace(at(3, 0), number=number), STANDING)


@pytest.mark.parametrize(
    ("commit", "standing", "error"),
    [
        (replace(COMMIT, epoch=6), STANDING, Fenced),
        (replace(COMMIT, epoch=8), STANDING, Fenced),
        (COMMIT, with_endpoint(replace(READER, superseded=True)), Fenced),
        (replace(COMMIT, number=1), with_endpoint(replace(READER, superseded=True)), Fenced),
        (COMMIT, with_endpoint(WRITER), NoGroup),
        (COMMIT, with_endpoint(ALONE), NoGroup),
        (replace(COMMIT, group="others"), STANDING, NotAssigned),
        (replace(COMMIT, generation=2), STANDING, StaleGeneration),
        (COMMIT, replace(STANDING, group=replace(STANDING.group, generation=2)), StaleGeneration),
        (COMMIT, with_endpoint(replace(READER, generation=2)), StaleGeneration),
        (replace(COMMIT, topic_id="u"), STANDING, TopicChanged),
        (COMMIT, replace(STANDING, topic_id=None), TopicChanged),
        (COMMIT, with_endpoint(replace(READER, state=State.CLOSED)), IllegalTransition),
        (at(2, 1), STANDING, NotAssigned),
        (at(7, 1), STANDING, NotAssigned),
        (at(3, 10, 4), STANDING, GoesBack),
        (at(3, 9, 99), STANDING, GoesBack),
    ],
)
def test_invalid_commits_are_refused(
    commit: Commit, standing: CommitContext, error: type[Conflict]
) -> None:
    with pytest.raises(error):
        validate_commit(commit, standing)


def test_a_refusal_has_the_committed_position_and_advice() -> None:
    with pytest.raises(GoesBack, match=r"has committed offset 10, record 5 .* use offsets/reset"):
        validate_commit(at(3, 1), STANDING)
