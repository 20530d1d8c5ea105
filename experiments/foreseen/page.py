"""The page of what the simulator foresees of live runs. Pure but for the file.

Rule: a foresight is worked out from what was measured of each kind alone; of a live run it takes when jobs
arrived, and how long they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.present.units import plural
from experiments.castor.live_sharing import jobs
from experiments.castor.live_sharing.foretold import Foretold, foretell, makespan_s, rule
from experiments.castor.live_sharing.run import CastorRun
from experiments.shared import paths
from experiments.shared.live.errors import told_live
from experiments.shared.live.run import JobRow
from experiments.shared.tables import header, row_of, said

PAGE: Final = paths.RESULTS / "foreseen.md"
FOUND_ON: Final = 5
"""The queue on which the causes were looked for; the others were run afterwards, and nothing was changed."""
WITHIN: Final = 0.15
DIFFER: Final = 0.10
"""Policies that differ by less count as equal."""
LOAD_DUTY: Final = 1.0
"""A load on a slot is work of its core from end to end."""
SHARED_CORE: Final = 1.1
"""What a core that is shared costs each of two beyond the duty-cycle rule; found on queue `FOUND_ON`."""
SHARE_MAX: Final = 1.5
"""As controllers have it."""

Runs = Mapping[tuple[int, str, int], CastorRun]
"""By queue, policy and number."""
Kinds = Mapping[str, jobs.Measured]


class Row(NamedTuple):
    """One queue under one policy: mean completion times in seconds."""

    queue: int
    policy: str
    live_s: tuple[float, ...]
    """Of each run."""
    live_makespan_s: float
    foreseen: Foretold
    steps_only_s: float
    """Foreseen as it was before: no final evaluation, no load that is felt."""
    others: float
    """The share of the cores that other processes had."""
    shared: int = 0
    """Jobs that had a co-tenant, in all runs."""
    balanced: int = 0
    """Those of which it is known whether sharing paid."""

    @property
    def mean_s(self) -> float:
        return fmean(self.live_s)

    @property
    def error(self) -> float:
        return self.foreseen.mean_jct_s / self.mean_s - 1.0


def foresee(run: CastorRun, kinds: Kinds, *, steps_only: bool = False) -> Foretold:
    """Returns what the simulator makes of a run's arrivals. `steps_only`: as if a training ended with its
    last step, and loads were not felt."""
    alone = {row.name: kinds[run.kinds[row.name]].pace for row in run.rows}
    trained_s = {row.name: alone[row.name].expected_s(steps_of(row)) for row in run.rows}
    rows = tuple(msgspec.structs.replace(row, one_pause_s=alone[row.name].pause_s) for row in run.rows)
    return foretell(
        msgspec.structs.replace(run, rows=rows),
        kinds,
        {name: time_s - steps_only * alone[name].tail_s for name, time_s in trained_s.items()},
        rule(kinds) if steps_only else {pair: xi * SHARED_CORE for pair, xi in rule(kinds).items()},
        load_s={name: pace.load_s for name, pace in alone.items()},
        load_duty=0.0 if steps_only else LOAD_DUTY,
        share_max=SHARE_MAX,
    )


def steps_of(row: JobRow) -> int:
    """The steps of a job, from the time that was expected of it and the pace by which that was worked out."""
    return round((row.expected_s - row.foreseen.tail_s) / row.foreseen.step_s) + 1


def rows(runs: Runs, kinds: Kinds) -> list[Row]:
    found = []
    for queue, policy in dict.fromkeys((queue, policy) for queue, policy, _ in runs):
        of = [run for (q, p, _), run in runs.items() if (q, p) == (queue, policy)]
        live = [told_live(run.rows) for run in of]
        found.append(
            Row(
                queue=queue,
                policy=policy,
                live_s=tuple(fmean(job.jct_s for job in each) for each in live),
                live_makespan_s=fmean(map(makespan_s, live)),
                foreseen=foresee(of[0], kinds),
                steps_only_s=foresee(of[0], kinds, steps_only=True).mean_jct_s,
                others=fmean(run.others_ratio for run in of),
                shared=sum(run.shared for run in of),
                balanced=sum(run.balanced for run in of),
            )
        )
    return sorted(found, key=lambda row: row.queue)


def verdict(found: list[Row]) -> str:
    """Says how many foresights were near, and how many orders right, where no cause was looked for."""
    fresh = [row for row in found if row.queue != FOUND_ON]
    if not fresh:
        return "No queue was run yet on which nothing was looked for."
    near = sum(abs(row.error) <= WITHIN for row in fresh)
    pairs = [
        (a, b)
        for a, b in combinations(fresh, 2)
        if a.queue == b.queue and abs(a.mean_s - b.mean_s) > DIFFER * min(a.mean_s, b.mean_s)
    ]
    right = sum((a.mean_s < b.mean_s) == (a.foreseen.mean_jct_s < b.foreseen.mean_jct_s) for a, b in pairs)
    return said(
        VERDICT,
        near=near,
        of=len(fresh),
        within=WITHIN,
        error=fmean(abs(row.error) for row in fresh),
        before=fmean(abs(row.steps_only_s / row.mean_s - 1.0) for row in fresh),
        right=right,
        pairs=len(pairs),
        differ=DIFFER,
        queues=plural(len({row.queue for row in fresh}), "queue"),
    )


def table(found: list[Row]) -> str:
    titles = (
        "queue", "policy", "runs", "live, s", "foreseen, s", "error", "by steps only, s", "makespan: live, s",
        "foreseen, s", "others had",
    )  # fmt: skip
    lines = header(titles)
    for row in found:
        spread = f" ({min(row.live_s):.1f}-{max(row.live_s):.1f})" if len(row.live_s) > 1 else ""
        lines.append(
            row_of(
                (
                    f"{row.queue}{' (causes)' if row.queue == FOUND_ON else ''}",
                    row.policy,
                    f"{len(row.live_s)}",
                    f"{row.mean_s:.1f}{spread}",
                    f"{row.foreseen.mean_jct_s:.1f}",
                    f"{row.error:+.0%}",
                    f"{row.steps_only_s:.1f}",
                    f"{row.live_makespan_s:.0f}",
                    f"{row.foreseen.makespan_s:.0f}",
                    f"{row.others:.0%}",
                )
            )
        )
    return "\n".join(lines)


def write(runs: Runs, kinds: Kinds) -> Path:
    found = rows(runs, kinds)
    (facts, *_) = [run.machine for run in runs.values()]
    machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
    told = "\n".join(f"    {jobs.in_words(kind, one)}" for kind, one in kinds.items())
    parts = [
        "# Foreseen: live runs beside a simulator that knows each kind alone",
        verdict(found),
        table(found),
        said(HOW, found_on=FOUND_ON, share_max=SHARE_MAX),
        said(CAUSES),
        said(BALANCED, shared=sum(row.shared for row in found), balanced=sum(row.balanced for row in found)),
        f"Each kind alone:\n\n{told}",
        f"Machine: {machine}.",
    ]
    PAGE.write_text("\n\n".join(parts) + "\n")
    return PAGE


VERDICT: Final = """\
On {queues} of 26 real jobs on two CPU slots the mean completion time under {near} of {of} policies
was foreseen within {within:.0%}; the mean error is {error:.0%}, and {before:.0%} by steps only. Of the
{pairs} pairs of policies that differ by more than {differ:.0%} live, {right} are in their real order."""

HOW: Final = """\
`python experiments/foreseen/run.py` ran the jobs and made this page. The simulator has when jobs arrived,
their lengths in steps, and of each kind alone: step times, duty cycle, load, pause, and the time from its
last step to its end, of one run that was preempted once; each kind was measured before the live runs and
again after them, and the mean counts. Of pairs it has the duty-cycle rule, and the bound of {share_max:g}
that every job has. Nothing of a live run was used. The causes of what it missed were looked for on queue
{found_on} alone. "Live" is the mean over runs, in brackets the least and the most; "others had" is the
share of the cores' time that processes had which were no part of the run."""

BALANCED: Final = """\
In these runs {shared} jobs had a co-tenant; of {balanced} of them it is known whether sharing paid."""

CAUSES: Final = """\
"By steps only" is the simulator as it was: a training ended with its last step, and a load left its slot
idle. On a slot, which is a core, a job evaluates and ends for seconds after its last step, and a load is
seconds of work that halves a busy neighbour and is halved by it (`Physics.load_duty`). Two that share a
core lose a tenth beyond the rule. On a GPU a load does not compute, so there the simulator's default, 0,
stands. What a kind takes alone differs by a fifth or more from one measurement to the next on this machine,
which bounds what can be foreseen here."""
