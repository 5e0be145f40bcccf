import pytest

from sluiceway_gateway.core.auth.model import Action, Principal, Scope, ScopeKind, parse_scopes
from sluiceway_gateway.core.errors import Forbidden


def holder(*scopes: str) -> Principal:
    return Principal(id="t", scopes=parse_scopes(scopes))


@pytest.mark.parametrize("text", ["read", "write:team-", "manage:a.B", "read:_", "admin"])
def test_a_scope_round_trips_through_its_text(text: str) -> None:
    assert str(Scope.parse(text)) == text


@pytest.mark.parametrize("text", ["", "reed", "read:", "read:ä", "admin:x", "READ", "read: x"])
def test_an_invalid_scope_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"scope|begin"):
        Scope.parse(text)


def test_an_empty_list_of_scopes_is_refused() -> None:
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


def test_every_kind_of_scope_has_a_description() -> None:
    assert all(holder(str(kind)).may(Action.VIEW, "x") for kind in ScopeKind)


def test_a_prefix_limits_the_channels() -> None:
    principal = holder("write:team-")
    assert principal.may(Action.WRITE, "team-a")
    assert not principal.may(Action.WRITE, "tea")
    assert not principal.may(Action.WRITE)
    with pytest.raises(Forbidden, match="'other'"):
        principal.require(Action.WRITE, "other")


def test_prefixes_cover_all_visible_channels() -> None:
    assert holder("read:b", "write:a").prefixes(Action.VIEW) == ("a", "b")
    assert holder("read:b", "write:a").prefixes(Action.READ) == ("b",)
    assert holder("read:b", "manage").prefixes(Action.VIEW) == ("",)
    assert holder("read:b").prefixes(Action.ADMIN) == ()
