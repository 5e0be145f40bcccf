import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.core.names import check_name


@pytest.mark.parametrize("name", ["a", "0", "Flights", "a.B_c-d", "x" * 240, "-a", "_", "..."])
def test_a_valid_name_is_accepted(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "empty"),
        ("x" * 241, "at most 240"),
        (".", "not '.'"),
        ("..", "not '.'"),
        ("a b", "a-z"),
        ("a/b", "a-z"),
        ("a\n", "a-z"),
        ("a\0", "a-z"),
        ("ä", "a-z"),
        ("sluiceway.x", "reserved"),
    ],
)
def test_an_invalid_name_is_refused_with_its_rule(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_name(name)


@given(st.text(max_size=250))
def test_accepted_names_have_only_characters_allowed_by_kafka(name: str) -> None:
    try:
        check_name(name)
    except ValueError:
        return
    assert set(name) <= {*string.ascii_letters, *string.digits, *"._-"}
    assert 0 < len(name) <= 240
