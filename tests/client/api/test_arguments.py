"""Whole numbers as arguments: also those of NumPy, as they come out of data."""

from typing import Any

import numpy as np
import pytest

from sluiceway import Position
from sluiceway.api.arguments import whole_number
from sluiceway.api.groups import membership
from sluiceway.api.models import ChannelSpec
from sluiceway.api.parsing import to_json
from sluiceway.errors import OptionError
from sluiceway.kafka.partitioner import partitioning
from sluiceway.offsets import chosen_partitions
from sluiceway.schema import Schema

NUMBER = Schema.parse({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3)])
def test_a_whole_number_of_any_type_is_an_int(value: Any) -> None:
    assert type(whole_number(value)) is int


@pytest.mark.parametrize("value", [True, np.True_, 3.0, np.float64(3), "3", None, -1, 9])
def test_other_values_and_numbers_out_of_range_are_none(value: Any) -> None:
    assert whole_number(value, 0, 9) is None


def test_numpys_numbers_are_arguments() -> None:
    two = np.int64(2)
    position = Position(offset=two, records=np.int32(1))
    assert (type(position.offset), type(position.records)) == (int, int)
    assert str(membership("g", np.int64(1), two)) == "g[1 of 2]"
    assert to_json(ChannelSpec(partitions=two, replication=np.int8(1))) == {
        "partitions": 2,
        "replication": 1,
    }
    assert chosen_partitions(np.arange(2), 4) == (0, 1)
    fixed = partitioning(
        NUMBER, 4, key=None, partitioner=None, partition=two, key_partitioner="murmur2"
    )
    assert fixed.next_partitions(2).tolist() == [2, 2]


@pytest.mark.parametrize("partitions", [[0, 4], "01", 1, [0.0], [True]])
def test_what_are_no_partitions_is_refused(partitions: Any) -> None:
    with pytest.raises(OptionError, match="partitions"):
        chosen_partitions(partitions, 4)
