"""Comparison of sides: alternating turns, several rounds, medians, one file of results.

A side is a function that does its work and returns the number of records and the time. In each
round every side has its turn, in a separate process, so that no side profits from another's caches,
and other load affects all sides. Every second round runs in reverse order.

A ratio is the median of the rounds' ratios, because adjacent turns have similar load. A ratio of
medians might compare a quiet with a busy time of the machine.
"""

import json
import multiprocessing
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("confluent-kafka", "fastavro", "pyarrow", "pyruhvro", "pyspark")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Result of one turn of a side."""

    records: int
    seconds: float
    cpu_seconds: float | None = None
    """CPU time of the side's process, if measured; depends less on other load than wall time."""

    @property
    def records_per_s(self) -> float:
        """Records per second."""
        return self.records / self.seconds


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Ratio of one side's speed to another's, with an optional goal.

    Without another side it is the speed itself. `at_most`: the goal is a maximum.
    """

    side: str
    to: str | None
    goal: float | None
    at_most: bool = False

    def met(self, reached: float) -> bool:
        """Whether the goal is reached; True without a goal."""
        if self.goal is None:
            return True
        return reached <= self.goal if self.at_most else reached >= self.goal

    def of(self, measured: Mapping[str, Sequence[Measured]]) -> float:
        """Return the median of the rounds' ratios."""
        ours = measured[self.side]
        theirs: Sequence[Measured | None] = [None] * len(ours)
        if self.to is not None:
            theirs = measured[self.to]
        return statistics.median(
            each.records_per_s / (1 if other is None else other.records_per_s)
            for each, other in zip(ours, theirs, strict=True)
        )

    def of_cpu(self, measured: Mapping[str, Sequence[Measured]]) -> float | None:
        """Return the median ratio of the other side's CPU time to this one's, if measured."""
        found = [
            other.cpu_seconds / each.cpu_seconds
            for each, other in zip(measured[self.side], measured[self.to or self.side], strict=True)
            if each.cpu_seconds and other.cpu_seconds
        ]
        return statistics.median(found) if found and self.to is not None else None


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A separate figure, such as a latency, with its limit."""

    value: float
    at_most: float


Side = Callable[[], Measured]


def in_own_process(function: Callable[..., Measured], *arguments: Any) -> Side:
    """Return a side that runs a module's function in a new process."""

    def side() -> Measured:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(function, arguments)

    return side


def measure(sides: Mapping[str, Side], *, rounds: int = 3) -> dict[str, list[Measured]]:
    """Run every side once per round, in alternating order."""
    measured: dict[str, list[Measured]] = {name: [] for name in sides}
    with Progress(transient=True) as progress:
        task = progress.add_task("", total=rounds * len(sides))
        for number in range(1, rounds + 1):
            for name, side in list(sides.items())[:: 1 if number % 2 else -1]:
                progress.update(task, description=f"round {number} of {rounds}: {name}")
                measured[name].append(side())
                progress.advance(task)
    return measured


def report(
    name: str | None,
    measured: Mapping[str, Sequence[Measured]],
    ratios: Mapping[str, Ratio],
    *,
    title: str,
    settings: Mapping[str, Any],
    unit: str = "records",
    others: Mapping[str, Reached] | None = None,
) -> dict[str, float]:
    """Print the figures, write `results/NAME.json` if there is a name, and return the ratios.

    `unit` names the counted items; `others` are additional figures.
    """
    medians = {
        side: statistics.median(each.records_per_s for each in turns)
        for side, turns in measured.items()
    }
    reached = {key: ratio.of(measured) for key, ratio in ratios.items()}
    found = {key: ratio.of_cpu(measured) for key, ratio in ratios.items()}
    of_cpu = {key: value for key, value in found.items() if value is not None}
    goals = {
        key: Ratio(side=key, to=None, goal=found.at_most, at_most=True)
        for key, found in (others or {}).items()
    }
    ratios = {**ratios, **goals}
    reached |= {key: found.value for key, found in (others or {}).items()}
    console = Console()
    console.print(_figures(title, measured, medians, unit))
    if ratios:
        console.print(_ratios(ratios, reached, of_cpu))
    if name is None:
        return reached
    result = {
        "name": name,
        "ratios": {key: round(value, 3) for key, value in reached.items()},
        "cpu_ratios": {key: round(value, 3) for key, value in of_cpu.items()},
        "goals": {key: ratio.goal for key, ratio in ratios.items() if ratio.goal is not None},
        "at_most": [key for key, ratio in ratios.items() if ratio.at_most],
        "figures": {
            side: {
                f"{unit}_per_s": round(medians[side]),
                unit: turns[0].records,
                "seconds": [round(each.seconds, 3) for each in turns],
                "cpu_seconds": [
                    round(each.cpu_seconds, 3) for each in turns if each.cpu_seconds is not None
                ],
            }
            for side, turns in measured.items()
        },
        "settings": dict(settings),
        "machine": machine(),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"Written to {path.relative_to(RESULTS.parent.parent)}")
    return reached


def machine() -> dict[str, Any]:
    """Return a description of the machine."""
    return {
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {package: version(package) for package in _PACKAGES},
    }


def _figures(
    title: str,
    measured: Mapping[str, Sequence[Measured]],
    medians: Mapping[str, float],
    unit: str,
) -> Table:
    table = Table("side", title=title)
    for heading in (f"{unit}/s", "slowest", "fastest", "seconds"):
        table.add_column(heading, justify="right")
    for side, turns in measured.items():
        speeds = [each.records_per_s for each in turns]
        seconds = statistics.median(each.seconds for each in turns)
        figures = (medians[side], min(speeds), max(speeds))
        table.add_row(side, *(f"{figure:,.0f}" for figure in figures), f"{seconds:.2f}")
    return table


def _ratios(
    ratios: Mapping[str, Ratio], reached: Mapping[str, float], of_cpu: Mapping[str, float]
) -> Table:
    table = Table("ratio")
    for heading in ("measured", "by CPU time", "goal"):
        table.add_column(heading, justify="right")
    for key, ratio in ratios.items():
        value, cpu = f"{reached[key]:.2f}", f"{of_cpu[key]:.2f}" if key in of_cpu else ""
        if ratio.goal is None:
            table.add_row(key, value, cpu, "")
            continue
        style = "green" if ratio.met(reached[key]) else "red"
        goal = f"{'at most ' if ratio.at_most else ''}{ratio.goal:g}"
        table.add_row(key, f"[{style}]{value}[/]", cpu, goal)
    return table
