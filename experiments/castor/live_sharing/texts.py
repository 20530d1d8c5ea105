"""What the page on live sharing says whatever the numbers are.

Rule: a sentence that depends on a result is not here.
"""

from __future__ import annotations

from typing import Final

WHAT: Final = """\
{jobs} real DDP jobs (gloo; {singles} on one device, {gangs} on two) on two CPU slots of one core each.
The same arrivals, drawn from seed {seed}, ran under one policy after the other, each time in a fresh
cluster: {policies}. `part=false` is a policy as published, without our parting of pairs that were
measured to lose; the sharing policies are compared in that form. Made by `python
experiments/castor/live_castor.py`; every number, and every sentence that depends on one, is computed."""

OFFERED: Final = """\
Offered load over the {span_s:.0f} s of arrivals: {load:.2f} (training alone, loading not counted),
{loaded:.2f} with it."""

SLOT: Final = """\
A CPU slot time-slices: two jobs that keep a core busy get half of it each, xi is 2 both ways, and
sharing gets no more done than taking turns. What can be gained in work done is the time in which a job
waits for its input. Two busy jobs may still share with profit for the *mean*: beside a long job a short
one ends in twice its own time, where it would have waited for all that the long one has left. That is
what a preemptive policy does by other means, and no merit of the device. A GPU has more to share than
time: two jobs that each leave some of its multiprocessors, memory bandwidth or copy engines idle can
both go on at nearly full pace, and two that fight for the same can lose more than half. None of that is
seen here. A load is different too: importing a framework burns the core here, and slows the co-tenant,
while it leaves a GPU idle."""

SHOWS: Final = """\
What it does show: the whole chain in real processes. Profiles measured beforehand, the duty-cycle rule,
gangs and sub-batches placed beside others, slowdowns measured from the jobs' own step times, later
decisions made with them; and how far the simulator, which runs the same engine, is to be believed."""

HOW: Final = """\
Each kind was measured alone by the product's profiler before anything was scheduled ({plan_s:.0f} s of
steps for each sub-batch), and its profile given with each submission: step time, memory and duty cycle.
Lengths are known to the policies as steps x step time. Slots declare {memory_mib} MiB: room for any two
jobs, but of two heavy ones one must split its batch. All times are those of the controller's journal;
JCT = wait + load + run + pause."""

TOLD: Final = """\
*Told*: the simulator gets the arrivals, how long each job trains alone (the shortest of its times in
runs without sharing: what else ran on the machine can only have made it longer), its load in the run in
question, and xi of each kind of pair as that run measured it (by steps counted, else as the controller
learned it; else from another run, else from the duty-cycle rule). *Foreseen*: only what was known
before the first job arrived: step times, loads and duty cycles of kinds alone. Errors are |JCT
simulated - JCT| / JCT, per job."""

DIFFERENCES: Final = """\
What the simulator does not know: a load slows the co-tenant here and not there; the job that loads is
slowed by it in the measured load only; xi is one number per kind of pair, where a gang and its guest on
one of its devices slow each other by more than their own device; memory (any two jobs fit)."""

ORDER: Final = """\
By mean JCT, live, all runs of a policy counted alike: {live}. {sure} of {pairs} pairs differ by more than
two runs of one policy do ({noise:.1%})."""

NOISE: Final = """\
Two runs of `{policy}` differ by {mean:.1%} in mean JCT and {makespan:.1%} in makespan; job by job the
median difference is {median:.1%}, P90 {p90:.1%}: the noise."""

AGAINST: Final = """\
Over castor's {runs}, the mean JCT is {word} that of `{other}`: {mine_s:.1f} against {theirs_s:.1f} s
({change:+.1%}); {sooner} of {jobs} jobs ended sooner, and worst off is {worst} ({worst_s:+.0f} s).
Makespan {makespan_s:.0f} against {their_makespan_s:.0f} s ({later:+.1%})."""

BUSY: Final = """\
Processes that were no part of it had this share of the cores in the runs, in their order: {others}. The
runs' own sessions went before others (autogroup niceness -20), so that those got mostly what the jobs
left idle; caches and memory they still shared."""

GAINED: Final = """\
{all_s:.0f} s of pairs training together, {share:.0%} of it with xi measured both ways: worth
{gained_s:+.0f} s of work beyond taking turns."""

BENEFIT: Final = """\
Sharing benefit (eq. 24: JCT had it waited / JCT) of the {guests} guests in the simulation: median
{median:.2f}, mean {mean:.2f}."""

GUESTS: Final = """\
Live, the {guests} guests' JCT under sjf, which never shares, / here: median {median:.2f}, mean
{mean:.2f}."""

PAIRS: Final = """\
*Learned*: what the controller had of each kind beside the other in the end, from the jobs' step times
over those of the profile, or of when they last ran alone. They are medians over the last reports, and
count only when no co-tenant has begun to train, or left, for some seconds: jobs this short give few.
*Counted*: from steps done while nobody else came or went, over the kind's steps in the runs without
sharing, counted likewise (medians). There a step took {slower:.2f} times what the profile said (median
over kinds), which makes *learned* higher. Benefit: 1 / xi of the one + 1 / xi of the other - 1, work
done beyond taking turns, from what was counted, else learned; within {even:g} of 0 it counts as even."""

YIELD: Final = """\
Yield: training time alone of all jobs / device time with a tenant, loads included: above that of sjf,
sharing got more done with the devices; below it, less."""

WHY: Final = """\
The same arrivals, lengths and loads (those of the run under fifo, where no co-tenant slows a load),
simulated in worlds that differ in xi alone. srtf preempts; it is here to tell what order is worth from
what sharing is. The last column is a device on which two busy jobs lose by sharing, as some do on GPUs;
on a core only those do that stream through memory ([bench-live-pairs.md](bench-live-pairs.md))."""

LOADS: Final = """\
How much the first is: live, jobs trained beside one that loaded for {seconds} in all, of {runs} (a
job's mean: {means})."""
