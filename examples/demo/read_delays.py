"""Read the channel `delays` in plain Python.

SLUICEWAY_URL=http://127.0.0.1:8900 python read_delays.py
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from sluiceway import Gateway


def main() -> None:
    """Read all records, and print them with their count and the sum of their hashes."""
    print("Reading the mean delays", flush=True)
    with Gateway() as gateway, gateway.channel("delays").reader(until="now") as reader:
        records = list(reader)
    checksum = str(sum(map(delay_hash, records)))
    print(json.dumps({"rows": len(records), "checksum": checksum, "records": records}))


def delay_hash(record: Mapping[str, Any]) -> int:
    """Return a record's hash, which `checksums.py` computes with Spark."""
    mean = record["mean_delay_minutes"]
    values = [record[name] for name in ("carrier", "hour", "flights", "departed")]
    values.append("" if mean is None else math.floor(mean * 1e6))
    digest = hashlib.sha256("|".join(map(str, values)).encode()).hexdigest()
    return int(digest[:15], 16)


if __name__ == "__main__":
    main()
