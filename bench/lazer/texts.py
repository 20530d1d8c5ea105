"""What docs/results/lazer.md says beside its numbers: templates, filled from the runs.

Rule: a sentence that depends on a number has the number in braces, or is not here.
"""

from __future__ import annotations

from typing import Final

ANSWER: Final = """Deferral itself brings this, against the same policy that never defers (`{base}`, which
    is `srtf`): where work arrives faster than the cluster can do it (offered load {limit:g} and more) the
    mean JCT is {deferral[0]} and futile GPU time {deferral[2]}, below that {deferral[1]} and
    {deferral[3]}. At {limit:g} and more use `{best}`: its mean JCT is {costs[0]}, its P95 {costs[2]}, its
    median {costs[1]}, and its futile GPU time {futile}. Below {limit:g} the choice matters less: the surest
    is `{calm}` (mean JCT {eases[0]}), and to avoid is a fixed interval, with which the median is {slow} at
    600 s. (In brackets: 95 % intervals.)"""

CLAIMED: Final = """Go et al., Making Sense of Job Preemption for Distributed Deep Learning Acceleration,
    DAC '26: abstract, sections 3.2 and 5.3. How many times as large we find it, with the 95 % interval.
    *Holds*: the whole interval is at or above what is claimed; *in part*: it is above 1; *no*: it is
    not."""

TABLES: Final = """Ratios to `{base}` (below 1: better than never deferring), geometric means over cells,
    with 95 % intervals; futile GPU time (loads that ended in a preemption) and preemptions are sums.
    `srtf` is not in the tables: it is `{base}`. `srtf:newcomers=every` is what earlier editions of this
    page called srtf: jobs that come back to the queue preempt again, and much of what looked like a
    gain by deferral was that rule."""

MAP: Final = """Lazer against `{base}` on {trace} (8 hosts), load times and arrivals scaled. Futile GPU
    time: {futile}. Mean JCT: {jct}. (By the 95 % interval over windows.)"""

METHOD: Final = """`make results-lazer`: {runs} runs, {minutes:.0f} minutes of processor time. The first
    {jobs:,} jobs of {vcs} Philly VCs that are long enough, on {hosts} hosts of 8 GPUs; true durations
    known to the policies; seed 0. Each cell has {windows} warm windows of {window_jobs} counted jobs,
    before which as many run uncounted, on top of what sjf had left running and waiting
    ([simulator.md](../simulator.md#windows)): by then lazer has done learning in contended cells.
    Intervals are paired block bootstraps: VCs are drawn, in each its cluster sizes, in each its
    windows. Load times are drawn once: they are modelled (`controller/sim/world/overheads.py`), and to
    draw them again says nothing about other jobs. Four windows a cell keep it short; a single cell's
    interval is rough, those over cells are the ones to cite. Generated traces and the search of Fig. 8e
    are left out: [bench-lazer.md](bench-lazer.md) has the latter, and nobody ever ran the former."""
