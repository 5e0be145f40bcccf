"""Reads the channel `readings` with two readers; the second continues at the first one's position.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/read_readings.py
"""

from collections import Counter

from sluiceway import Gateway


def main() -> None:
    seen: Counter[str] = Counter()
    with Gateway() as gateway:
        channel = gateway.channel("readings")
        with channel.reader(until="now") as reader:
            seen.update(record["station"] for record in reader.read(100, timeout=10))
            # Store this with the results; it is exact to the record.
            position = reader.position()
        with channel.reader(until="now", start=position) as reader:
            for record in reader:
                seen[record["station"]] += 1
    for station, count in sorted(seen.items()):
        print(station, count)
    print(f"{seen.total()} readings read")


if __name__ == "__main__":
    main()
