"""Which real jobs arrive when: drawn from a seed, before anything is measured. Pure.

Rule: two runs of one schedule differ in nothing but the machine's mood. What a job is stands in `KINDS`; how
many steps make up its length is worked out from what was measured, once, and written down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

SHORTEST_S: Final = 5.0
LONGEST_S: Final = 60.0
BURST_JOBS: Final = (3, 6)
"""Jobs of a burst: at least, and less than."""
BURST_GAP_S: Final = 2.5
"""Mean time between the jobs of a burst: less than a load, so that a newcomer can meet another that loads."""
STEPS_MIN: Final = 20


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A training script of the demo, as it is started here."""

    script: str
    gpus: int
    batch_size: int
    share: float
    """Of the jobs."""


KINDS: Final[Mapping[str, Kind]] = {
    "digits": Kind(script="compute_bound", gpus=1, batch_size=32, share=0.4),
    "sonnets": Kind(script="language_model", gpus=1, batch_size=16, share=0.35),
    "gang": Kind(script="language_model", gpus=2, batch_size=16, share=0.25),
}


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a kind, alone."""

    step_s: float
    tail_s: float
    """Last step done to devices free: the final evaluation, and Python's own end."""
    load_s: float
    pause_s: float

    def steps(self, length_s: float) -> int:
        return max(STEPS_MIN, math.ceil((length_s - self.tail_s) / self.step_s))

    def expected_s(self, steps: int) -> float:
        """Training time past the first step, which is part of the load."""
        return (steps - 1) * self.step_s + self.tail_s


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a schedule."""

    name: str
    kind: str
    at_s: float
    """After the first one's arrival."""
    length_s: float
    """Training time aimed at."""


def draw(seed: int, jobs: int, load: float, kinds_of: Mapping[str, Kind] = KINDS) -> list[Arrival]:
    """Bursts of jobs whose lengths are log-uniform from both ends, short ones more often.

    Args:
        load: offered load aimed at: work that arrives / work that two devices do meanwhile (training alone).
    """
    rng = np.random.default_rng(seed)
    kinds = _kinds(rng, jobs, kinds_of)
    lengths = _lengths(rng, jobs)
    work_s = sum(kinds_of[kind].gpus * length for kind, length in zip(kinds, lengths, strict=True))
    times = _times(rng, jobs, span_s=work_s / (2 * load))
    return [
        Arrival(name=f"{kind}-{i + 1}", kind=kind, at_s=round(at_s, 3), length_s=round(length_s, 1))
        for i, (kind, at_s, length_s) in enumerate(zip(kinds, times, lengths, strict=True))
    ]


def _kinds(rng: np.random.Generator, jobs: int, kinds_of: Mapping[str, Kind]) -> list[str]:
    """Every kind in its share, in random order."""
    shares = np.array([kind.share for kind in kinds_of.values()])
    counts = np.floor(shares * jobs).astype(int)
    counts[0] += jobs - counts.sum()
    listed = [name for name, count in zip(kinds_of, counts, strict=True) for _ in range(count)]
    return [listed[i] for i in rng.permutation(jobs)]


def _lengths(rng: np.random.Generator, jobs: int) -> list[float]:
    """A Pareto tail cut off at both ends (density ~ 1/x^2), one from each of `jobs` equal quantiles."""
    quantiles = (rng.permutation(jobs) + rng.random(jobs)) / jobs
    return [float(SHORTEST_S / (1.0 - q * (1.0 - SHORTEST_S / LONGEST_S))) for q in quantiles]


def _times(rng: np.random.Generator, jobs: int, span_s: float) -> list[float]:
    """Bursts at equal mean distance over the span."""
    sizes: list[int] = []
    while sum(sizes) < jobs:
        sizes.append(min(int(rng.integers(*BURST_JOBS)), jobs - sum(sizes)))
    starts = np.sort(rng.random(len(sizes)))
    starts = (starts - starts[0]) / max(starts[-1] - starts[0], 1e-9) * span_s
    times = [
        start + offset
        for start, size in zip(starts, sizes, strict=True)
        for offset in np.concatenate(([0.0], np.cumsum(rng.exponential(BURST_GAP_S, size - 1))))
    ]
    times.sort()
    return [float(at_s - times[0]) for at_s in times]
