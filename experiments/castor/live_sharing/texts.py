"""What the page on live sharing says whatever the numbers are.

Rule: a sentence that depends on a result is not here.
"""

from __future__ import annotations

from typing import Final

ANSWER: Final = """\
On two CPU slots, `castor:part=false` brings {jobs} real jobs to a mean completion time (JCT) of
{mine_s:.1f} s: {others}. Two runs of it differ by {noise:.1%}, and a smaller difference counts as none.
{order}"""

AGAINST: Final = "{word} `{other}`'s {theirs_s:.1f} s ({change:+.1%})"

ORDER: Final = """\
The simulator, told what the runs measured, puts {told} of the {sure} pairs of policies that differ by more
than that in their real order; from what was known before the first job arrived, it gets {foreseen} right."""

WHAT: Final = """\
The jobs are real DDP jobs (gloo; {singles} on one device, {gangs} on two), and a slot is one core. The same
arrivals, drawn from seed {seed}, ran under one policy after the other, each in a fresh cluster. They last
{span_s:.0f} s and offer a load of {load:.2f} ({loaded:.2f} with loading). `part=false` is a policy as
published: it does not part pairs that were measured to lose."""

RESULTS: Final = """\
Yield is the training time of all jobs alone divided by the device time with a tenant, loads included. Above
`sjf`'s, sharing got more work out of the devices."""

SLOT: Final = """\
A CPU slot time-slices, so two busy jobs get half a core each and sharing gains only the time in which a job
waits for its input. A GPU has more to share, and more to fight for, so these numbers say nothing about how
fast pairs are on GPUs. What the runs show is the whole chain in real processes: measured profiles, gangs and
split batches beside others, slowdowns learned from step times, and later decisions made with them."""

HOW: Final = """\
`python experiments/castor/live_castor.py` ran the jobs and made this page; `--page-only` makes the page
again from the kept runs. The product's profiler first measured each kind of job alone ({plan_s:.0f} s,
divided among the splits), and each submission came with its profile. Slots declare {memory_mib} MiB: any two
jobs fit, but of two heavy ones one must split its batch. All times are those of the controller's journal."""

TOLD: Final = """\
*Told*: the simulator gets the arrivals, each job's shortest training time alone, its load time in this run,
and the slowdown of each kind of pair as this run measured it. *Foreseen*: it gets only the step times,
loads and duty cycles measured before the first job arrived. The error is |JCT simulated - JCT| / JCT, per
job. The simulator does not know that a loading job slows its neighbour, which lasted {seconds} in these
runs."""

PAIRS: Final = """\
Slowdowns are counted from steps done while no other job came or went. *Gained* is the work done beyond
taking turns, for the share of the time in which both slowdowns of the pair were measured. The last column
divides the JCT of the jobs that joined another under `sjf`, which never shares, by their JCT here."""

BUSY: Final = """\
Other processes had this share of the cores in the runs, in their order: {others}. The jobs' sessions went
first (autogroup niceness -20)."""
