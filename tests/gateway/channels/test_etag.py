from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sluiceway_gateway.channels.change import created, etag
from sluiceway_gateway.channels.model import Spec
from sluiceway_gateway.core.errors import PreconditionFailed
from sluiceway_gateway.core.preconditions import Precondition
from sluiceway_gateway.schemas.model import SchemaVersion

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SCHEMA = SchemaVersion(id=7, version=1, fingerprint="f1", definition="s1", created_at=NOW)
CREATED = created(Spec(), name="flights", uid="0" * 32, schema=SCHEMA, prefix="p.", now=NOW)
CHANNEL = replace(CREATED, generation=2, revision=5)


def test_a_tag_names_uid_generation_and_revision() -> None:
    assert etag(CHANNEL) == '"00000000.2.5"'


@pytest.mark.parametrize(
    ("header", "holds"),
    [
        ("*", True),
        ('"00000000.2.5"', True),
        ('"00000000.2.9"', True),
        ('"x", "00000000.2.1"', True),
        ('"00000000.1.5"', False),
        ('"11111111.2.5"', False),
        ('W/"00000000.2.5"', False),
        ("00000000.2.5", False),
        ("", False),
    ],
)
def test_if_match_compares_incarnation_and_generation(header: str, holds: bool) -> None:
    precondition = Precondition.of(if_match=header, if_none_match=None)
    if holds:
        precondition.check(etag(CHANNEL))
    else:
        with pytest.raises(PreconditionFailed):
            precondition.check(etag(CHANNEL))
    with pytest.raises(PreconditionFailed, match="does not exist"):
        precondition.check(None)


@pytest.mark.parametrize(
    ("header", "same"),
    [
        ("*", True),
        ('"00000000.2.5"', True),
        ('W/"00000000.2.5"', True),
        ('"00000000.2.4"', False),
        ("x", False),
    ],
)
def test_if_none_match_compares_the_whole_tag(header: str, same: bool) -> None:
    precondition = Precondition.of(if_match=None, if_none_match=header)
    assert precondition.names(etag(CHANNEL)) is same
    precondition.check(None)
