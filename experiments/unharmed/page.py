"""The page of what sharing costs a job with a bound, from the runs. Pure but for the file."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import permutations
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from experiments.shared import paths
from experiments.shared.tables import header, row_of
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
    parted: int
    """Runs in which the bound could not be kept, and the pair was parted."""
    minutes: int
    minutes_held: int
    p99_held: int

    @property
    def together(self) -> float | None:
        """The work of both over that of taking turns."""
        return None if self.guest is None else 1.0 / self.mean + self.guest


def speeds_alone(runs: Sequence[Run]) -> dict[tuple[str, str], float]:
    """Returns the steps per second of each kind alone, by processor and kind."""
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        found.setdefault((run["processor"], run["pair"].split(":")[0]), []).append(1.0 / run["alone_mean_s"])
    return {key: fmean(speeds) for key, speeds in found.items()}


def find_noise(runs: Sequence[Run], excess: float) -> float | None:
    """Returns how often the p99 of one stretch alone is over 1 + `excess` times that of another one, of the
    same kind on the same machine: so often chance alone breaks a bound. None: no kind was run twice."""
    p99s: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        key = run["processor"], run["pair"].split(":")[0]
        p99s.setdefault(key, []).append(run["alone_p99_s"])
    over = [one > (1.0 + excess) * other for of in p99s.values() for one, other in permutations(of, 2)]
    return fmean(over) if over else None


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
        speeds = [
            run["guest_steps_per_s"] / alone[run["processor"], guest]
            for run in of
            if (run["processor"], guest) in alone
        ]
        found.append(
            Row(
                pair=pair,
                bound=bound,
                busy=fmean(run["busy"] for run in of),
                p50=median(p50s),
                p99=median(p99s),
                mean=fmean(means),
                guest=fmean(speeds) if speeds else None,
                parted=sum(run["parted"] for run in of),
                minutes=len(p50s),
                minutes_held=sum(ratio <= bound for ratio in p50s),
                p99_held=sum(ratio <= 1.0 + P99_EXCESS * (bound - 1.0) for ratio in p99s),
            )
        )
    return found


def table(runs: Sequence[Run]) -> str:
    """A row for each pair: without a bound, and under each."""
    known: dict[str, dict[float, Row]] = {}
    for row in rows(runs):
        known.setdefault(row.pair, {})[row.bound] = row
    bounds = sorted(
        {bound for of in known.values() for bound in of}, key=lambda bound: bound or inf, reverse=True
    )
    named = [f"{bound:g}" if bound else "none" for bound in bounds]
    titles = [f"{what}: {name}" if name == named[0] else name for what in VALUES for name in named]
    lines = header(["protected : guest", "busy", *titles])
    for pair, of in known.items():
        found = [
            getattr(of[bound], name) if bound in of else None for name in VALUES.values() for bound in bounds
        ]
        busy = f"{fmean(row.busy for row in of.values()):.0%}"
        lines.append(row_of([pair, busy, *("-" if value is None else f"{value:.2f}" for value in found)]))
    return "\n".join(lines)


VALUES: Final = {"p50": "p50", "p99": "p99", "guest": "guest", "both": "together"}
"""Columns, and the values that they show for each bound."""


def verdicts(runs: Sequence[Run]) -> str:
    """Says, for each bound, in how many minutes it was kept, and what guests kept."""
    lines, known = [], rows(runs)
    for bound in sorted({row.bound for row in known if row.bound}, reverse=True):
        of = [row for row in known if row.bound == bound]
        minutes, held, p99_held = (
            sum(getattr(row, name) for row in of) for name in ("minutes", "minutes_held", "p99_held")
        )
        noise = find_noise(runs, P99_EXCESS * (bound - 1.0))
        idle = [row for row in of if row.busy <= IDLE_HALF and row.guest is not None]
        kept = [row.pair for row in idle if row.guest is not None and row.guest >= GUEST_KEEPS]
        parted = [row.pair for row in of if row.parted]
        losing = [
            row.pair for row in of if not row.parted and row.together is not None and row.together < 1.0
        ]
        said = (
            f"* Bound {bound:g}: p50 within it in {held} of {minutes} minutes, p99 within twice its excess "
            f"in {p99_held} ({_noise_text(noise)}). Where the protected job is busy for at most "
            f"{IDLE_HALF:.0%}, {len(kept)} of {len(idle)} guests whose speed alone is known kept "
            f"{GUEST_KEEPS:.0%} of it. Both together did less than in turns in: "
            f"{', '.join(losing) or 'no pair'}. Parted: {', '.join(parted) or 'none'}."
        )
        lines.append(textwrap.fill(said, 118, subsequent_indent="  "))
    return "\n".join(lines)


def _noise_text(noise: float | None) -> str:
    if noise is None:
        return "how often chance breaks that is not known"
    return f"of two stretches alone, {noise:.0%} differ by more"


GUEST_STEPS_PER_MIN: Final = 60.0
P50_MAX: Final = 1.12
"""Of the bounded job's steps alone. An undeclared run is to meet both."""


def undeclared_section(told: Sequence[Run]) -> str:
    """Says how a guest fared of which nothing was declared, and first what was not met."""
    if not told:
        return ""
    lines, missed = [], 0
    for run in told:
        steps = 60.0 * run["guest_steps_per_s"]
        ratios = [minute["p50_s"] / run["alone_p50_s"] for minute in run["minutes"]]
        is_met = steps >= GUEST_STEPS_PER_MIN and max(ratios) <= P50_MAX
        missed += not is_met
        said = (
            f"* {'Met' if is_met else 'Not met'}: the guest made {steps:.0f} steps a minute; the bounded "
            f"job's p50 was at most {max(ratios):.2f} of alone. The guest waited {run['waited_s']:.0f} s for "
            f"a device. Its last reason for waiting: {run['reason'] or 'none'}. Load of the machine: "
            f"{run['load']:.1f}."
        )
        lines.append(textwrap.fill(said, 118, subsequent_indent="  "))
    verdict = f"Not met in {missed} of {len(told)} runs." if missed else f"Met in all runs: {len(told)}."
    wanted = (
        f"To meet: at least {GUEST_STEPS_PER_MIN:.0f} steps of the guest a minute, with the bounded job's "
        f"p50 at most {P50_MAX:.2f} of alone."
    )
    body = "\n".join(lines)
    return f"""
## Nothing declared, nothing measured

{verdict} {wanted}

`cotenant submit --share max=1.1 -- python training.py loader`, then
`cotenant submit -- python training.py compute`, on a fresh cluster with one slot and default settings. The
guest is tried as soon as the memory of the first job is known, and is limited to what that job leaves.

{body}

## Pairs under bounds
"""


def kept_sections(text: str) -> str:
    """The simulated sections of a page, for a machine that has no results of simulations."""
    _, mark, rest = text.partition("## Simulated")
    return (mark + rest.rpartition("\nMachine:")[0]).strip()


def write(
    runs: Sequence[Run], told: Sequence[Run], found: Sequence[Result], facts: Mapping[str, str | int | float]
) -> Path:
    machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
    pairs = len({run["pair"] for run in runs})
    processors = dict.fromkeys(run["processor"] for run in runs)
    PAGE.write_text(
        f"""# Unharmed: what sharing costs a job with a bound
{undeclared_section(told)}
Real jobs on a CPU slot of one core (a gang of two on two), one thread each; no weights and no quotas: the
kernel shares a core between two threads as it does. Ratios are to the protected job's own steps alone in
the same run, minute by minute, p99 to p99. "Busy" is its processor time alone over the time, "guest" the
guest's speed over that of its kind alone on the same machine, and "both" adds the speeds of the two: 1 is
what taking turns gives, as a pair does that was parted since the bound cannot be kept. The first 20 s of
training together are left out: a guest's loading cannot be held back, and its pace is found then.

{verdicts(runs)}

{table(runs)}

{len(runs)} runs of {pairs} pairs, a minute each, by `python experiments/unharmed/run.py`. The machine was
in use beside them, on its other core; the runs' sessions went first (autogroup niceness -20). Processors:
{" and ".join(processors)}. Steps take 10 to 90 ms: where a step is shorter than the slices in which the
kernel gives a core away, the p99 of single steps is worse.

What these runs do not show: GPUs, batches that the runtime splits, and as many repetitions as a claim about
rare minutes would need.

{sections(found) if found else kept_sections(PAGE.read_text())}

Machine: {machine}.
"""
    )
    return PAGE
