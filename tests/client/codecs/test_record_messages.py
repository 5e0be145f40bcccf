"""Messages of one record each, whose records take more than an Arrow array of 2 GiB."""

import pyarrow as pa
import pytest

from sluiceway.codecs.record_messages import RecordMessages

LIMIT = 100
"""The bytes that an array has here; no test has the memory for one of 2 GiB."""


class Repeat:
    """A strict decoder of texts that are as long as the message says, like the symbols of enums."""

    def read(self, value):
        return {"x": "a" * int(value)}


def to_batch(rows):
    if sum(len(row["x"]) for row in rows) > LIMIT:
        raise pa.ArrowInvalid("Take operation overflowed binary array capacity")
    return pa.RecordBatch.from_pylist(rows)


def in_columns(values):
    return to_batch([Repeat().read(value or b"0") for value in values]), [
        index for index, value in enumerate(values) if value is None
    ]


@pytest.mark.parametrize("together", [None, in_columns])
@pytest.mark.parametrize("few", [0, 3])
def test_records_that_fit_into_no_common_array_are_read_in_several_batches(together, few):
    values = [b"60", None, b"101", b"40", b"70", None, b"30"] * 10
    messages = RecordMessages(strict=Repeat(), to_batch=to_batch, together=together, few=few)
    decoded = messages.decode(values)
    lengths = [len(text) for batch in decoded.batches for text in batch["x"].to_pylist()]
    assert lengths == [60, 40, 70, 30] * 10
    assert [corrupt.index for corrupt in decoded.corrupt] == [
        index for index, value in enumerate(values) if value in (None, b"101")
    ]
    assert "does not fit into Arrow's arrays of 2 GiB" in decoded.corrupt[1].reason
