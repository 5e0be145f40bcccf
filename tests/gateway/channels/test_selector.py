import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.channels.labels import Requirement, Selector, check_labels


@pytest.mark.parametrize(
    ("text", "operator", "values"),
    [
        ("k=v", "in", ("v",)),
        ("k==v", "in", ("v",)),
        ("k = v", "in", ("v",)),
        ("k=", "in", ("",)),
        ("k!=v", "notin", ("v",)),
        ("k", "exists", ()),
        ("!k", "absent", ()),
        ("k in (x,y)", "in", ("x", "y")),
        ("k  notin ( x , y )", "notin", ("x", "y")),
    ],
)
def test_each_form_of_requirement_is_parsed(
    text: str, operator: str, values: tuple[str, ...]
) -> None:
    expected = Requirement(key="k", operator=operator, values=values)  # type: ignore[arg-type]
    assert Selector.parse(text).requirements == (expected,)


def test_parts_are_joined_by_commas_outside_of_sets() -> None:
    selector = Selector.parse("a=b,c!=d, e,!f ,g in (x,y),h notin (z)")
    assert [requirement.key for requirement in selector.requirements] == list("acefgh")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "a,",
        "a=b=c",
        "a in",
        "a in x",
        "a in (x",
        "a b",
        "!",
        "=v",
        "a=b c",
        "a<b",
        "a=\0",
        ",".join("abcdefgh" * 5),
        f"a in ({','.join('x' * 65)})",
    ],
)
def test_an_invalid_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"selector|label"):
        Selector.parse(text)


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        Selector.parse(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a=1", True),
        ("a=2", False),
        ("a!=1", False),
        ("b!=1", True),
        ("b notin (1)", True),
        ("a", True),
        ("b", False),
        ("!b", True),
        ("a in (1,2),!b", True),
        ("a,b", False),
    ],
)
def test_requirements_match_as_in_kubernetes(text: str, holds: bool) -> None:
    assert Selector.parse(text).holds({"a": "1"}) is holds


@pytest.mark.parametrize(
    "labels",
    [
        {"": "v"},
        {"a b": "v"},
        {"-a": "v"},
        {"a" * 64: "v"},
        {"UP.case/a": "v"},
        {"a": "v" * 64},
        {"a": "v\0"},
        {"a": "é"},
        {str(n): "" for n in range(65)},
    ],
)
def test_labels_that_break_a_rule_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="label"):
        check_labels(labels)


def test_valid_labels_are_accepted() -> None:
    labels = {"a": "", "example.com/Team_1": "x-Y.z", "b" * 63: "v" * 63}
    assert check_labels(labels) == labels
