"""The third job: a plain Python program that reads `delays`, without Spark.

python -m sluiceway_gateway.demo.read_delays
"""

from sluiceway import Gateway
from sluiceway_gateway.demo import delays
from sluiceway_gateway.demo.events import Events


def main() -> None:
    """Read every record, and tell how many there were, what they sum up to and what they say."""
    events = Events()
    events.step("Reading the mean delays")
    with Gateway() as gateway, gateway.channel(delays.CHANNEL).reader(until="now") as reader:
        records = list(reader)
    events.progress(len(records), len(records))
    events.result(
        {
            "rows": len(records),
            "checksum": str(sum(map(delays.checksum, records))),
            "records": records,
        }
    )


if __name__ == "__main__":
    main()
