"""A generated workload of two classes, hp and spot, like that of GFS: SYNTHETIC, and it says so.

    python -m experiments.gfs.spot spot.csv.gz --spot-scale 4 --days 5 --seed 7

The job table of GFS's trace is not published. What is:

TABLE (met by construction; section 4.1 and Table 3 of the paper, April to June 2024, 2,296 A100): 138,403 hp
and 26,635 spot tasks in 91 days, GPUs of a pod, share of gangs. Mean run time: JCT less JQT in Table 5.

ANCHOR (met roughly; aggregates of the released trace): median run times of A100 tasks, pods of a gang (1.38
per hp task on average), arrivals by the hour of the day, and that spot gangs are shorter than other spot
tasks: the GPU-seconds of a spot task are .54 of its mean GPUs times its mean run time. Of the released
trace's A100, .76 are requested on average, with a deviation of .16; here hp offers .71 and spot .06 at
scale 1, for which hp pods of 8 run longer. Changes from hour to hour are a third larger than in the
released series. Organisations have the released trace's shares of A100-seconds; all have the one shape of a
day, as in section 3.2.1 ("all display a diurnal periodicity"): by organisation none was released.

CHOSEN (nobody published it: no result may hang on it): the shape of run times between median and longest,
30 days as the longest, the weekend, and that a task's owner says nothing of its width (released: 15.4 GPUs
per task in the largest organisation, 1.4 in the next). Owners drawn by such widths change what eq. 9 of GFS
adds to total demand by less than a point of 18 % after two weeks, by 5 of 23 % on day 2. Table 5's 99th
percentile (29,305 s at a mean of 17,777 s) contradicts the released trace's median (1,872 s) and is not met.

The workload is stationary from its first second: tasks that arrived in the 30 days before and still run are
submitted at 0 with what is left of them.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.offline.options import SeedFlag
from cotenant.controller.cli.offline.trace import FileArgument, ForceFlag, write
from cotenant.controller.papers.gfs.forecast import Floats
from cotenant.controller.sim import Labels, Trace, TraceProblem
from cotenant.controller.whatif.choices import convert_errors
from experiments.shared import program

PROGRAM: Final = "python -m experiments.gfs.spot"
LOADS: Final = {"gfs": 1.0, "gfs-2x": 2.0, "gfs-4x": 4.0}
"""The three workloads of GFS: how often spot tasks come."""

DAY_S: Final = 86_400.0
HOUR_S: Final = 3_600.0
SOURCE_DAYS: Final = 91
GPUS: Final = 2_296
"""287 hosts of 8 A100."""
DURATION_S_MAX: Final = 30 * DAY_S
DAYS_MAX: Final = 120
SPOT_SCALE_MAX: Final = 16.0

HP_GANG_PODS: Final = {2: 0.36, 3: 0.13, 4: 0.15, 7: 0.21, 13: 0.12, 26: 0.03}
SPOT_GANG_PODS: Final = {2: 0.337, 3: 0.118, 4: 0.135, 7: 0.192, 13: 0.107, 26: 0.076, 52: 0.024, 92: 0.011}
"""Share of gangs by pods: ranges of the released histogram at their means, those above 128 left out; for hp
fewer wide ones."""
BY_HOUR: Final = (
    22_451, 15_929, 14_089, 13_387, 12_921, 14_128, 14_232, 15_038, 15_945, 16_972, 25_057, 25_735,
    19_770, 19_276, 25_304, 25_039, 27_015, 25_376, 20_016, 21_189, 21_885, 19_162, 18_813, 18_138,
)  # fmt: skip
"""Tasks submitted by hour of the day."""
WEEKEND: Final = 0.65
ORGANISATION_SHARES: Final = (
    0.3725,
    0.1858,
    0.0890,
    0.0749,
    0.0695,
    0.0420,
    0.0235,
    0.0216,
    0.0206,
    0.0190,
    0.0187,
    0.0117,
    0.0512,
)
"""Of A100-seconds: the twelve largest organisations of the released trace, and its 27 others as one: its
GPU-seconds by organisation times each one's share on A100."""
ORGANISATIONS: Final = len(ORGANISATION_SHARES)
USERS_EACH: Final = 8
LONG_SHARE: Final = 0.12
SHORT_SIGMA: Final = 1.6
LONG_SIGMA: Final = 0.9
FRACTION: Final = 0.5
"""GPUs of a task that asks for less than one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskClass:
    """What the tasks of one class have to meet."""

    hp: bool
    per_day: float
    gpus_of_pod: dict[float, float]
    """Share of tasks by GPUs of a pod; sums to 1."""
    gang_share: float
    gang_pods: dict[int, float]
    """Share of gangs by pods; sums to 1."""
    duration_s_mean: float
    duration_s_median: float
    gang_duration_ratio: float = 1.0
    """Mean run time of gangs / of other tasks."""
    whole_host_duration_ratio: float = 1.0
    """Mean run time of tasks with pods of 8 GPUs / of others."""

    def duration_s_of(self, *, gang: bool, whole_host: bool) -> float:
        """Mean run time, such that the class's own mean comes out."""
        gangs = 1.0 - self.gang_share * (1.0 - self.gang_duration_ratio)
        hosts = 1.0 - self.gpus_of_pod[8] * (1.0 - self.whole_host_duration_ratio)
        longer = (self.gang_duration_ratio if gang else 1.0) * (
            self.whole_host_duration_ratio if whole_host else 1.0
        )
        return self.duration_s_mean / gangs / hosts * longer

    @property
    def gpu_seconds_mean(self) -> float:
        """The GPU seconds of a task, in expectation."""
        found = 0.0
        for gpus, share in self.gpus_of_pod.items():
            for pods, likely in ({1: 1.0 - self.gang_share} | self._shares_of_gangs()).items():
                mean_s = self.duration_s_of(gang=pods > 1, whole_host=gpus == 8)
                found += share * likely * gpus * pods * mean_s
        return found

    def _shares_of_gangs(self) -> dict[int, float]:
        return {pods: self.gang_share * share for pods, share in self.gang_pods.items()}

    @property
    def offered_load(self) -> float:
        """GPU-seconds that arrive / GPU-seconds of the cluster, in expectation."""
        return self.per_day * self.gpu_seconds_mean / (DAY_S * GPUS)


HP: Final = TaskClass(
    hp=True,
    per_day=138_403 / SOURCE_DAYS,
    gpus_of_pod={FRACTION: 0.0011, 1: 0.5530, 2: 0.1337, 4: 0.0753, 8: 0.2369},
    gang_share=0.0866,
    gang_pods=HP_GANG_PODS,
    duration_s_mean=17_749.0,
    duration_s_median=1_872.0,
    whole_host_duration_ratio=1.7,
)
SPOT: Final = TaskClass(
    hp=False,
    per_day=26_635 / SOURCE_DAYS,
    gpus_of_pod={FRACTION: 0.0082, 1: 0.6747, 2: 0.0567, 4: 0.1200, 8: 0.1404},
    gang_share=0.2726,
    gang_pods=SPOT_GANG_PODS,
    duration_s_mean=10_115.0,
    duration_s_median=1_728.0,
    gang_duration_ratio=0.27,
)


class _Stream(IntEnum):
    """The random generators, one per column and class, so that a change to one leaves the others as they are.
    Never renumber."""

    ARRIVALS = 1
    GPUS = 2
    PODS = 3
    DURATIONS = 4
    OWNERS = 5


def synthesise_spot(*, seed: int, days: float = 5.0, spot_scale: float = 1.0) -> Trace:
    """Tasks of `days` days and those that run at their beginning, for 287 hosts of 8 devices.

    Hp tasks of a seed are the same at every `spot_scale`, which multiplies the arrivals of spot tasks.

    Raises:
        TraceProblem: a number out of range.
    """
    if not 0.0 < days <= DAYS_MAX:
        raise TraceProblem(
            f"{days:g} days cannot be generated", hint=f"ask for more than 0, at most {DAYS_MAX}"
        )
    if not 0.0 <= spot_scale <= SPOT_SCALE_MAX:
        raise TraceProblem(
            f"spot tasks cannot be scaled by {spot_scale:g}",
            hint=f"use 0 to {SPOT_SCALE_MAX:g}; GFS has 1, 2 and 4",
        )
    if seed < 0:
        raise TraceProblem(f"{seed} is no seed", hint="use 0 or more")
    classes = [_tasks(each, days, scale, seed) for each, scale in ((HP, 1.0), (SPOT, spot_scale))]
    submit_s, duration_s, gpus, organisation, user, hp = (
        np.concatenate(columns) for columns in zip(*classes, strict=True)
    )
    order = np.argsort(submit_s, kind="stable")
    n, present = len(order), int(np.count_nonzero(submit_s == 0.0))
    names = tuple(f"org{number}" for number in range(ORGANISATIONS))
    return Trace(
        name="synthetic-gfs",
        source=f"generated (seed {seed}) to meet what GFS publishes of its trace: no recorded tasks",
        licence="Apache-2.0",
        synthetic=True,
        submit_s=submit_s[order],
        duration_s=duration_s[order],
        gpus=gpus[order],
        user=Labels(
            codes=user[order], names=tuple(f"u{number}" for number in range(ORGANISATIONS * USERS_EACH))
        ),
        vc=Labels.none(n),
        organisation=Labels(codes=organisation[order], names=names),
        model=Labels.none(n),
        gpu_type=Labels.none(n),
        state=Labels.none(n),
        hp=hp[order],
        notes=(
            f"synthetic: generated with seed {seed}, not recorded anywhere",
            f"load on 287 hosts of 8: hp {HP.offered_load:.2f}, spot {SPOT.offered_load * spot_scale:.2f}",
            f"{present:,} tasks are submitted at 0: they run already, and what is left of them counts",
        ),
    )


def _random(seed: int, purpose: _Stream, hp: bool) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(purpose), int(hp))))


def _tasks(
    kind: TaskClass, days: float, scale: float, seed: int
) -> tuple[Floats, Floats, Floats, NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
    """Submission, run time, GPUs, organisation, user, whether hp: shape (tasks,), in order of submission."""
    arrivals_s = _arrivals(kind.per_day * scale, days, _random(seed, _Stream.ARRIVALS, kind.hp))
    n = len(arrivals_s)
    of_pod = _random(seed, _Stream.GPUS, kind.hp).choice(
        [*kind.gpus_of_pod], size=n, p=[*kind.gpus_of_pod.values()]
    )
    random = _random(seed, _Stream.PODS, kind.hp)
    gang = random.random(n) < kind.gang_share
    pods = np.where(gang, random.choice([*kind.gang_pods], size=n, p=[*kind.gang_pods.values()]), 1)
    gpus = np.where(of_pod < 1.0, of_pod, of_pod * pods)  # A part of a device is one pod.
    means_s = np.zeros(n)
    for is_gang, is_whole in product((False, True), repeat=2):
        rows = (gang == is_gang) & ((of_pod == 8) == is_whole)
        means_s[rows] = kind.duration_s_of(gang=is_gang, whole_host=is_whole)
    duration_s = _durations(means_s, kind, _random(seed, _Stream.DURATIONS, kind.hp))
    random = _random(seed, _Stream.OWNERS, kind.hp)
    organisation = random.choice(ORGANISATIONS, size=n, p=ORGANISATION_SHARES)
    user = organisation * USERS_EACH + random.integers(USERS_EACH, size=n)
    left_s = np.where(arrivals_s < 0.0, np.ceil(arrivals_s + duration_s), duration_s)
    here = left_s > 0.0
    return (
        np.maximum(arrivals_s, 0.0)[here],
        left_s[here],
        gpus[here].astype(np.float64),
        organisation[here].astype(np.int32),
        user[here].astype(np.int32),
        np.full(int(here.sum()), kind.hp),
    )


def _arrivals(per_day: float, days: float, random: np.random.Generator) -> Floats:
    """Whole seconds from 30 days before 0 on, in order: a Poisson process whose rate has a day and a week."""
    before = math.ceil(DURATION_S_MAX / HOUR_S)
    hours = np.arange(-before, math.ceil(days * 24.0))
    daily = np.asarray(BY_HOUR, np.float64)[hours % 24]
    weekly = np.where(hours // 24 % 7 >= 5, WEEKEND, 1.0)
    rate = daily * weekly
    week = np.arange(7 * 24)
    rate *= (
        per_day
        / 24.0
        / float(np.mean(np.asarray(BY_HOUR, np.float64)[week % 24] * np.where(week // 24 >= 5, WEEKEND, 1.0)))
    )
    counts = random.poisson(rate)
    times_s = (np.repeat(hours, counts) + random.random(int(counts.sum()))) * HOUR_S
    times_s = np.sort(np.floor(times_s))
    return times_s[times_s < days * DAY_S]


def _durations(means_s: Floats, kind: TaskClass, random: np.random.Generator) -> Floats:
    """Whole seconds, from 1 to the longest: a few long tasks beside many short ones, with these means."""
    long = random.random(len(means_s)) < LONG_SHARE
    normal = random.standard_normal(len(means_s))
    short_s, long_s = _medians(kind)
    drawn_s = np.where(long, long_s * np.exp(LONG_SIGMA * normal), short_s * np.exp(SHORT_SIGMA * normal))
    return np.clip(np.round(drawn_s * means_s / kind.duration_s_mean), 1.0, DURATION_S_MAX)


def _medians(kind: TaskClass) -> tuple[float, float]:
    """Medians of short and of long tasks, such that the mixture has the class's median and mean."""
    quantile = 0.5 / (1.0 - LONG_SHARE)  # Nearly all long ones lie above the mixture's median.
    centred = math.sqrt(2.0 * math.pi) * (quantile - 0.5)
    short_s = kind.duration_s_median / math.exp(SHORT_SIGMA * (centred + centred**3 / 6.0))
    rest_s = kind.duration_s_mean - (1.0 - LONG_SHARE) * short_s * math.exp(SHORT_SIGMA**2 / 2.0)
    assert rest_s > 0.0, "the short tasks alone exceed the mean"
    return short_s, rest_s / LONG_SHARE / math.exp(LONG_SIGMA**2 / 2.0)


# --- On a command line ---------------------------------------------------------------------------------


def spot(
    file: FileArgument,
    days: Annotated[float, option("--days", metavar="D", help="Days of submissions.")] = 5.0,
    spot_scale: Annotated[
        float, option("--spot-scale", metavar="S", help="How often spot tasks come.")
    ] = 1.0,
    seed: SeedFlag = 0,
    force: ForceFlag = False,
) -> None:
    """Generate jobs of two classes for 287 hosts of 8 devices, those included that run at the beginning.

    \b
    For example:
      python -m experiments.gfs.spot spot.csv.gz --spot-scale 4 --days 5
      cotenant sim compare spot.csv.gz --policies gfs,gfs-rise --hosts 287
    """
    with convert_errors():
        made = synthesise_spot(seed=seed, days=days, spot_scale=spot_scale)
    write(made, file, force)


if __name__ == "__main__":
    sys.exit(program.run(spot, PROGRAM))
