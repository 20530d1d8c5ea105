"""Generated traces that meet what was published about traces whose jobs are not: SYNTHETIC, and they say so.

Rule: a number below is TABLE (published, met exactly or to 0.5 % for every seed), ANCHOR (read off published
figures or data, met roughly) or CHOSEN (nobody published it: no result may hang on it). Nothing was fitted to
jobs of the Helios clusters.

TABLE. Lazer, Table 1: jobs, mean training time and mean time between arrivals of Earth, Saturn and Uranus.
Philly: the 82,247 jobs with clock times (114 s between arrivals); durations after the larger job set of the
artifact of PCS (mean 26,039 s), because those of the former are halved.

The table contradicts itself: Helios covers six months, in which 698 thousand jobs come every 23 s and not
every 80 s, and 329 thousand every 48 s and not every 243 s (Earth fits: 37 s). As published, 512 GPUs (the
cluster of Lazer's simulations) are offered the loads of `Kind.offered_load`: 0.56, 0.33 and 0.19. With load
scales of 80/23 and 243/48 Saturn and Uranus come near 1.

ANCHOR. Median durations: Lazer's median JCT less its median wait (Table 2: 270, 168 and 342 s) is an upper
bound, for loading is part of it. Longest job: 50 days in Helios, 60 in Philly (RLTune, Table 4). Philly's
durations (p90 28,285 s, p99 531,359 s in nine VCs) gave share and spread of the long jobs, its times between
arrivals (quartiles 2, 6, 17 s, p90 127 s, p99 2,404 s) the sweeps, its GPUs (87 % of jobs ask for one, 6 %
for eight or more) its widths. Shapes found on Philly are used for Helios too.

CHOSEN. The daily and weekly cycle, the hourly bursts, GPUs per job in Helios (mean 3.1), users and VCs. GPUs
and durations are independent, which they are not in Philly (weighted by duration its mean is 2.4, not 1.6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.sim.traces.trace import Floats, Labels, Trace, TraceProblem, nearest
from cotenant.controller.trace_names import TITLES

DAY_S: Final = 86_400.0
HOUR_S: Final = 3_600.0
LAZER_GPUS: Final = 512
"""The cluster of Lazer's simulations (section 3.2)."""

LONG_SHARE: Final = 0.08
SHORT_SIGMA: Final = 1.7
LONG_SIGMA: Final = 1.3

SWEEP_MEAN: Final = 7.0
"""Jobs that one user submits together, with the same number of GPUs; geometric."""
SWEEP_GAP_S: Final = 10.0
"""Mean time between them."""
DAILY_SWING: Final = 0.5
BUSIEST_HOUR: Final = 15.0
WEEKEND: Final = 0.6
BURST_SIGMA: Final = 0.8
"""Of the logarithm of the hourly rate, beside the cycles."""
BURST_MEMORY: Final = 0.7
"""Correlation of that from one hour to the next."""

HELIOS_GPUS: Final = {1: 0.70, 2: 0.06, 4: 0.08, 8: 0.12, 16: 0.025, 32: 0.010, 64: 0.005}
PHILLY_GPUS: Final = {1: 0.872, 2: 0.015, 4: 0.055, 8: 0.048, 16: 0.008, 32: 0.002}


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticKind:
    """What a generated trace has to meet."""

    title: str
    jobs: int
    duration_s_mean: float
    duration_s_median: float
    duration_s_max: float
    interarrival_s_mean: float
    gpus: dict[int, float]
    """Share of jobs by GPUs; sums to 1."""
    users: int
    vcs: int

    @property
    def gpus_mean(self) -> float:
        return sum(gpus * share for gpus, share in self.gpus.items())

    def offered_load(self, gpus: int = LAZER_GPUS) -> float:
        """GPU-seconds that arrive / GPU-seconds that the cluster has, in expectation."""
        return self.duration_s_mean * self.gpus_mean / (self.interarrival_s_mean * gpus)


def _helios(name: str, jobs: int, mean_min: float, gap_s: float, *, median_s: float) -> SyntheticKind:
    return SyntheticKind(
        title=TITLES[name],
        jobs=jobs,
        duration_s_mean=mean_min * 60.0,
        duration_s_median=median_s,
        duration_s_max=50 * DAY_S,
        interarrival_s_mean=gap_s,
        gpus=HELIOS_GPUS,
        users=70,
        vcs=16,
    )


KINDS: Final[dict[str, SyntheticKind]] = {
    "earth": _helios("earth", 427_000, 59.5, 39.0, median_s=200.0),
    "saturn": _helios("saturn", 698_000, 72.2, 80.0, median_s=130.0),
    "uranus": _helios("uranus", 329_000, 128.1, 243.0, median_s=260.0),
    "philly": SyntheticKind(
        title=TITLES["philly"],
        jobs=82_247,
        duration_s_mean=26_039.0,
        duration_s_median=1_174.0,
        duration_s_max=60 * DAY_S,
        interarrival_s_mean=114.0,
        gpus=PHILLY_GPUS,
        users=319,
        vcs=15,
    ),
}


class _Stream(IntEnum):
    """The random generators, one per column, so that a change to one column leaves the others as they are.
    Never renumber."""

    SWEEPS = 1
    RATE = 2
    STARTS = 3
    GAPS = 4
    DURATIONS = 5
    GPUS = 6
    USERS = 7


def synthesise(kind: str, *, seed: int, jobs: int | None = None) -> Trace:
    """Generates a trace; with `jobs`, so many over a proportionally shorter time, with the same means.

    The mean of a few thousand jobs hangs on a handful of long ones: durations are scaled until it is met, and
    the median moves with them.

    Raises:
        TraceProblem: an unknown kind, or no jobs.
    """
    if kind not in KINDS:
        hint = nearest(kind, KINDS) or f"there are {', '.join(KINDS)}"
        raise TraceProblem(f"{kind} is no kind of generated trace", hint=hint)
    wanted = KINDS[kind]
    n = wanted.jobs if jobs is None else jobs
    if not 1 <= n <= 10_000_000:
        raise TraceProblem(f"{n} jobs cannot be generated", hint="ask for 1 to 10,000,000")
    if seed < 0:
        raise TraceProblem(f"{seed} is no seed", hint="use 0 or more")
    sweep = _sweeps(n, _random(seed, _Stream.SWEEPS))
    submit_s, order = _arrivals(sweep, wanted.interarrival_s_mean, seed)
    sweep = sweep[order]
    sweeps = int(sweep.max()) + 1
    gpus = _random(seed, _Stream.GPUS).choice([*wanted.gpus], size=sweeps, p=[*wanted.gpus.values()])
    users = _users(sweeps, wanted.users, _random(seed, _Stream.USERS))[sweep]
    return Trace(
        name=f"synthetic-{kind}",
        source=f"generated (seed {seed}) to meet the published means of {wanted.title}: no recorded jobs",
        licence="Apache-2.0",
        synthetic=True,
        submit_s=submit_s,
        duration_s=_durations(n, wanted, _random(seed, _Stream.DURATIONS)),
        gpus=gpus[sweep].astype(np.float64),
        user=Labels(codes=users, names=tuple(f"u{number}" for number in range(wanted.users))),
        vc=Labels(
            codes=(users % wanted.vcs).astype(np.int32),
            names=tuple(f"vc{number}" for number in range(wanted.vcs)),
        ),
        organisation=Labels.none(n),
        model=Labels.none(n),
        gpu_type=Labels.none(n),
        state=Labels.none(n),
        hp=np.zeros(n, np.bool_),
        notes=(f"synthetic: generated with seed {seed}, not recorded anywhere",),
    )


def _random(seed: int, purpose: _Stream) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(purpose),)))


def _sweeps(n: int, random: np.random.Generator) -> NDArray[np.int64]:
    """The sweep of each job, shape (n,), counted from 0."""
    sizes = random.geometric(1.0 / SWEEP_MEAN, size=n)
    ends = np.cumsum(sizes)
    return np.searchsorted(ends, np.arange(n), side="right")


def _arrivals(sweep: NDArray[np.int64], gap_s: float, seed: int) -> tuple[Floats, NDArray[np.int64]]:
    """Whole seconds from 0 in order, with a mean distance of `gap_s`; and which job comes when.

    Sweeps start as a Poisson process whose rate is itself random (doubly stochastic), drawn in a time in
    which the rate is 1 and stretched to the clock by the rate's integral.
    """
    n = len(sweep)
    if n == 1:
        return np.zeros(1), np.zeros(1, np.int64)
    span_s = (n - 1) * gap_s
    passed = np.cumsum(_random(seed, _Stream.STARTS).exponential(size=int(sweep[-1]) + 1))
    hours = np.arange(math.ceil(span_s / HOUR_S) + 1) * HOUR_S
    integral = np.concatenate(([0.0], np.cumsum(_rates(len(hours) - 1, _random(seed, _Stream.RATE)))))
    end = np.interp(span_s, hours, integral)
    starts_s = np.interp(passed * (end / passed[-1]), integral, hours)
    gaps_s = _random(seed, _Stream.GAPS).exponential(SWEEP_GAP_S, size=n)
    since = np.cumsum(gaps_s)
    first = np.searchsorted(sweep, np.arange(int(sweep[-1]) + 1))
    times_s = starts_s[sweep] + since - since[first][sweep]
    order = np.argsort(times_s, kind="stable")
    times_s = times_s[order] - times_s[order[0]]
    return np.round(times_s * (span_s / times_s[-1])), order


def _rates(hours: int, random: np.random.Generator) -> Floats:
    """Relative rate of each hour: a daily and a weekly cycle, times hourly bursts that fade."""
    hour = np.arange(hours)
    daily = 1.0 + DAILY_SWING * np.cos(2.0 * math.pi * (hour - BUSIEST_HOUR) / 24.0)
    weekly = np.where(hour // 24 % 7 >= 5, WEEKEND, 1.0)
    shocks = random.standard_normal(hours) * math.sqrt(1.0 - BURST_MEMORY**2)
    # A moving average over the past day: what is left of an older shock is below 0.1 %.
    burst = np.convolve(shocks, BURST_MEMORY ** np.arange(24))[:hours]
    return np.asarray(daily * weekly * np.exp(BURST_SIGMA * burst), np.float64)


def medians(kind: SyntheticKind) -> tuple[float, float]:
    """Medians of short and long jobs in seconds, such that the mixture has the kind's median and mean.

    Nearly all long jobs lie above the mixture's median, which is therefore a quantile of the short ones.
    """
    quantile = 0.5 / (1.0 - LONG_SHARE)
    # The normal quantile near its middle, two terms of its series.
    centred = math.sqrt(2.0 * math.pi) * (quantile - 0.5)
    z = centred + centred**3 / 6.0
    short_s = kind.duration_s_median / math.exp(SHORT_SIGMA * z)
    short_mean_s = short_s * math.exp(SHORT_SIGMA**2 / 2.0)
    rest_s = kind.duration_s_mean - (1.0 - LONG_SHARE) * short_mean_s
    assert rest_s > 0.0, "the short jobs alone exceed the mean"
    return short_s, rest_s / LONG_SHARE / math.exp(LONG_SIGMA**2 / 2.0)


def _durations(n: int, kind: SyntheticKind, random: np.random.Generator) -> Floats:
    """Whole seconds, at least 1 and at most the kind's longest, with the kind's mean."""
    short_s, long_s = medians(kind)
    long = random.random(n) < LONG_SHARE
    normal = random.standard_normal(n)
    drawn_s = np.where(long, long_s * np.exp(LONG_SIGMA * normal), short_s * np.exp(SHORT_SIGMA * normal))
    durations_s = drawn_s
    scale = 1.0
    for _ in range(50):
        # Both ends cut the mean: scale what is between them until it fits.
        scale *= kind.duration_s_mean / float(np.mean(durations_s))
        durations_s = np.clip(np.round(drawn_s * scale), 1.0, kind.duration_s_max)
        if abs(float(np.mean(durations_s)) / kind.duration_s_mean - 1.0) < 1e-4:
            break
    return durations_s


def _users(sweeps: int, users: int, random: np.random.Generator) -> NDArray[np.int32]:
    """The user of each sweep: shares fall with rank (Zipf), so that a few submit most."""
    shares = 1.0 / np.arange(1, users + 1)
    return random.choice(users, size=sweeps, p=shares / shares.sum()).astype(np.int32)
