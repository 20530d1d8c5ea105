"""What docs/results/lazer.md says beside its numbers: templates, filled from the runs.

Rule: a sentence that depends on a number has the number in braces, or is not here.
"""

from __future__ import annotations

import textwrap
from typing import Any, Final

WIDTH: Final = 118


def said(template: str, **values: Any) -> str:
    """A paragraph, filled and broken into lines."""
    return textwrap.fill(" ".join(template.split()).format(**values), WIDTH, break_on_hyphens=False)


HEAD: Final = """Made by `make results-lazer`; every number, and every sentence that depends on one, is
    computed from the runs. Paper: {source}."""

REAL: Final = """The first {jobs:,} jobs of each VC (all of it where it has fewer), 8 hosts of 8 GPUs,
    true durations known to the policies. Ratios are to lazer (above 1: lazer is better), geometric means
    over the VCs, with the 95 % interval over seeds in brackets. A seed draws model classes, so load and
    pause times; arrivals, lengths and GPUs are the trace's."""

ACROSS: Final = (
    "policy", "median JCT", "P95 JCT", "mean JCT", "waiting P50, P95 (s, mean of VCs)", "preemptions",
    "futile", "futile GPU-h",
)  # fmt: skip

SYNTHETIC: Final = """{jobs:,} generated jobs each, on {hosts} hosts of 8 GPUs ({seeds}; the seed
    generates the trace as well). They meet the paper's Table 1 in means, and nobody ever ran them: the
    paper's own traces are not to be had. Ratios to lazer, ours beside the paper's."""

BESIDE: Final = (
    "policy", "median JCT: min", "/ lazer", "paper", "P95 JCT / lazer", "paper", "waiting P95: min",
    "futile P95, hit jobs: s",
)  # fmt: skip

POPULATIONS: Final = """Load time that ended in a preemption, seconds a job: P50, P95 and mean over all
    jobs, over those that waited, and over those with at least one futile preemption; means of the traces.
    The paper does not say which it reports; a median over all jobs is above 0 only where half of all jobs
    are hit."""

OPTIONS: Final = """{vcs} VCs at 1x ({seeds}). JCT relative to srtf (below 1: better than srtf), futile GPU
    time in per cent of srtf's. Lazer defers newcomers only. What is left with `protect_loading`, which
    keeps jobs that load out of the choice, against what is left with the other readings, says how much of
    the futile time is such choices."""

SENSITIVITY: Final = """The first {jobs:,} jobs of {trace}, one thing changed at a time ({seeds}). Bands
    in the plots are 95 % intervals."""

REGIME: Final = """Lazer against srtf on {jobs:,} generated jobs (SYNTHETIC, like earth), {hosts} hosts of
    8 GPUs, load times and arrival rates scaled. First on the same cluster, so that the load grows with
    the rate; then on a cluster that grows with the rate, so that only the times between arrivals shrink.
    Per cent that lazer's number is above (+) or below (-) srtf's."""

VERDICT: Final = """Lazer's {what} ({words}, {seeds}): more than {limit:g} % lower in {better} of {cells}
    cells, higher in {worse}, within {limit:g} % in {equal}; at best {least:+.1f} % (load times x
    {scale:g}, arrivals x {rate:g}), at worst {most:+.1f} %."""

EFFICIENCY: Final = """The least f(X|c) found so far by the predictor, random and grid search over
    {budget} searches, means over {seeds} seeds, on contexts recorded in simulated runs and on a
    documented synthetic process; measured by `bench/lazer_decision.py`. The least f ever seen says little
    where F is often 0 (one lucky X = F = 0 ends the race), so the mean f while searching and the mean f
    of what was learned are given as well."""

SEARCHES: Final = (
    "contexts", "F above 0", "method", "least f (s)", "mean f, searching (s)", "mean f, afterwards (s)",
)  # fmt: skip

HOW: Final = """`make results-lazer`: {runs:,} runs. Load and pause times come from the simulator's table
    of seven model classes (modelled, not measured: `controller/sim/world/overheads.py`); pairs do not matter,
    since none of these policies shares devices. Intervals are Student's, 95 %, over seeds; with one seed
    there is none."""
