"""Run jobs on exactly-once channels under faults, and check the visible records."""

import argparse
import json
import math
import secrets
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.checker import KINDS, Finding, Hold
from tests.chaos.faults import FAULTS
from tests.chaos.rounds import Outcome, rounds_of, run

_MEMORY = Path("/dev/shm")  # noqa: S108 - only `mkdtemp` creates names in it
_VIOLATIONS = 20


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the report of all rounds of a run."""
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    counts = Counter(finding.kind for finding in findings)
    holds = [hold for outcome in outcomes for hold in outcome.holds]
    return {
        "batches_committed": _sum(outcome.committed for outcome in outcomes),
        "records_checked": _sum(outcome.records for outcome in outcomes),
        **{kind: counts[kind] for kind in KINDS},
        "unblock_p99_s": _p99(holds),
        "unblock_allowed_s": max((hold.allowed_s for hold in holds), default=None),
        "unblocked": [
            {"driver": hold.driver, "held_s": round(hold.held_s, 1), "allowed_s": hold.allowed_s}
            for hold in holds
        ],
        "faults": _sum(outcome.faults for outcome in outcomes),
        "without_occasion": _sum(outcome.missed for outcome in outcomes),
        "skipped": {name: why for outcome in outcomes for name, why in outcome.skipped.items()},
        "reads_of_runs": _sum(outcome.reads for outcome in outcomes),
        "starts_of_jobs": _sum(outcome.starts for outcome in outcomes),
        "watchers_opened_again": sum(outcome.watcher_failures for outcome in outcomes),
        "rounds": [
            {"brokers": outcome.brokers, "seconds": outcome.seconds} for outcome in outcomes
        ],
        "violations": _violations(findings),
        "accounts": {
            unit: lines
            for outcome in outcomes
            for unit, lines in list(outcome.accounts.items())[:_VIOLATIONS]
        },
        "errors": [error for outcome in outcomes for error in outcome.errors],
    }


def _violations(findings: Sequence[Finding]) -> list[str]:
    """Return one line per unit and rule, with the number of violations."""
    texts_by_unit: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        texts_by_unit.setdefault((finding.kind, finding.unit or finding.text), []).append(
            finding.text
        )
    return [
        f"{kind}: {texts[0]}" + (f" (and {len(texts) - 1} more like it)" if texts[1:] else "")
        for (kind, _), texts in list(texts_by_unit.items())[:_VIOLATIONS]
    ]


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for round_counts in counts:
        total.update(round_counts)
    return dict(sorted(total.items()))


def _p99(holds: Sequence[Hold]) -> float | None:
    if not holds:
        return None
    ordered = sorted(hold.held_s for hold in holds)
    return round(ordered[math.ceil(0.99 * len(ordered)) - 1], 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a report as JSON; return the exit status: 1 after a violation, 2 after an error."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=15, help="total time with faults, in all rounds"
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="seed of the faults; random by default"
    )
    parser.add_argument("--faults", default=",".join(FAULTS), help="comma-separated names")
    parser.add_argument(
        "--delivery", choices=["exactly_once", "at_least_once"], default="exactly_once"
    )
    parser.add_argument("--no-spark", action="store_true", help="run jobs in Python only")
    parser.add_argument("--keep", type=Path, help="keep logs and journals in this directory")
    parser.add_argument("--report", type=Path, help="also write the report to this file")
    options = parser.parse_args(arguments)
    faults = options.faults.split(",")
    if unknown := sorted(set(faults) - FAULTS.keys()):
        parser.error(f"unknown faults: {', '.join(unknown)}; known faults: {', '.join(FAULTS)}")
    seed = secrets.randbits(31) if options.seed is None else options.seed
    memory = _MEMORY if _MEMORY.is_dir() else None
    directory = options.keep or Path(tempfile.mkdtemp(prefix="sluiceway-chaos-", dir=memory))
    # An interrupted run ends its processes, too.
    previous_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    outcomes: list[Outcome] = []
    sys.stderr.write(f"chaos: seed {seed}\n")
    try:
        for plan in rounds_of(
            minutes=options.minutes,
            seed=seed,
            delivery=options.delivery,
            faults=faults,
            spark=not options.no_spark,
            directory=directory.resolve(),
        ):
            sys.stderr.write(f"chaos: {plan.brokers} broker(s), {plan.seconds:.0f} s of faults\n")
            outcome = run(plan)
            outcomes.append(outcome)
            progress = f"{sum(outcome.faults.values())} faults, {len(outcome.findings)} violations"
            sys.stderr.write(f"chaos: {progress}, after {outcome.seconds:.0f} s\n")
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
        # Logs that explain a violation are kept.
        clean = not any(outcome.findings or outcome.errors for outcome in outcomes)
        if options.keep is None and clean:
            shutil.rmtree(directory, ignore_errors=True)
        elif not clean:
            sys.stderr.write(f"chaos: logs and journals are in {directory}\n")
    report = {"seed": seed, "minutes": options.minutes, "delivery": options.delivery}
    report |= summary(outcomes)
    text = json.dumps(report, indent=2) + "\n"
    sys.stdout.write(text)
    if options.report is not None:
        options.report.write_text(text)
    if any(report[kind] for kind in KINDS):
        return 1
    return 2 if report["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
