import pytest

from sluiceway_gateway.auth.model import Action, Kind, Principal, Scope, parse_scopes
from sluiceway_gateway.errors import Forbidden


def holder(*scopes: str) -> Principal:
    return Principal(id="t", scopes=parse_scopes(scopes))


@pytest.mark.parametrize("text", ["read", "write:team-", "manage:a.b", "admin"])
def test_a_scope_is_read_and_written_the_same(text: str) -> None:
    assert str(Scope.parse(text)) == text


@pytest.mark.parametrize("text", ["", "reed", "read:", "read:A", "admin:x", "READ", "read: x"])
def test_a_wrong_scope_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"scope|begin"):
        Scope.parse(text)


def test_no_scope_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        parse_scopes([])


@pytest.mark.parametrize(
    ("kind", "actions"),
    [
        ("read", {Action.VIEW, Action.READ}),
        ("write", {Action.VIEW, Action.WRITE}),
        ("manage", {Action.VIEW, Action.READ, Action.WRITE, Action.MANAGE}),
        ("admin", set(Action)),
    ],
)
def test_each_scope_gives_its_actions_and_no_others(kind: str, actions: set[Action]) -> None:
    assert {action for action in Action if holder(kind).may(action, "flights")} == actions


def test_every_kind_says_what_it_gives() -> None:
    assert all(holder(str(kind)).may(Action.VIEW, "x") for kind in Kind)


def test_a_prefix_bounds_the_channels() -> None:
    principal = holder("write:team-")
    assert principal.may(Action.WRITE, "team-a")
    assert not principal.may(Action.WRITE, "tea")
    assert not principal.may(Action.WRITE)
    with pytest.raises(Forbidden, match="'other'"):
        principal.require(Action.WRITE, "other")


def test_prefixes_name_all_that_may_be_seen() -> None:
    assert holder("read:b", "write:a").prefixes(Action.VIEW) == ("a", "b")
    assert holder("read:b", "write:a").prefixes(Action.READ) == ("b",)
    assert holder("read:b", "manage").prefixes(Action.VIEW) == ("",)
    assert holder("read:b").prefixes(Action.ADMIN) == ()
