"""The page and the picture about real runs beside the simulator: sentences and tables made of numbers.

Rule: a sentence that depends on a result is chosen by the result; nothing here was written after the fact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from experiments.shared.live.errors import PARTS, Errors, Told, error
from experiments.shared.live.run import LiveRun

CLAIM: Final = 0.05
"""What the papers claim for their simulators: within five per cent."""

WHAT: Final = """\
{jobs} real DDP jobs (gloo; one and two devices; all can save and resume) on two CPU slots, `{command}`.
The same schedule ran {runs} times, each time in a fresh cluster."""

ERROR: Final = """\
The error of a job is |JCT - JCT of what it is set beside| / the latter. *Same path*: only jobs that were
preempted equally often in both, loads for nothing included. Mean JCT: first the one that is set beside the
other, then the other."""

SERIES: Final = """\
*With a run's times*: the simulator is told each job's mean load and pause and its training time as that run
measured them; what is left to it is every decision and all that follows from them. *From the warm-up alone*:
it is told the step time, load and pause of each kind, measured before the first job arrived, and predicts."""

VERDICT: Final = """\
The papers claim {claim:.0%} for their simulators. Out of sample, told the times of one real run and set
beside another, ours is off by {median} (median; P90 {p90}): {within} that claim. Told only what the
warm-up measured it is off by {foreseen.median:.1%} ({foreseen.p90:.1%})."""

FLOOR: Final = """\
Two real runs of one schedule differ by {floor.median:.1%} and {floor.p90:.1%} themselves: no simulator
that is told one run can come much nearer to the other. Told a run's own times, ours is off by {own}
(median). That is no prediction, since load and training times are copied from the run it is set beside:
it says how often the simulated decisions were those of the real run."""

DIFFERENCES: Final = """\
What the two worlds are known to differ in. The simulator has one load and one pause time per job, the mean of
those measured; real ones vary from attempt to attempt. A job's training time in it is that run's, whatever
else was on the cores then. Expected loads and pauses are exact in it from the start; live they are learned
from earlier attempts. What a job has left is what it was expected to take, less the time that has passed,
corrected by progress reports when it loads again or ends late; live each report corrects it at once. A
decision turns on which of two jobs is shorter and which of two events is earlier: milliseconds, in either
world, can send a job down another path, and with it those that wait for its devices. The noise floor has
the same effect in it."""

HOW: Final = """\
A few dozen jobs are too few for the paper's stages (10 samples of bootstrap, 100 updates, X up to 100 s), so
these are scaled down by the policy's own options, named above; loads take seconds here, not tens. Before
each schedule every kind of job runs once, is preempted by hand and resumes, under fifo: that gives step
times (and with them `--expect`), and the first loads and pauses to learn from. All times are those of the
controller's journal. JCT = wait + load + run + pause; the training time a job is simulated with is `run`.
Jobs are submitted with `--resumable yes`: one that leaves it to be found out cannot be preempted before it
has said so itself, some seconds into its first load, and a simulated job always can."""


def page(
    runs: Sequence[LiveRun],
    live: Sequence[Sequence[Told]],
    simulated: Sequence[Sequence[Told]],
    errors: Sequence[Errors],
    *,
    own: Sequence[Errors],
    floor: Errors | None,
    foretold: Sequence[Errors],
    foreseen: Errors,
    picture: str,
    command: str,
) -> str:
    first = runs[0]
    return "\n".join(
        [
            f"# {first.policy}, live: real jobs beside the simulator",
            "",
            *_what_ran(runs, live),
            "",
            "## Completion times",
            "",
            *_errors_table(errors),
            "",
            *_verdict(own, floor, foretold, foreseen),
            "",
            f"![each job's completion time]({picture})",
            "",
            "## Where the difference is",
            "",
            *_parts_table(errors),
            "",
            *_why(errors, live, simulated),
            "",
            "## Every job",
            "",
            *_jobs_table(live, simulated[0]),
            "",
            *_deferrals(runs),
            "",
            "## How",
            "",
            *_how(runs, command),
            "",
        ]
    )


def _what_ran(runs: Sequence[LiveRun], live: Sequence[Sequence[Told]]) -> list[str]:
    first = runs[0]
    parameters = " ".join(f"{key}={value}" for key, value in first.parameters.items())
    command = f"cotenant policy set {first.policy} {parameters}".rstrip()
    lines = [WHAT.format(jobs=len(first.rows), command=command, runs=len(runs)), ""]
    for number, (run, jobs) in enumerate(zip(runs, live, strict=True), 1):
        deferred = sum(d.x_s > 0 for d in run.deferrals)
        stages = Counter(d.stage for d in run.deferrals)
        said = ", ".join(f"{count} in {stage}" for stage, count in stages.items())
        lines.append(
            f"Run {number}: {sum(j.preemptions for j in jobs)} preemptions, "
            f"{sum(j.futile_preemptions for j in jobs)} of them before a first step "
            f"({sum(j.futile_s * j.gpus for j in jobs):.1f} GPU-seconds for nothing); "
            f"{len(run.deferrals)} predictions ({said or 'none'}), {deferred} of them deferred; "
            f"{len(run.fit_s)} fits by BoTorch"
            + (f", {median(run.fit_s):.1f} s each" if run.fit_s else "")
            + "."
        )
        lines += [f"Run {number}, a fit failed: {text}" for text in sorted(set(run.fit_errors))]
    return lines


def _errors_table(errors: Sequence[Errors]) -> list[str]:
    rows = [
        "| | jobs | median error | P90 error | same path: jobs | median | P90 | mean JCT, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for e in errors:
        yardstick_s, other_s = e.mean_jct_s
        rows.append(
            f"| {e.what} | {e.jobs} | {e.median:.1%} | {e.p90:.1%} | {e.same_path_jobs} | "
            f"{_share(e.same_path_median)} | {_share(e.same_path_p90)} | {other_s:.1f} / {yardstick_s:.1f} |"
        )
    return [*rows, "", ERROR, "", SERIES]


def _verdict(
    own: Sequence[Errors], floor: Errors | None, foretold: Sequence[Errors], foreseen: Errors
) -> list[str]:
    """Out of sample first; nothing of it where there is one run."""
    if floor is None or not foretold:
        return []
    medians = [e.median for e in foretold]
    within = "within" if max(medians) <= CLAIM else "above"
    p90 = spread([e.p90 for e in foretold])
    verdict = VERDICT.format(claim=CLAIM, within=within, median=spread(medians), p90=p90, foreseen=foreseen)
    return [verdict, "", FLOOR.format(floor=floor, own=spread([e.median for e in own]))]


def spread(values: Sequence[float]) -> str:
    """Least to most; one where they read alike."""
    ends = dict.fromkeys(f"{value:.1%}" for value in (min(values), max(values)))
    return " to ".join(ends)


def _parts_table(errors: Sequence[Errors]) -> list[str]:
    rows = ["| mean difference per job, s | wait | load | run | pause |", "| --- | --- | --- | --- | --- |"]
    for e in errors:
        cells = " | ".join(f"{seconds:.2f}" for seconds in e.mean_difference_s.values())
        rows.append(f"| {e.what} | {cells} |")
    return rows


def _why(
    errors: Sequence[Errors], live: Sequence[Sequence[Told]], simulated: Sequence[Sequence[Told]]
) -> list[str]:
    worst = sorted(zip(live[0], simulated[0], strict=True), key=lambda pair: -error(*pair))[:4]
    lines = ["The largest errors of the simulator against run 1:", ""]
    return [*lines, *(_in_words(real, sim) for real, sim in worst), "", DIFFERENCES]


def _in_words(real: Told, sim: Told) -> str:
    where = max(PARTS, key=lambda part: abs(getattr(sim, part) - getattr(real, part)))
    path = (
        "on the same path"
        if real.path == sim.path
        else f"preempted {sim.preemptions} times ({sim.futile_preemptions} while loading), "
        f"really {real.preemptions} ({real.futile_preemptions})"
    )
    return (
        f"* {real.name}: {sim.jct_s:.1f} s simulated, {real.jct_s:.1f} s real ({error(real, sim):.0%}), "
        f"most of it in {where.removesuffix('_s')} ({getattr(sim, where):.1f} against "
        f"{getattr(real, where):.1f} s); {path}."
    )


def _jobs_table(live: Sequence[Sequence[Told]], simulated: Sequence[Told]) -> list[str]:
    heads = [f"run {n}" for n in range(1, len(live) + 1)]
    jct = f"JCT, s: {' / '.join(heads)} / simulated"
    rows = [
        f"| job | devices | arrives, s | {jct} | error | preempted (loading) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for jobs in zip(*live, simulated, strict=True):
        real, sim = jobs[0], jobs[-1]
        times = " / ".join(f"{job.jct_s:.1f}" for job in jobs)
        paths = " / ".join(f"{job.preemptions} ({job.futile_preemptions})" for job in jobs)
        head = f"| {real.job_id}: {real.name} | {real.gpus} | {real.arrived_s:.1f}"
        rows.append(f"{head} | {times} | {error(real, sim):.1%} | {paths} |")
    return [*rows, "", "Simulated: with the times of run 1; the error is against run 1."]


def _deferrals(runs: Sequence[LiveRun]) -> list[str]:
    lines = ["## What the predictor said", ""]
    for number, run in enumerate(runs, 1):
        first_s = run.rows[0].arrived_s
        lines += [f"Run {number}:", ""]
        lines += [f"* {d.at_s - first_s:.1f} s, {d.job}: {d.told}" for d in run.deferrals] or ["* nothing"]
        lines.append("")
    return lines[:-1]


def _how(runs: Sequence[LiveRun], command: str) -> list[str]:
    machine = runs[0].machine
    facts = ", ".join(f"{key} {value}" for key, value in machine.items() if key != "commit")
    loads = ", ".join(f"{run.load_started:.1f}" for run in runs)
    return [
        HOW,
        "",
        f"Command: `{command}`",
        f"Machine: {facts}. Load average before the runs: {loads}. Commit: {machine['commit']}.",
    ]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


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
