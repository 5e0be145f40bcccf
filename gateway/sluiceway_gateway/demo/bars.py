"""Progress bars, moved by what the jobs tell."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)


class Bars:
    """One bar for each step of each part, the current one moving.

    Where bars cannot move, as in a log, a line for each step when it begins, with the seconds
    since the first.
    """

    def __init__(self, console: Console) -> None:
        self._started_s = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal or console.is_dumb_terminal,
        )
        self._part = ""
        self._task = self._progress.add_task("", visible=False, start=False)

    def begin(self, part: str, step: str) -> None:
        """Begin a part of the demo with its first step."""
        self._part = part
        self._step(step)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Take what a job tells."""
        if event["event"] == "step":
            self._step(event["text"])
        else:
            self.move(event["done"], event["total"])

    def move(self, done: int, total: int) -> None:
        """Show how far the step has come."""
        self._progress.update(self._task, completed=done, total=total)

    def finish(self) -> None:
        """Show the step as done."""
        task = self._progress.tasks[self._task]
        if task.total is None:
            self._progress.update(self._task, completed=1, total=1)

    def _step(self, text: str) -> None:
        self.finish()
        self._task = self._progress.add_task(f"{self._part}: {text}", total=None)
        if self._progress.disable:
            after_s = time.monotonic() - self._started_s
            self._progress.print(f"{after_s:6.1f} s  {self._part}: {text}", soft_wrap=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
