import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.channels.topic_config import ALLOWED, canonical, refusals
from sluiceway_gateway.provisioning.topic import topic_overrides

GOOD = {
    "cleanup.policy": ("delete, compact", "compact,delete"),
    "compression.type": ("zstd", "zstd"),
    "delete.retention.ms": ("0060000", "60000"),
    "max.compaction.lag.ms": ("1", "1"),
    "max.message.bytes": (" 2097152", "2097152"),
    "message.timestamp.after.max.ms": ("3600000", "3600000"),
    "message.timestamp.before.max.ms": ("9223372036854775807", "9223372036854775807"),
    "message.timestamp.type": ("LogAppendTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": ("0.50", "0.5"),
    "min.compaction.lag.ms": ("0", "0"),
    "min.insync.replicas": ("1", "1"),
    "segment.bytes": ("1048576", "1048576"),
    "segment.ms": ("1000", "1000"),
}


def test_every_allowed_setting_has_one_canonical_form() -> None:
    assert GOOD.keys() == ALLOWED.keys()
    config = {name: value_ for name, (value_, _) in GOOD.items()}
    assert refusals(config) == ()
    assert canonical(config) == {name: value for name, (_, value) in GOOD.items()}
    assert canonical(canonical(config)) == canonical(config)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("retention.ms", "1", "set spec.retention.ms instead"),
        ("retention.bytes", "1", "set spec.retention.bytes instead"),
        ("unclean.leader.election.enable", "true", "lose acknowledged records"),
        ("max.mesage.bytes", "1", "did you mean max.message.bytes?"),
        ("plugin.library.paths", "x.so", "allowed are"),
        ("", "", "allowed are"),
        ("max.message.bytes", "1e6", "whole number from 1024"),
        ("max.message.bytes", "-1", "whole number from 1024"),
        ("max.message.bytes", "", "whole number"),
        ("segment.ms", "9" * 5000, "whole number"),
        ("segment.ms", "１０００", "whole number"),
        ("segment.ms", "1_000", "whole number"),
        ("min.insync.replicas", "0", "whole number from 1"),
        ("min.cleanable.dirty.ratio", "nan", "number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "1.5", "number from 0 to 1"),
        ("cleanup.policy", "", "expected delete, compact"),
        ("cleanup.policy", "shred", "expected delete, compact"),
        ("compression.type", "brotli", "expected one of"),
        ("message.timestamp.type", "createtime", "expected one of"),
    ],
)
def test_an_invalid_topic_setting_is_refused_by_name_with_a_reason(
    name: str, value: str, words: str
) -> None:
    (refusal,) = refusals({name: value})
    assert refusal.name == name
    assert words in refusal.message


def test_all_refusals_are_reported_at_once() -> None:
    refused = refusals({"segment.ms": "x", "retention.ms": "1", "compression.type": "lz4"})
    assert [refusal.name for refusal in refused] == ["retention.ms", "segment.ms"]


@given(st.dictionaries(st.sampled_from([*ALLOWED, "other"]), st.text(max_size=30)))
def test_accepted_values_have_a_canonical_form(config: dict[str, str]) -> None:
    if not refusals(config):
        assert canonical(canonical(config)) == canonical(config)


def test_a_channels_retention_is_part_of_its_topics_overrides() -> None:
    assert topic_overrides({"segment.ms": "7"}, retention_ms=-1, retention_bytes=None) == {
        "segment.ms": "7",
        "retention.ms": "-1",
    }
