"""Positions of a reader that are committed together with a batch."""

from typing import Any

import pytest

from endpoints import Site, site
from gateways import TOPIC_ID, code
from ledger_sites import LedgerSite


@pytest.fixture
def source(ledger: LedgerSite) -> Site:
    """The source channel."""
    return site(ledger.rig, "source", partitions=2)


@pytest.fixture
def reader(source: Site) -> Any:
    return source.attach(group="copy", index=0, size=1)


def positions(
    source: Site,
    reader: Any,
    number: int,
    moved: dict[int, tuple[int | None, int]],
    **change: Any,
) -> dict[str, Any]:
    """Return a commit's positions: the offsets before and after, by partition."""
    request_body = {
        "channel": source.name,
        "uid": source.uid,
        "topic_id": TOPIC_ID,
        "group": "copy",
        "id": reader["id"],
        "epoch": reader["epoch"],
        "generation": reader["generation"],
        "number": number,
        "positions": [
            {
                "partition": partition,
                "from": None if before is None else {"offset": before, "record": 0},
                "to": {"offset": after, "record": 0},
            }
            for partition, (before, after) in moved.items()
        ],
    }
    return request_body | change


def stored(source: Site) -> dict[int, int]:
    path = f"{source.path}/groups/copy/offsets"
    committed = source.rig.http.get(path).json()["positions"]
    return {position["partition"]: position["offset"] for position in committed}


def test_output_and_positions_are_committed_together(
    ledger: LedgerSite, source: Site, reader: Any
) -> None:
    first = positions(source, reader, 1, {0: (None, 5), 1: (None, 3)})
    done = ledger.commit(ledger.open("k1"), {0: [(0, 8)]}, positions=first)
    assert stored(source) == {0: 5, 1: 3}
    second = positions(source, reader, 2, {0: (5, 9)})
    ledger.commit(ledger.open("k2"), {0: [(8, 12)]}, positions=second)
    assert stored(source) == {0: 9, 1: 3}
    again = ledger.open("k1")
    assert ledger.commit(again, {0: [(0, 8)]}, positions=first) == done
    assert stored(source) == {0: 9, 1: 3}


@pytest.mark.parametrize(
    ("moved", "change", "expected"),
    [
        ({0: (4, 9)}, {}, "position_moved"),
        ({0: (None, 9)}, {}, "position_moved"),
        ({0: (5, 9)}, {"number": 1}, "position_moved"),
        ({0: (5, 3)}, {}, "goes_back"),
        ({0: (5, 9)}, {"epoch": 2}, "fenced"),
        ({0: (5, 9)}, {"generation": 2}, "stale_generation"),
        ({0: (5, 9)}, {"topic_id": "b3RoZXI"}, "topic_changed"),
        ({0: (5, 9)}, {"id": "0" * 32}, "endpoint_not_found"),
    ],
)
def test_nothing_is_committed_if_a_position_is_refused(
    ledger: LedgerSite,
    source: Site,
    reader: Any,
    moved: dict[int, tuple[int | None, int]],
    change: dict[str, Any],
    expected: str,
) -> None:
    first = positions(source, reader, 1, {0: (None, 5)})
    ledger.commit(ledger.open("k1"), {0: [(0, 8)]}, positions=first)
    before = ledger.committed()
    batch = ledger.open("k2")
    reader_positions = positions(source, reader, 2, moved) | change
    response = ledger.post_commit(batch, {0: [(8, 12)]}, positions=reader_positions)
    assert (response.status_code // 100, code(response)) == (4, expected)
    assert stored(source) == {0: 5}
    assert ledger.committed() == {**before, "open": ledger.committed()["open"]}
    good = positions(source, reader, 2, {0: (5, 9)})
    ledger.commit(batch, {0: [(8, 12)]}, positions=good)
    assert stored(source) == {0: 9}


def test_no_position_moves_if_the_batch_is_refused(
    ledger: LedgerSite, source: Site, reader: Any
) -> None:
    batch = ledger.open()
    ledger.post_abort(batch)
    reader_positions = positions(source, reader, 1, {0: (None, 5)})
    response = ledger.post_commit(batch, {0: [(0, 8)]}, positions=reader_positions)
    assert code(response) == "batch_aborted"
    assert stored(source) == {}


def test_positions_of_another_channel_need_its_uid(
    ledger: LedgerSite, source: Site, reader: Any
) -> None:
    reader_positions = positions(source, reader, 1, {0: (None, 5)}, uid=None)
    response = ledger.post_commit(ledger.open(), {0: [(0, 8)]}, positions=reader_positions)
    assert (response.status_code, code(response)) == (422, "invalid_request")


def test_a_token_that_may_not_read_the_source_commits_nothing(
    ledger: LedgerSite, source: Site, reader: Any
) -> None:
    headers = ledger.rig.token("write:flights")
    ledger.rig.http.headers.update(headers)
    reader_positions = positions(source, reader, 1, {0: (None, 5)})
    response = ledger.post_commit(ledger.open(), {0: [(0, 8)]}, positions=reader_positions)
    assert (response.status_code, code(response)) == (403, "forbidden")


def unjoined(source: Site, moved: dict[int, tuple[int | None, int]]) -> dict[str, Any]:
    """Return positions of a reader that chose its partitions itself."""
    member = dict.fromkeys(("id", "epoch", "generation"), 0)
    whole = positions(source, member, 0, moved)
    return {name: part for name, part in whole.items() if name not in (*member, "number")}


def test_output_and_positions_without_membership_are_committed_together(
    ledger: LedgerSite, source: Site
) -> None:
    first = unjoined(source, {0: (None, 5), 1: (None, 3)})
    done = ledger.commit(ledger.open("k1"), {0: [(0, 8)]}, positions=first)
    assert stored(source) == {0: 5, 1: 3}
    assert ledger.commit(ledger.open("k1"), {0: [(0, 8)]}, positions=first) == done
    ledger.commit(ledger.open("k2"), {0: [(8, 12)]}, positions=unjoined(source, {0: (5, 9)}))
    assert stored(source) == {0: 9, 1: 3}


@pytest.mark.parametrize(
    ("moved", "change", "expected"),
    [
        ({0: (4, 9)}, {}, "position_moved"),
        # Another reader has read as far: no repeat of this commit.
        ({0: (None, 5)}, {}, "position_moved"),
        ({0: (5, 3)}, {}, "goes_back"),
        ({0: (5, 9)}, {"topic_id": "b3RoZXI"}, "topic_changed"),
        ({0: (5, 9)}, {"epoch": 1}, "invalid_request"),
        ({9: (None, 9)}, {}, "not_assigned"),
    ],
)
def test_nothing_is_committed_if_a_position_without_membership_is_refused(
    ledger: LedgerSite,
    source: Site,
    moved: dict[int, tuple[int | None, int]],
    change: dict[str, Any],
    expected: str,
) -> None:
    first = unjoined(source, {0: (None, 5)})
    ledger.commit(ledger.open("k1"), {0: [(0, 8)]}, positions=first)
    batch = ledger.open("k2")
    response = ledger.post_commit(batch, {0: [(8, 12)]}, positions=unjoined(source, moved) | change)
    assert (response.status_code // 100, code(response)) == (4, expected)
    assert stored(source) == {0: 5}
    ledger.commit(batch, {0: [(8, 12)]}, positions=unjoined(source, {0: (5, 9)}))


def test_only_members_commit_positions_with_a_batch_while_there_are_some(
    ledger: LedgerSite, source: Site, reader: Any
) -> None:
    response = ledger.post_commit(
        ledger.open(), {0: [(0, 8)]}, positions=unjoined(source, {0: (None, 5)})
    )
    assert code(response) == "members_open"
    assert stored(source) == {}
