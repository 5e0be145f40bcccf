"""Tasks: parts of one endpoint's work that other processes do, each in one attempt or several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluiceway_gateway.endpoints.model import TaskState

#: So many sums an endpoint has at most, whatever its tasks count.
MAX_SUMS = 64


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try at a part, as the process that makes it says."""

    endpoint: str
    task: str
    number: int
    """Of two attempts at a part, the later one has the higher."""
    state: TaskState
    counters: Mapping[str, float]
    reached: Mapping[int, tuple[int, int]] | None
    """By partition the next offset to read, and how many records of that message are done."""


def standing(attempts: Sequence[Attempt]) -> Attempt | None:
    """Return the attempt that speaks for its part: one that is done, else the latest."""
    done = [each for each in attempts if each.state is TaskState.DONE]
    return max(done or attempts, key=lambda each: each.number, default=None)


def noted(before: Attempt | None, told: Attempt) -> Attempt:
    """Return what is known of an attempt after it `told`; one that came to its end stays there."""
    return told if before is None or before.state is TaskState.RUNNING else before


def recounted(
    sums: Mapping[str, float], before: Attempt | None, after: Attempt | None
) -> dict[str, float]:
    """Return the sums of an endpoint when `after` speaks for a part, in the place of `before`.

    Besides what tasks count, they have the number of parts in each state: `tasks_running`,
    `tasks_done`, `tasks_failed`.
    """
    new = dict(sums)
    for sign, each in ((-1, before), (1, after)):
        for name, value in ({} if each is None else _counted(each)).items():
            if name in new or len(new) < MAX_SUMS:
                new[name] = max(0, new.get(name, 0) + sign * value)
    return new


def is_all_done(sums: Mapping[str, float], parts: int) -> bool:
    """Whether so many parts are done."""
    return sums.get(_count_of(TaskState.DONE), 0) >= parts


def _counted(attempt: Attempt) -> dict[str, float]:
    return {**attempt.counters, _count_of(attempt.state): 1}


def _count_of(state: TaskState) -> str:
    return f"tasks_{state}"
