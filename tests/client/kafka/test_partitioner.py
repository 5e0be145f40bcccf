"""Partitioner: the partition of each record."""

import ctypes
import itertools
import random
from collections import Counter
from typing import Any

import confluent_kafka.cimpl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.errors import IncompatibleGateway, OptionError
from sluiceway.kafka.partitioner import (
    PARTITIONERS,
    murmur2,
    partition_of,
    partitioning,
    partitions_of,
)
from sluiceway.records import to_batches
from sluiceway.schema import Schema

SCHEMA = Schema.parse(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "small", "type": "int"},
            {"name": "text", "type": ["null", "string"]},
            {"name": "raw", "type": "bytes"},
            {"name": "share", "type": "double"},
        ],
    }
)


def batch(*texts: str | None) -> pa.RecordBatch:
    records = [
        {"id": i, "small": -i, "text": text, "raw": b"\0" * i, "share": 0.5}
        for i, text in enumerate(texts)
    ]
    return to_batches(records, SCHEMA)[0]


def place(**wishes: Any) -> Any:
    defaults = {
        "key": None,
        "partitioner": None,
        "partition": None,
        "key_partitioner": "murmur2",
    }
    return partitioning(SCHEMA, 4, **{**defaults, **wishes})


def of_librdkafka(partitioner: str, key: bytes, partitions: int) -> int:
    """Return the partition of a key that librdkafka's own function chooses."""
    library = ctypes.CDLL(confluent_kafka.cimpl.__file__)
    choose = getattr(library, f"rd_kafka_msg_partitioner_{partitioner}")
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32
    choose.argtypes = [pointer, ctypes.c_char_p, size, number, pointer, pointer]
    choose.restype = number
    chosen: int = choose(None, key, len(key), partitions, None, None)
    return chosen


@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafkas_java_client(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed % 2**32


@given(
    partitioner=st.sampled_from(sorted(PARTITIONERS)),
    short=st.lists(st.none() | st.binary(max_size=9), max_size=20),
    size=st.integers(0, 40),
    seed=st.integers(0, 2**32),
    partitions=st.integers(1, 1000),
)
def test_keys_get_the_partitions_that_librdkafka_chooses(
    partitioner: str, short: list[bytes | None], size: int, seed: int, partitions: int
) -> None:
    # Enough keys of one length to be hashed together, among keys of other lengths.
    lot = random.Random(seed)  # noqa: S311
    keys = [*short, *(lot.randbytes(size) for _ in range(40)), *short]
    chosen = partitions_of(keys, partitions, partitioner)
    for key, partition in zip(keys, chosen, strict=True):
        if key is None or (not key and partitioner == "consistent_random"):
            # librdkafka chooses a random one.
            assert partition is None
        else:
            assert partition == of_librdkafka(partitioner, key, partitions)
            assert partition == partition_of(key, partitions, partitioner)


@pytest.mark.parametrize("key", ["text", lambda record: record["text"]])
def test_a_writer_obeys_the_partitioner_of_its_channel(key: Any) -> None:
    places = place(key=key, key_partitioner="consistent_random").assign(batch("a", None, ""), 0)
    assert places.partitions == [of_librdkafka("consistent", b"a", 4), None, None]


def test_a_partitioner_of_a_later_version_is_refused() -> None:
    with pytest.raises(IncompatibleGateway, match="'blake3', which this version does not have"):
        place(key="text", key_partitioner="blake3").assign(batch("a"), 0)


def test_keys_beyond_one_hash_batch_keep_their_partitions() -> None:
    keys = [b"%07d" % number for number in range(20_000)]
    assert partitions_of(keys, 7) == [partition_of(key, 7) for key in keys]


def first_of(_: int) -> int:
    """Return the partition with which a new round robin begins."""
    return int(place().next_partitions(1)[0])


def test_round_robin_covers_all_partitions_from_a_random_start() -> None:
    turns = [*map(first_of, range(200))]
    assert set(turns) == {0, 1, 2, 3}
    chosen = place()
    twice = [*chosen.next_partitions(3).tolist(), *chosen.next_partitions(5).tolist()]
    assert Counter(twice) == dict.fromkeys(range(4), 2)
    assert [(b - a) % 4 for a, b in itertools.pairwise(twice)] == [1] * 7


def test_round_robin_starts_at_the_given_partition() -> None:
    chosen = place()
    for first in range(4):
        chosen.start_round_robin_at(first)
        assert chosen.next_partitions(5).tolist() == [(first + n) % 4 for n in range(5)]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("id", [b"\0" * 8, b"\0" * 7 + b"\x01"]),
        ("small", [b"\0" * 4, b"\xff" * 4]),
        ("text", [b"a", None]),
        ("raw", [b"", b"\0"]),
    ],
)
def test_a_key_field_becomes_what_javas_serializers_make(
    field: str, expected: list[bytes | None]
) -> None:
    assert place(key=field).assign(batch("a", None), 0).keys == expected


def test_a_key_function_gives_str_bytes_int_or_none() -> None:
    raw_keys: list[Any] = ["ä", b"\1", -1, None]
    keys = place(key=lambda record: raw_keys[record["id"]]).assign(batch(*"abcd"), 0).keys
    assert keys == ["ä".encode(), b"\1", b"\xff" * 8, None]


def test_a_key_selects_among_the_known_partitions() -> None:
    places = place(key="text").assign(batch("a", None, "b"), 0)
    assert places.partitions == [partition_of(b"a", 4), None, partition_of(b"b", 4)]


def test_grouping_keeps_partition_order_and_record_numbers() -> None:
    names = ["a", "b", None, "a", "b", "c"]
    groups = place(key="text").split(batch(*names), 10)
    seen = {}
    for target, rows, numbers in groups:
        texts = rows.column("text").to_pylist()
        assert [names[number - 10] for number in numbers] == texts
        assert list(numbers) == sorted(numbers)
        assert {None if t is None else partition_of(t.encode(), 4) for t in texts} == {target}
        seen[target] = texts
    assert sum(map(len, seen.values())) == len(names)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"key": "nmae"}, "key is 'nmae'; the channel has the fields id, small"),
        ({"key": "share"}, "a field of type double"),
        ({"key": 7}, "key is 7"),
        ({"partitioner": "hash"}, "partitioner is 'hash'"),
        ({"partition": 4}, "partition is 4; the channel has the partitions 0 to 3"),
        ({"partition": -1}, "partition is -1"),
        ({"partition": True}, "partition is True"),
        ({"key": "id", "partition": 1}, "key and partition exclude each other"),
    ],
)
def test_invalid_partitioning_options_are_refused(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        place(**wishes)


@pytest.mark.parametrize("partition", [4, -1, 1.0, "1", None, True])
def test_an_invalid_partition_names_the_record(partition: Any) -> None:
    with pytest.raises(OptionError, match=r"for record 12; it must return a partition from 0 to 3"):
        place(partitioner=lambda record, _: partition if record["id"] == 2 else 0).assign(
            batch(*"abc"), 10
        )


@pytest.mark.parametrize("key", [1.5, 2**63, ["a"], True])
def test_an_invalid_key_names_the_record(key: Any) -> None:
    with pytest.raises(OptionError, match="for record 1;"):
        place(key=lambda record: key if record["id"] == 1 else None).assign(batch("a", "b"), 0)


def test_the_random_start_ignores_the_jobs_seed() -> None:
    random.seed(7)
    before = random.getstate()
    assert {*map(first_of, range(200))} == {0, 1, 2, 3}
    assert random.getstate() == before
