"""Command of the model: `python -m tests.model`, or `make model`.

Runs schedules of consecutive seeds and reports how many records were lost or duplicated, how many
schedules did not end, and how often `stable` went back. It fails if any did. `--seed` runs one
schedule and prints its trace; `--mutants` shows at which seed the model notices each mutant.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from typing import Any

from tests.model.mutants import MUTANTS, noticed_at
from tests.model.schedule import Outcome, outcomes_of, run_schedule

KINDS = {
    "lost": "lost",
    "duplicated": "duplicated",
    "stuck": "stuck",
    "stable back": "stable_back",
    "fenced": "not_fenced",
}
"""Kinds of violations, with their keys in the report."""


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return the report on a list of outcomes."""
    faults: Counter[str] = Counter()
    for outcome in outcomes:
        faults.update(outcome.faults)
    violations = Counter(outcome.violation for outcome in outcomes if outcome.violation is not None)
    return {
        "schedules": len(outcomes),
        **{name: violations[kind] for kind, name in KINDS.items()},
        "ended_batches": sum(outcome.ended_batches for outcome in outcomes),
        "faults": faults.total(),
        "faults_by_kind": dict(sorted(faults.items())),
        "violations": [
            {"seed": outcome.seed, "text": outcome.text}
            for outcome in outcomes
            if outcome.violation
        ][:20],
    }


def _pool(processes: int) -> ProcessPoolExecutor:
    """Return a pool of spawned processes; forking a process with threads may crash."""
    return ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))


def _print_mutants(schedules: int, processes: int) -> int:
    survivors = 0
    with _pool(processes) as pool:
        outcomes = pool.map(partial(noticed_at, schedules=schedules), range(len(MUTANTS)))
        for mutant, outcome in zip(MUTANTS, outcomes, strict=True):
            survivors += outcome is None
            result = "SURVIVED" if outcome is None else f"seed {outcome.seed}, {outcome.text}"
            sys.stdout.write(f"{mutant.name}: {result}\n")
    sys.stdout.write(f"{len(MUTANTS)} mutants, {survivors} survived\n")
    return survivors


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, by default with the arguments of the process; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="run only this seed, and print its trace")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    if options.seed is not None:
        outcome = run_schedule(options.seed)
        sys.stdout.write("\n".join((*outcome.trace, outcome.digest, outcome.text, "")))
        return int(outcome.violation is not None)
    if options.mutants:
        return int(_print_mutants(options.schedules, options.processes) > 0)
    start = time.monotonic()
    end = options.first + options.schedules
    chunks = [range(first, min(first + 50, end)) for first in range(options.first, end, 50)]
    with _pool(options.processes) as pool:
        outcomes = [*chain.from_iterable(pool.map(outcomes_of, chunks))]
    report = summary(outcomes) | {"seconds": round(time.monotonic() - start, 1)}
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return int(any(outcome.violation is not None for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
