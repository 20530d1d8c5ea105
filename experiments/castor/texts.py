"""What results/castor.md says beside its numbers: templates, filled from the runs.

Rule: a sentence that depends on a number has it in braces, or is chosen by it.
"""

from __future__ import annotations

from typing import Final

HEAD: Final = """Castor section 9.4, in simulation: the published policies and ours on samples of real
    traces, slowdowns of pairs from a measured table. Made by `make results-castor`; every number, and every
    sentence that depends on one, is computed. The paper's numbers: {source}."""

LIVE: Final = """26 real jobs that share CPU slots, under fifo, sjf-ffs and castor side by side with the
    simulator's prediction: [live-castor.md](live-castor.md). Nothing on this page was measured on devices but
    the table of pairs, and that by its authors on V100s."""

BESIDE: Final = """The throughput model is in [throughput.md](throughput.md), what a decision costs in
    [bench-castor.md](bench-castor.md)."""

SAMPLES: Final = """The paper samples 240 jobs "from the busiest period" of a trace and does not say what that
    is. Here it is, for each VC, the {philly_h:g} h ({venus_h:g} h for Venus, whose week would be too calm)
    that begin at a submission, have at least {large} submissions, and to which most GPU time was submitted,
    a job's time counted up to the period's length (`controller/sim/windows.py`). A seed draws {small} or
    {large} of the period's jobs, each as likely, in their order, and each job's model: one of the {models}
    of Gavel's table, each as likely. Philly runs on {philly_hosts} hosts of {philly_gpus} GPUs, Venus on
    its own {venus_hosts} of {venus_gpus}. VCs where {small} jobs are an offered load below {least:g} are
    left out: with hardly anybody waiting all policies are alike. Lengths are known to the policies, as in
    the paper; load and pause times are the simulator's modelled ones. Traces say nothing of memory, so
    every two jobs fit and gradient accumulation is never needed."""

COMPARED: Final = """Ratios to castor as published (`part=false`; above 1: castor is better), geometric means
    over the VCs, with the 95 % interval over seeds in brackets; slowdowns of pairs known beforehand
    (`--xi measured`). Beside them the paper's: of its simulation of 240 jobs, makespan of its testbed.
    A ratio of waiting says little where hardly anybody waits. Busy: share of GPU time with a tenant, loading
    ones too. Yield: work done / that time, above 1 where sharing gets more done than it and loads cost.
    Benefit: median over guests (eq. 24). Shared: jobs that ever did. The last four are means of VCs and
    seeds (benefit: with guests)."""

COLUMNS: Final = (
    "policy", "mean JCT", "paper", "median JCT", "makespan", "paper", "mean waiting", "paper", "busy",
    "yield", "benefit", "shared",
)  # fmt: skip

LEARNED: Final = """What if nobody knows the pairs? Then every pair is taken to be slowed {default:g} times
    both ways until it has shared, and what was seen corrects it (`--xi learned`). JCT with pairs learned /
    with pairs known; above 1: not knowing costs."""

PREDICTED: Final = """How well slowdowns are predicted of pairs that nobody has measured: the interference
    model, trained and judged on another public table, each pair left out in turn, and what it leans on. Its
    numbers, other tables and what an error means for decisions are in
    [castor-predictor.md](castor-predictor.md)."""

BY_SIZE: Final = """Waiting by GPUs of the job, mean and median over its class in hours (mean over VCs and
    seeds), {small} jobs, pairs known. The paper's large jobs are those of more than 8 GPUs; its columns for
    large and small add up to that for all, so they are parts of the mean and not means of their own."""

LOADS: Final = """As in Fig. 16: {counts} jobs of the same period. Mean and median JCT (mean over VCs and
    seeds; bands in the plots are 95 % intervals), and how much the number grows from {first:g}x to {last:g}x
    (geometric mean over VCs)."""

TABLE_OF_PAIRS: Final = """In the table, over all pairs of the {models} models, two that share run at
    {each:.2f} of their own pace on average and get {both:.2f} times as much done as taking turns; {worse:.0f}
    % of the pairs get less done. The paper's pairs were measured on its own testbed and are not published."""

LUCID: Final = """Lucid packs by labels: at least {tiny:g} of one's own pace beside others is light (0), at
    least {medium:g} medium (1), less heavy (2), and two labels may sum up to {labels_max}. In this table the
    models' mean paces are {slowest:.2f} to {fastest:.2f}: {light} of {models} are light, {heavy} heavy. With
    pairs known it let {shared:.0f} % of the jobs share ({learned:.0f} % with pairs learned); where it shares
    none it is ssf. The paper's Lucid shared, on other pairs."""

WAIT_OF_ONE: Final = """Theorem 1 holds sharing against waiting until this partner ends, and looks at these
    two jobs only. castor-cost holds it against the real wait, and castor (ours) parts pairs that turned out
    to lose. Mean JCT / that of castor as published: {told}."""

LAST: Final = """How far a makespan is the doing of the last long job: had no job ever waited, the last would
    have ended after {least:.0f} to {most:.0f} % of sjf's makespan (by ground, means). No order of jobs can do
    better than that, and a guest beside such a job can only make it later. On the paper's testbed jobs run
    200 to 2,000 iterations: far less spread."""

TAILS: Final = """The {percent:.0f} % of jobs that run longest make {low:.0f} to {high:.0f} % of the sum of
    all JCTs under castor (by VC, size and seed). A mean is what happens to them; medians stand beside means
    for that."""

HOW: Final = """{runs:,} runs, {seeds}. Intervals are Student's, 95 %, over seeds; a seed draws the jobs of
    the sample as well as their models, and ratios compare runs of the same seed. Fewer than {wanted} seeds
    mean that the runs were stopped; calling it again goes on."""
