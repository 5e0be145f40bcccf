"""`sluiceway channels search`: matches as lines, continued searches, errors."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from processes import Sluiceway
from scripted_gateway import CHANNEL, Script, scripted

PROGRESS = {"scanned": 500, "scanned_bytes": 9, "passed": 500, "total": 1_000}


def respond(
    server: Script, *offsets: int, reason: str, cursor: str | None = None, **gaps: object
) -> None:
    """Let the server send matches at these offsets, and the end."""
    end = {
        "reason": reason,
        "message": "Kafka does not answer" if reason == "error" else None,
        "partitions_left_out": 0,
        "partitions_unavailable": [],
        "next_cursor": cursor,
        **gaps,
    }
    lines: list[Any] = [{"progress": {**PROGRESS, "scanned": 0}}]
    lines += [{"message": {"offset": offset}} for offset in offsets]
    lines += [{"progress": PROGRESS}, {"end": end}]
    server.response(200, "".join(f"{json.dumps(line)}\n" for line in lines).encode())


def queries(server: Script) -> list[dict[str, list[str]]]:
    return [parse_qs(urlsplit(path).query) for _, path, _ in server.requests if "/search" in path]


def test_a_search_goes_on_until_the_end_and_prints_matches_as_lines(sluiceway: Sluiceway) -> None:
    with scripted() as server:
        server.response(200, CHANNEL)
        respond(server, 9, 8, reason="messages", cursor="there")
        respond(server, 3, reason="end")
        run = sluiceway(
            *("channels", "search", "flights", "UA", "--field", "carrier", "--partition", "2"),
            *("--since", "2026-01-01T00:00:00Z"),
            url=server.url,
        )
    assert [json.loads(line)["offset"] for line in run.out.splitlines()] == [9, 8, 3]
    assert (run.status, run.errors) == (0, "sluiceway: 3 matches in 1,000 messages\n")
    same = {
        "text": ["UA"],
        "field": ["carrier"],
        "since": ["2026-01-01T00:00:00+00:00"],
        "limit": ["1000"],
    }
    assert queries(server) == [{**same, "partition": ["2"]}, {**same, "cursor": ["there"]}]


def test_partitions_that_were_not_searched_are_named(sluiceway: Sluiceway) -> None:
    with scripted() as server:
        server.response(200, CHANNEL)
        away: dict[str, object] = {"partitions_unavailable": [1, 4]}
        respond(server, 9, reason="messages", cursor="there", partitions_left_out=2, **away)
        respond(server, 8, reason="end")
        run = sluiceway("channels", "search", "flights", "UA", url=server.url)
    assert [json.loads(line)["offset"] for line in run.out.splitlines()] == [9, 8]
    assert run.status == 1
    assert "partitions 1, 4 were not searched, because their leaders do not answer" in run.err
    assert "2 further partitions with messages were not searched: give --partition" in run.err


def test_a_search_that_follows_names_partitions_without_which_it_goes_on(
    sluiceway: Sluiceway,
) -> None:
    with scripted() as server:
        server.response(200, CHANNEL)
        respond(server, reason="time", cursor="there", partitions_unavailable=[1])
        respond(server, 7, reason="time", cursor="further")
        run = sluiceway("channels", "search", "flights", "-f", "-n", "1", url=server.url)
    assert run.status == 0
    assert "sluiceway: partitions 1 were not searched" in run.errors


def test_a_search_stops_after_a_number_of_matches(sluiceway: Sluiceway) -> None:
    with scripted() as server:
        server.response(200, CHANNEL)
        respond(server, 9, reason="time", cursor="there")
        respond(server, 8, 7, reason="limit", cursor="further")
        run = sluiceway("channels", "search", "flights", "-n", "3", url=server.url)
    assert run.status == 0
    assert len(run.out.splitlines()) == 3
    assert run.errors == "sluiceway: 3 matches in 1,000 messages\n"
    assert [query["limit"] for query in queries(server)] == [["3"], ["2"]]


def test_a_search_that_follows_stops_after_a_number_of_matches(sluiceway: Sluiceway) -> None:
    with scripted() as server:
        server.response(200, CHANNEL)
        respond(server, 7, 8, 9, reason="time", cursor="further")
        run = sluiceway("channels", "search", "flights", "-f", "-n", "2", url=server.url)
    assert [json.loads(line)["offset"] for line in run.out.splitlines()] == [7, 8]
    assert (run.status, run.errors) == (0, "sluiceway: 2 matches in 500 messages\n")
    assert len(queries(server)) == 1


def test_a_search_that_fails_says_why(sluiceway: Sluiceway) -> None:
    with scripted() as server:
        server.response(200, CHANNEL)
        respond(server, reason="error")
        sluiceway("channels", "search", "flights", url=server.url).failed(
            "the search ended: Kafka does not answer"
        )
        server.response(200, CHANNEL)
        server.problem(422, "invalid_request")
        run = sluiceway("channels", "search", "flights", "--regex", "(", url=server.url)
        run.failed("it is invalid_request")
        server.response(200, CHANNEL)
        server.response(200, b"")
        run = sluiceway("channels", "search", "flights", url=server.url)
        run.failed("broke the search off")
        server.response(200, CHANNEL)
        sluiceway("channels", "search", "flights", url=server.url).failed("broke off its response")
    run = sluiceway("channels", "search", "flights", "--since", "today")
    run.failed("not a time in ISO 8601", status=2)
