"""Ends of places in groups of readers: which writers a later reader in a place waits for."""

from typing import Any

from endpoints import Site, report


def attached(flights: Site, **body: Any) -> tuple[Any, int]:
    """Attach a reader; return the endpoint, and the number up to which its place has read."""
    response = flights.post_attach(**body).json()
    return response["endpoint"], response["finished_through"]


def place(flights: Site, index: int = 0, size: int = 1, **body: Any) -> tuple[Any, int]:
    return attached(flights, group="g", index=index, size=size, **body)


def finished_writer(flights: Site) -> int:
    """Attach and close a writer; return its number."""
    writer = flights.attach("writer")
    flights.detach(writer)
    number: int = writer["number"]
    return number


def test_endpoints_are_numbered_in_the_order_of_attaching(flights: Site) -> None:
    numbers = [flights.attach(role)["number"] for role in ("writer", "reader", "writer")]
    assert numbers == sorted(set(numbers))
    assert [writer["number"] for writer in flights.listed(role="writer")] == [
        numbers[0],
        numbers[2],
    ]


def test_a_writer_that_returns_after_a_failure_gets_a_new_number(flights: Site) -> None:
    writer = flights.attach("writer")
    later = flights.attach("writer")["number"]
    flights.beat(report(writer, state="error"))
    flights.beat(report(writer, state="started"))
    assert flights.get(writer)["number"] > later


def test_a_reader_learns_the_live_writers(flights: Site) -> None:
    live, _ = flights.attach("writer"), finished_writer(flights)
    assert flights.post_attach().json()["live_writers"] == [live["id"]]
    assert flights.post_attach("writer").json()["live_writers"] == []


def test_a_place_that_closes_at_its_end_does_not_wait_for_these_writers_again(
    flights: Site,
) -> None:
    number = finished_writer(flights)
    reader, through = place(flights)
    assert through == 0
    flights.detach(reader, finished_through=number)
    again, through = place(flights)
    assert through == number
    # A crash, an exception, or a close before the end moves nothing.
    flights.detach(again, "error", cause="out of memory")
    crashed, through = place(flights)
    assert through == number
    flights.detach(crashed)
    assert place(flights)[1] == number


def test_a_failed_reader_has_reached_no_end(flights: Site) -> None:
    reader, _ = place(flights)
    flights.detach(reader, "error", finished_through=finished_writer(flights))
    assert place(flights)[1] == 0


def test_each_place_of_a_fixed_group_has_its_own_end(flights: Site) -> None:
    for mode in ("shared", "broadcast"):
        number = finished_writer(flights)
        group = {"group": mode, "mode": mode, "size": 2}
        first, _ = attached(flights, index=0, **group)
        second, _ = attached(flights, index=1, **group)
        flights.detach(second, finished_through=number)
        flights.detach(first, "error")
        assert attached(flights, index=1, **group)[1] == number
        assert attached(flights, index=0, **group)[1] == 0


def test_the_end_is_at_most_the_newest_number(flights: Site) -> None:
    reader, _ = place(flights)
    flights.detach(reader, finished_through=10**9)
    writer = flights.attach("writer")
    assert place(flights)[1] < writer["number"]


def test_a_dismissed_place_keeps_its_end(flights: Site) -> None:
    number = finished_writer(flights)
    reader, _ = place(flights)
    flights.detach(reader, finished_through=number)
    path = f"{flights.path}/endpoints/{reader['id']}"
    assert flights.rig.http.delete(path, params={"uid": flights.uid}).status_code == 200
    assert place(flights)[1] == number


def test_a_reset_moves_the_end_back(flights: Site) -> None:
    number = finished_writer(flights)
    reader, _ = place(flights)
    flights.detach(reader, finished_through=number)
    assert flights.reset().status_code == 200
    reader, through = place(flights)
    assert through == 0
    # Also for a member that reads when its group is reset.
    assert flights.reset(force=True).status_code == 200
    flights.detach(reader, finished_through=number)
    assert place(flights)[1] == 0


def test_a_reset_of_one_broadcast_member_leaves_the_ends_of_others(flights: Site) -> None:
    number = finished_writer(flights)
    for index in (1, 0):
        member, _ = place(flights, index, 2, mode="broadcast")
        flights.detach(member, finished_through=number)
    assert flights.reset(index=1).status_code == 200
    assert place(flights, 1, 2, mode="broadcast")[1] == 0
    assert place(flights, 0, 2, mode="broadcast")[1] == number


def test_a_reset_of_one_broadcast_member_leaves_the_ends_that_running_others_reach(
    flights: Site,
) -> None:
    number = finished_writer(flights)
    first, second = (place(flights, index, 2, mode="broadcast")[0] for index in (0, 1))
    assert flights.reset(index=1, force=True).status_code == 200
    for member in (second, first):
        flights.detach(member, finished_through=number)
    assert place(flights, 0, 2, mode="broadcast")[1] == number
    second, through = place(flights, 1, 2, mode="broadcast")
    assert through == 0, "its reset came after it had read"
    # A reset of all counts for each of them, also if one is reset again.
    first, _ = place(flights, 0, 2, mode="broadcast")
    for one in ({}, {"index": 1}):
        assert flights.reset(force=True, **one).status_code == 200
    for member in (second, first):
        flights.detach(member, finished_through=number)
    assert [place(flights, index, 2, mode="broadcast")[1] for index in (0, 1)] == [0, 0]


def test_another_size_has_the_end_that_all_places_have_reached(flights: Site) -> None:
    numbers = [finished_writer(flights), finished_writer(flights)]
    for index in (1, 0):
        member, _ = place(flights, index, 2)
        flights.detach(member, finished_through=numbers[index])
    assert place(flights, 2, 3)[1] == numbers[0]
    generation = flights.resize(4, 2).json()["generation"]
    assert generation == 3
    assert place(flights, 3, 4)[1] == numbers[0]


def test_the_last_member_of_a_dynamic_group_stores_its_end(flights: Site) -> None:
    number = finished_writer(flights)
    first, second = flights.join(), flights.join()
    generation = flights.sync(first).json()["generation"]
    for member in (first, second):
        assert flights.sync(member, take=generation).json()["taken"]
    flights.detach(first, finished_through=number)
    joined = flights.post_attach(group="d", dynamic=True).json()
    assert joined["finished_through"] == 0, "the second one is reading"
    flights.detach(joined["endpoint"], "error")
    flights.detach(second, finished_through=number)
    assert flights.post_attach(group="d", dynamic=True).json()["finished_through"] == 0, (
        "nobody has taken over the partitions of the failed one"
    )


def test_members_that_leave_a_dynamic_group_one_after_the_other_reach_its_end(
    flights: Site,
) -> None:
    number = finished_writer(flights)
    failed, first, second = (flights.join() for _ in range(3))
    flights.detach(failed, "error")
    generation = flights.sync(first).json()["generation"]
    for member in (first, second):
        assert flights.sync(member, take=generation).json()["taken"]
    flights.detach(first, finished_through=number)
    flights.detach(second, finished_through=number)
    assert flights.post_attach(group="d", dynamic=True).json()["finished_through"] == number
    assert flights.post_attach(group="d", index=0, size=2).status_code == 409


def test_a_reset_moves_the_end_of_an_open_dynamic_member_back(flights: Site) -> None:
    number = finished_writer(flights)
    member = flights.join()
    generation = flights.sync(member).json()["generation"]
    assert flights.sync(member, take=generation).json()["taken"]
    assert flights.reset(group="d", force=True).status_code == 200
    flights.detach(member, finished_through=number)
    again = flights.post_attach(group="d", dynamic=True).json()
    assert again["finished_through"] == 0
    # Once it has taken its share again, it has read what the reset gave it.
    generation = flights.sync(again["endpoint"]).json()["generation"]
    assert flights.sync(again["endpoint"], take=generation).json()["taken"]
    flights.detach(again["endpoint"], finished_through=number)
    assert flights.post_attach(group="d", dynamic=True).json()["finished_through"] == number
