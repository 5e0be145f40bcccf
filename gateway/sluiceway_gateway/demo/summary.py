"""What the demo found, and whether it agrees."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ChannelCount:
    """What went into a channel and what came out; checksums are decimal and order-free."""

    format: str
    partitions: int
    rows_written: int
    rows_read: int
    checksum_in: str
    checksum_out: str

    @property
    def agrees(self) -> bool:
        """Whether what came out is what went in."""
        return (self.rows_written, self.checksum_in) == (self.rows_read, self.checksum_out)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The whole demo. `csv_bytes` is the size of the flights as text, the measure of MB/s."""

    expected_rows: int
    flights: ChannelCount
    delays: ChannelCount
    csv_bytes: int
    write_seconds: float
    read_seconds: float
    seconds: float
    records: Sequence[Mapping[str, Any]]

    @property
    def agrees(self) -> bool:
        """Whether every count and checksum agrees."""
        complete = self.flights.rows_written == self.expected_rows
        return complete and self.flights.agrees and self.delays.agrees

    @property
    def write_mb_per_second(self) -> float:
        """Megabytes (10^6, as CSV) a second that Spark parsed, summed up and wrote."""
        return self.csv_bytes / 1e6 / self.write_seconds

    @property
    def read_mb_per_second(self) -> float:
        """Megabytes (10^6, as CSV) a second that Spark read, summed up and grouped."""
        return self.csv_bytes / 1e6 / self.read_seconds

    def to_json(self) -> str:
        """Return the summary as one line of JSON."""
        return json.dumps(
            {
                "rows_written": self.flights.rows_written,
                "rows_read": self.flights.rows_read,
                "checksum_in": self.flights.checksum_in,
                "checksum_out": self.flights.checksum_out,
                "channels": {"flights": asdict(self.flights), "delays": asdict(self.delays)},
                "seconds": round(self.seconds, 3),
                "write_mb_per_second": round(self.write_mb_per_second, 3),
                "read_mb_per_second": round(self.read_mb_per_second, 3),
                "agrees": self.agrees,
            }
        )
