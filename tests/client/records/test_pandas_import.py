"""Threads whose first records are converted while pandas is being imported."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from sluiceway.records import to_batches
from sluiceway.schema import Schema

schema = Schema.parse(
    '{"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "long"]}]}'
)
assert "pandas" not in sys.modules
together = threading.Barrier(16)
failures = []

def convert(number):
    together.wait()
    try:
        for _ in range(200):
            (batch,) = to_batches([{"x": number}, {"x": None}], schema)
            assert batch.column(0).to_pylist() == [number, None]
    except BaseException as error:
        failures.append(repr(error))

threads = [threading.Thread(target=convert, args=(number,)) for number in range(15)]
for each in threads:
    each.start()
together.wait()
import pandas
for each in threads:
    each.join()
assert not failures, failures[0]

class Derived(pandas.DataFrame):
    pass

for kind in (pandas.DataFrame, Derived):
    (batch,) = to_batches(kind({"x": [1.0, None]}), schema)
    assert batch.column(0).to_pylist() == [1, None]
"""


@pytest.mark.long
def test_threads_convert_their_first_records_while_another_imports_pandas() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
