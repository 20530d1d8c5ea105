"""The page of what sharing costs a job with a bound, from the runs. Pure but for the file."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from experiments.shared import paths
from experiments.unharmed.simulated import Result
from experiments.unharmed.simulated_page import sections

PAGE: Final = paths.RESULTS / "unharmed.md"
Run = Mapping[str, Any]
P99_EXCESS: Final = 2.0
"""The p99 of step times may exceed that alone by so many times what the bound allows."""
IDLE_HALF: Final = 0.6
"""Where the protected job is busy for at most this part, its guest should keep `GUEST_KEEPS` of its speed."""
GUEST_KEEPS: Final = 0.3


class Row(NamedTuple):
    """One pair under one bound; ratios to the protected job's own steps alone in the same run."""

    pair: str
    bound: float
    busy: float
    p50: float
    p99: float
    mean: float
    guest: float | None
    """Its speed over that of its kind alone, on average over the runs in which that was the protected one."""
    minutes: int
    minutes_held: int
    p99_held: int

    @property
    def together(self) -> float | None:
        """The work of both over that of taking turns."""
        return None if self.guest is None else 1.0 / self.mean + self.guest


def speeds_alone(runs: Sequence[Run]) -> dict[str, float]:
    """Returns the steps per second of each kind alone."""
    found: dict[str, list[float]] = {}
    for run in runs:
        found.setdefault(run["pair"].split(":")[0], []).append(1.0 / run["alone_mean_s"])
    return {kind: fmean(speeds) for kind, speeds in found.items()}


def rows(runs: Sequence[Run]) -> list[Row]:
    """Returns a row for each pair and bound, in the order of the runs; free ones first."""
    alone, found = speeds_alone(runs), []
    for pair, bound in dict.fromkeys((run["pair"], run["bound"]) for run in runs):
        of = [run for run in runs if (run["pair"], run["bound"]) == (pair, bound)]
        p50s, p99s, means = (
            [minute[f"{of_what}_s"] / run[f"alone_{of_what}_s"] for run in of for minute in run["minutes"]]
            for of_what in ("p50", "p99", "mean")
        )
        guest = pair.split(":")[1]
        speed = fmean(run["guest_steps_per_s"] for run in of)
        found.append(
            Row(
                pair=pair,
                bound=bound,
                busy=fmean(run["busy"] for run in of),
                p50=median(p50s),
                p99=median(p99s),
                mean=fmean(means),
                guest=speed / alone[guest] if guest in alone else None,
                minutes=len(p50s),
                minutes_held=sum(ratio <= bound for ratio in p50s),
                p99_held=sum(ratio <= 1.0 + P99_EXCESS * (bound - 1.0) for ratio in p99s),
            )
        )
    return found


def table(runs: Sequence[Run]) -> str:
    lines = [
        "| protected : guest | busy | bound | p50 | p99 | mean | guest's speed | both, by turns | minutes |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows(runs):
        guest, both = ("-" if each is None else f"{each:.2f}" for each in (row.guest, row.together))
        lines.append(
            f"| {row.pair} | {row.busy:.0%} | {f'{row.bound:g}' if row.bound else 'none'} | {row.p50:.2f} "
            f"| {row.p99:.2f} | {row.mean:.2f} | {guest} | {both} | {row.minutes} |"
        )
    return "\n".join(lines)


def verdicts(runs: Sequence[Run]) -> str:
    """Says, for each bound, in how many minutes it was kept, and what guests kept."""
    lines, known = [], rows(runs)
    for bound in sorted({row.bound for row in known if row.bound}, reverse=True):
        of = [row for row in known if row.bound == bound]
        minutes, held, p99_held = (
            sum(getattr(row, name) for row in of) for name in ("minutes", "minutes_held", "p99_held")
        )
        idle = [row for row in of if row.busy <= IDLE_HALF and row.guest is not None]
        kept = [row.pair for row in idle if row.guest is not None and row.guest >= GUEST_KEEPS]
        losing = [row.pair for row in of if row.together is not None and row.together < 1.0]
        said = (
            f"* Bound {bound:g}: p50 within it in {held} of {minutes} minutes, p99 within twice its excess "
            f"in {p99_held}. Where the protected job is busy for at most {IDLE_HALF:.0%}, {len(kept)} of "
            f"{len(idle)} guests whose speed alone is known kept {GUEST_KEEPS:.0%} of it. Both together did "
            f"less than in turns in: {', '.join(losing) or 'no pair'}."
        )
        lines.append(textwrap.fill(said, 118, subsequent_indent="  "))
    return "\n".join(lines)


def write(runs: Sequence[Run], found: Sequence[Result], facts: Mapping[str, str | int | float]) -> Path:
    machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
    pairs = len({run["pair"] for run in runs})
    PAGE.write_text(
        f"""# Unharmed: what sharing costs a job with a bound

Real jobs on a CPU slot of one core (a gang of two on two), one thread each; no weights and no quotas: the
kernel shares a core between two threads as it does. Ratios are to the protected job's own steps alone in the
same run, minute by minute, p99 to p99. "Busy" is its processor time alone over the time. "Both" adds the
speeds of the two: 1 is what taking turns gives. The first 10 s of training together are left out: a guest's
loading cannot be held back, and its pace is found then.

{verdicts(runs)}

{table(runs)}

{len(runs)} runs of {pairs} pairs, a minute each, by `python experiments/unharmed/run.py`. The machine was in
use beside them, on its other core; the runs' sessions went first (autogroup niceness -20). Steps take 10 to 90
ms: where a step is shorter than the slices in which the kernel gives a core away, the p99 of single steps is
worse.

What these runs do not show: GPUs, batches that the runtime splits, and as many repetitions as a claim about
rare minutes would need.

{sections(found) if found else ""}

Machine: {machine}.
"""
    )
    return PAGE
