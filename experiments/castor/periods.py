"""The busiest period of a trace, and samples of it, which experiments of a few hundred jobs are run on.

Source: Castor section 9.1 "randomly sample[s] 240 jobs from the busiest period" of a trace and says neither
how long a period is nor what busy means. Our rule: the period has a given length on the trace's clock and
begins at a submission. Of those with at least `jobs` submissions it is the one to which most GPU time was
submitted, a job's time counted up to the period's length: else one job of a month would make its period the
busiest. The sample is drawn from the period's jobs, each as likely, and keeps their order and times. So with
twice as many jobs from one period the load doubles, which is how Castor's Fig. 16 scales it.
"""

from __future__ import annotations

import numpy as np

from cotenant.controller.sim import Trace, TraceProblem

SAMPLE_STREAM = 5
"""The stream of a seed that samples are drawn from, one of those in `sim/preparing.py`."""


def busiest(trace: Trace, *, span_s: float, jobs: int) -> Trace:
    """The jobs of the busiest period of `span_s` seconds with at least `jobs` of them; of equals the first.

    The trace must be on one clock and in order of submission, as traces are. A part of a GPU counts as a
    whole one.

    Raises:
        TraceProblem: no such period has so many jobs, or the arguments make no sense.
    """
    if not span_s > 0.0 or jobs < 1:
        raise TraceProblem(
            f"a period of {span_s:g} s with {jobs} jobs makes no sense", hint="use more of both"
        )
    first = np.arange(len(trace))
    end = np.searchsorted(trace.submit_s, trace.submit_s + span_s, side="left")
    gpu_s = np.ceil(trace.gpus) * np.minimum(trace.duration_s, span_s)
    before = np.concatenate(([0.0], np.cumsum(gpu_s)))
    work = np.where(end - first >= jobs, before[end] - before[first], -1.0)
    if not len(trace) or work.max() < 0.0:
        most = int((end - first).max(initial=0))
        raise TraceProblem(
            f"{trace.name}: no period of {span_s / 3600:g} h has {jobs:,} submissions",
            hint=f"the fullest has {most:,}: ask for fewer, or for a longer period",
        )
    start = int(work.argmax())
    return trace.take(np.arange(start, int(end[start])))


def sample(trace: Trace, *, jobs: int, seed: int) -> Trace:
    """Draws so many of a trace's jobs, without replacement, and keeps them in their order.

    The jobs of a smaller sample are among those of a larger one of the same seed.

    Raises:
        TraceProblem: it has fewer.
    """
    if not 1 <= jobs <= len(trace):
        raise TraceProblem(f"{trace.name}: no sample of {jobs:,} jobs can be drawn from {len(trace):,}")
    drawn = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(SAMPLE_STREAM,)))
    order = drawn.permutation(len(trace))
    return trace.take(np.sort(order[:jobs]))
