"""Progress of a reader by the movement of its positions (Burrow's rules). Pure.

The rules are Burrow's ("Consumer Lag Evaluation Rules" in its wiki, and its evaluator): no
threshold for the lag, but whether it ever was zero, and whether the position moves. Where Burrow
asks when a consumer committed last, this asks whether the reader's heartbeats are heard.
"""

import itertools
from collections.abc import Iterable, Sequence
from enum import StrEnum

#: Samples that are looked back on. Burrow has 10 as well.
WINDOW = 10


class Progress(StrEnum):
    """How a partition's reader, or a group, gets on; the later ones are worse."""

    OK = "ok"
    """It has nothing left to read, had nothing left within the window, or catches up."""
    FALLING_BEHIND = "falling_behind"
    """It moves, and its lag never became less within the window."""
    STALLED = "stalled"
    """It lives, and has not moved over the window though something was there to read."""
    STOPPED = "stopped"
    """Nobody reads, and something is left."""
    REWOUND = "rewound"
    """It went back within the window."""


_SEVERITY = {each: number for number, each in enumerate(Progress)}


def worst(found: Iterable[Progress | None]) -> Progress | None:
    """Return the worst that is known."""
    least: Progress | None = None
    for each in found:
        # Mostly all are the same, and there are many.
        if each is None or each is least:
            continue
        if least is None or _SEVERITY[each] > _SEVERITY[least]:
            least = each
    return least


def evaluate_lag(points: Sequence[tuple[int, int]], *, lives: bool, whole: bool) -> Progress | None:
    """Judge one partition by its positions and lags, the oldest first, all of one reader.

    `lives` says whether a reader that should move it is heard of, `whole` whether the points fill
    the window; before that only what cannot change any more is said.
    """
    if not points:
        return None
    if any(lag == 0 for _, lag in points):
        return Progress.OK
    steps = list(itertools.pairwise(points))
    if any(after[0] < before[0] for before, after in steps):
        return Progress.REWOUND
    moved = points[0][0] != points[-1][0]
    if moved and any(after[1] < before[1] for before, after in steps):
        return Progress.OK
    if not whole:
        return None
    if moved:
        return Progress.FALLING_BEHIND
    return Progress.STALLED if lives else Progress.STOPPED
