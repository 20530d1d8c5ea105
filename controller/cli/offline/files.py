"""Files that a command line names: to be read, and to write results to; and whether plots can be made here.

Rule: every verb reports a bad file in the same words. One that is not there is exit code 3, one
that cannot be read as what it should be is a wrong value, exit code 2. What cannot be written is refused,
exit code 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from cotenant.controller.present import screen
from cotenant.controller.present.problem import Problem
from cotenant.controller.sim import RunResult, TaskRun
from cotenant.controller.sim.results.document import write_document, write_jobs
from cotenant.controller.system.files import write_output
from cotenant.controller.timeline import Timeline, chrome_trace, render
from cotenant.controller.whatif.table import file_name


def contents(name: str) -> bytes:
    """The contents of a file. Raises Problem."""
    try:
        return Path(name).expanduser().read_bytes()
    except FileNotFoundError:
        raise Problem("not-found", f"{name}: there is no such file") from None
    except OSError as error:
        raise Problem("usage", f"{name} cannot be read: {error.strerror}") from None
    except (ValueError, RuntimeError) as error:  # a NUL in it; the home of nobody
        raise Problem("usage", f"{name!r} is no file name: {error}") from None


MATPLOTLIB_HINT: Final = (
    'no plots without matplotlib; to have them: pip install ".[sim]" in the source folder'
)


def writable(out: str | None) -> Path | None:
    """The folder for results, made before the computation, so that a failure shows at once.

    Raises:
        Problem: it cannot be made.
    """
    if out is None:
        return None
    folder = Path(out).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".written-by-cotenant").touch()
        (folder / ".written-by-cotenant").unlink()
    except OSError as error:
        text = f"{folder} cannot be written to: {error.strerror}"
        raise Problem("refused", text, "choose another --out") from None
    return folder


def matplotlib_or_hint() -> ModuleType | None:
    """The module of the plots; None, and a word on how to get them, where matplotlib is missing."""
    try:
        from cotenant.controller.sim.results import plots
    except ImportError:
        screen.tell(MATPLOTLIB_HINT)
        return None
    return plots


def write_results(
    out: Path,
    value: dict[str, Any],
    jobs: Mapping[str, RunResult],
    drawn: Mapping[str, RunResult],
    each: str,
    runs: Sequence[TaskRun] = (),
) -> None:
    """Writes `result.json`, a CSV of jobs for each outcome, plots of those in `drawn` (with matplotlib), and
    timelines of runs that kept one: a picture, and a file for Perfetto.

    Raises:
        Problem: the disk is full, or so.
    """
    try:
        write_document(value, out / "result.json")
        for name, outcome in jobs.items():
            write_jobs(outcome, out / f"jobs-{name}.csv")
        plots = matplotlib_or_hint()
        names = plots.write_all(drawn, out) if plots is not None else []
        for run in runs:
            if run.timeline is not None:
                names += write_timeline(out, f"timeline-{file_name(run.label)}", run.timeline)
    except OSError as error:
        raise Problem("refused", f"{out}: {error.strerror}", "make room, or choose another --out") from None
    screen.tell(f"written to {out}: result.json, a CSV of each {each}" + "".join(f", {n}" for n in names))


def write_timeline(out: Path, name: str, timeline: Timeline) -> list[str]:
    """Names of the files."""
    texts = {f"{name}.svg": render(timeline), f"{name}.json": json.dumps(chrome_trace(timeline))}
    for file, text in texts.items():
        write_output(out / file, text.encode())
    return list(texts)


def write_file(path: Path, data: bytes) -> None:
    """Writes the data to a file. Raises Problem: the disk is full, or so."""
    try:
        write_output(path, data)
    except OSError as error:
        raise Problem(
            "refused", f"{path} cannot be written: {error.strerror}", "choose another file"
        ) from None
