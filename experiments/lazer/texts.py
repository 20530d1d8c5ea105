"""What docs/results/lazer.md says beside its numbers: templates, filled from the runs.

Rule: a sentence that depends on a number has the number in braces, or is not here.
"""

from __future__ import annotations

from typing import Final

ANSWER: Final = """Deferral itself {brings}: against the same policy that never defers (`{base}`, which is
    `srtf`), lazer changes mean JCT by {deferral[0]} and futile GPU time by {deferral[1]} where work
    arrives faster than the cluster can do it (offered load {limit:g} and more), and by {deferral[2]}
    and {deferral[3]} below that. At offered loads of {limit:g} and more use `{best}`: against never
    deferring it changes mean JCT by {gains[0]}, P95 by {gains[1]} and the median by {gains[2]}, with
    {futile}. Below {limit:g} the surest is `{calm}` (mean JCT by {eases}), the dearest `{dearest}`
    (median by {dear}), and a fixed interval of 600 s changes the median by {slow}."""

CLAIMED: Final = """Go et al., Making Sense of Job Preemption for Distributed Deep Learning Acceleration,
    DAC '26: abstract, sections 3.2 and 5.3. Ours is how many times as large, with the 95 % interval.
    *Holds*: the whole interval is at or above what is claimed; *in part*: it is above 1; *no*: it is
    not."""

TABLES: Final = """Ratios to `{base}` (below 1: better than never deferring), geometric means over cells,
    with 95 % intervals; futile GPU time (loads that ended in a preemption) and preemptions are sums.
    `srtf` is not in the tables: it is `{base}`. Under `srtf:newcomers=every` jobs that come back to the
    queue preempt again; earlier editions of this page called that srtf, and set lazer, which does not
    do so, against it."""

MAP: Final = """Lazer against `{base}` on {trace} (8 hosts), load times and arrivals scaled. Futile GPU
    time: {futile}. Mean JCT: {jct}. (By the 95 % interval over windows.)"""

METHOD: Final = """`make results-lazer`: {runs} runs, {minutes:.0f} minutes of processor time in them. The
    first {jobs:,} jobs of each of {vcs} Philly VCs (those that have as many, the lightest left out), on
    {hosts} hosts of 8 GPUs; true durations known to the policies; seed 0. Each cell has {windows} warm
    windows of {window_jobs} counted jobs, before which as many run uncounted, on top of what sjf had
    left running and waiting ([simulator.md](../simulator.md#windows)); where lazer has not done
    learning by then ([lazer.md](../lazer.md#how-x-comes-about)), part of that is counted. Intervals are
    paired block bootstraps: VCs are drawn, in each its cluster sizes, in each its windows. Load times,
    which are modelled (`controller/sim/world/overheads.py`), are drawn once: to draw them again says
    nothing about other jobs. Four windows a cell keep the page cheap; a cell's own interval is rough,
    those over cells are the ones to cite. Generated traces are left out, since nobody ever ran them;
    the search (Fig. 8e) is in [bench-lazer.md](bench-lazer.md)."""
