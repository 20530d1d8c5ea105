"""The page and the picture about real runs beside the simulator: sentences and tables made of numbers.

Rule: a sentence that depends on a result is chosen by the result; nothing here was written after the fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import machine as this_machine

from experiments.shared.live.errors import PARTS, Errors, Told
from experiments.shared.live.run import LiveRun
from experiments.shared.tables import said

CLAIM: Final = 0.05
"""What the papers claim for their simulators: within five per cent."""

ANSWER: Final = """\
Told the times of one real run, the simulator is off by {median} (median; P90 {p90}) from another real run
of the same {jobs} jobs, {within} the {claim:.0%} that papers claim for their simulators. Two real runs
differ by {floor.median:.1%} (P90 {floor.p90:.1%}) themselves. Told only what was measured before the first
job arrived, it is off by {foreseen.median:.1%} (P90 {foreseen.p90:.1%})."""

ERROR: Final = """\
The error of a job is |JCT - JCT in the other run| / JCT in the other run. *With a run's times*: the
simulator is told each job's mean load, pause and training time in that run, and makes every decision
itself. *From the warm-up alone*: it is told the step time, load and pause of each kind of job, measured
before the first job arrived. Where it is told a run's times, waiting differs by {wait_s} s on average,
loading by {load_s} s, running by {run_s} s and pausing by {pause_s} s: one decision that falls the other
way, by milliseconds, sends a job down another path, and with it the jobs that wait for its devices."""

WHAT: Final = """\
`{made}` makes this page. The {jobs} jobs are real DDP jobs (gloo; one and two devices) on two CPU slots
under `{command}`, and all can save and resume. The same schedule ran {runs} times, each time in a fresh
cluster, with {preemptions} preemptions and {fits} fits by BoTorch. Two dozen jobs are too few for the
paper's stages (10 samples of bootstrap, 100 updates, X up to 100 s), so these options scale them down.
Before each schedule every kind of job runs once under `fifo`, is preempted by hand and resumes."""


def page(
    runs: Sequence[LiveRun],
    live: Sequence[Sequence[Told]],
    errors: Sequence[Errors],
    *,
    floor: Errors | None,
    foretold: Sequence[Errors],
    foreseen: Errors,
    picture: str,
    command: str,
) -> str:
    parts = [
        [f"# {runs[0].policy.capitalize()} live: real jobs beside the simulator"],
        _answer(len(runs[0].rows), floor, foretold, foreseen),
        [f"![each job's completion time]({picture})"],
        ["## Completion times", "", *_errors_table(errors), "", _differences(foretold)],
        ["## How this page was made", "", *_what_ran(runs, live, command), "", *_how(runs)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _what_ran(runs: Sequence[LiveRun], live: Sequence[Sequence[Told]], made: str) -> list[str]:
    first = runs[0]
    parameters = " ".join(f"{key}={value}" for key, value in first.parameters.items())
    text = said(
        WHAT,
        made=made,
        jobs=len(first.rows),
        command=f"cotenant policy set {first.policy} {parameters}".rstrip(),
        runs=len(runs),
        preemptions=" and ".join(str(sum(job.preemptions for job in jobs)) for jobs in live),
        fits=" and ".join(str(len(run.fit_s)) for run in runs),
    )
    failed = [
        f"Run {number}, a fit failed: {error}"
        for number, run in enumerate(runs, 1)
        for error in sorted(set(run.fit_errors))
    ]
    return [text, *failed]


def _errors_table(errors: Sequence[Errors]) -> list[str]:
    rows = ["| | median error | P90 error | mean JCT, s |", "| --- | --- | --- | --- |"]
    for e in errors:
        yardstick_s, other_s = e.mean_jct_s
        rows.append(f"| {e.what} | {e.median:.1%} | {e.p90:.1%} | {other_s:.1f} / {yardstick_s:.1f} |")
    return rows


def _answer(jobs: int, floor: Errors | None, foretold: Sequence[Errors], foreseen: Errors) -> list[str]:
    """Nothing where there is one run."""
    if floor is None or not foretold:
        return []
    medians = [e.median for e in foretold]
    text = said(
        ANSWER,
        jobs=jobs,
        claim=CLAIM,
        within="within" if max(medians) <= CLAIM else "above",
        median=spread(medians),
        p90=spread([e.p90 for e in foretold]),
        floor=floor,
        foreseen=foreseen,
    )
    return [text]


def spread(values: Sequence[float], form: str = "{:.1%}") -> str:
    """Least to most; one where they read alike."""
    ends = dict.fromkeys(map(form.format, (min(values), max(values))))
    return " to ".join(ends)


def _differences(foretold: Sequence[Errors]) -> str:
    """Nothing where there is one run."""
    if not foretold:
        return ""
    parts = {part: spread([e.mean_difference_s[part] for e in foretold], "{:.2f}") for part in PARTS}
    return said(ERROR, **parts)


def _how(runs: Sequence[LiveRun]) -> list[str]:
    machine = runs[0].machine
    facts = ", ".join(f"{key} {value}" for key, value in machine.items() if key != "commit")
    loads = ", ".join(f"{run.load_started:.1f}" for run in runs)
    simulated_at = this_machine.facts()["commit"]
    commits = f"The runs were made at commit {machine['commit']}, the simulations at {simulated_at}."
    return [f"Machine: {facts}. Load average before the runs: {loads}. {commits}"]


def draw(path: Path, live: Sequence[Sequence[Told]], simulated: Sequence[Told]) -> None:
    """Each job's completion time against run 1's: simulated, and in the other real runs."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "cotenant"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.5, 5.0))
    yardstick = [job.jct_s for job in live[0]]
    series: list[tuple[str, Sequence[Told], dict[str, Any]]] = [
        *((f"run {n}", jobs, {"marker": "x", "s": 30}) for n, jobs in enumerate(live[1:], 2)),
        ("simulated", simulated, {"marker": "o", "s": 34, "facecolors": "none", "edgecolors": "tab:red"}),
    ]
    for name, jobs, look in series:
        axes.scatter(yardstick, [job.jct_s for job in jobs], label=name, **look)
    every = [job.jct_s for jobs in (*live, simulated) for job in jobs]
    ends = [min(every) * 0.9, max(every) * 1.1]
    axes.plot(ends, ends, color="grey", linewidth=0.8)
    axes.fill_between(
        ends, [x * (1 - CLAIM) for x in ends], [x * (1 + CLAIM) for x in ends], color="grey", alpha=0.2,
        label=f"within {CLAIM:.0%}", linewidth=0,
    )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="completion time in run 1, s", ylabel="completion time, s")
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
