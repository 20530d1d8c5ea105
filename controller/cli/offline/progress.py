"""How far simulations are: a bar on standard error, for people, and only where they take a while."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.cli.frame.screen import is_terminal
from cotenant.controller.cli.frame.signals import heard
from cotenant.controller.sim.compare import Report, Task, TaskProgress, TaskRun, WorkerLost, run_all
from cotenant.controller.training.kinds import compute

WORTH_A_BAR_S: Final = 2.0


def run_with_bar(tasks: Sequence[Task], *, workers: int | None, keep: bool) -> list[TaskRun]:
    """Raises Problem."""
    try:
        with bar(tasks) as report:
            runs = run_all(tasks, workers=workers, keep=keep, report=report, asked=heard, compute=compute)
    except WorkerLost as error:
        raise Problem("failed", str(error), "try --workers 1, or fewer jobs with --jobs") from None
    if not runs:
        raise KeyboardInterrupt  # before any run had a result
    return runs


@contextmanager
def bar(tasks: Sequence[Task]) -> Iterator[Report | None]:
    """A function to tell progress to; None where nobody looks."""
    import sys

    if not is_terminal(sys.stderr):
        yield None
        return
    shown = ProgressBar(tasks)
    try:
        yield shown.tell
    finally:
        shown.close()


class ProgressBar:
    """One bar over all runs, which appears after two seconds."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._finished = [0] * len(tasks)
        self._total = sum(len(task.workload) for task in tasks)
        self._began_s = time.monotonic()
        self._bar: Any = None
        self._line: Any = None

    def tell(self, progress: TaskProgress) -> None:
        self._finished[progress.task] = progress.finished
        if self._bar is None:
            if time.monotonic() - self._began_s < WORTH_A_BAR_S:
                return
            self._open()
        self._bar.update(self._line, completed=sum(self._finished), description=self._running())

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("jobs"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._line = self._bar.add_task("", total=self._total)
        self._bar.start()

    def _running(self) -> str:
        """The runs under way, and how many are over."""
        under_way = [
            task.policy.label
            for task, finished in zip(self._tasks, self._finished, strict=True)
            if 0 < finished < len(task.workload)
        ]
        over = sum(
            finished >= len(task.workload) for task, finished in zip(self._tasks, self._finished, strict=True)
        )
        return f"{over}/{len(self._tasks)} runs  {', '.join(under_way[:3])[:40]}"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
