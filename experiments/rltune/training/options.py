"""What a training is given: its options, what their presets fix, and the windows of a trace that an order is
trained, chosen and judged on.

Rule: the last tenth of a trace is never read here: the results come from it. The tenth before it chooses
among models and decides whether one is used; everything before that is for training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from cotenant.controller.sim import (
    RunResult,
    Scenario,
    Task,
    TraceProblem,
    Workload,
    run_all,
    scenario,
    windows,
)
from cotenant.controller.training import Backend

TrainingMetric = Literal["wait", "bsld", "jct"]


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of one way to train."""

    warm_start: bool
    """The actor begins as the base order: its logits are fitted to -20 log(time) first."""
    clip: float = 0.2
    actor_rate: float
    critic_rate: float
    iterations_max: int
    """Of each network, over the decisions of an epoch."""
    kl_max: float
    """Above this divergence the actor stays as it is until the next epoch."""
    lam: float = 0.97
    windows: int
    """Of an epoch."""
    decisions: int
    """Drawn from those of an epoch."""
    dense: bool
    """Reward as time passes: minus what all waiting jobs lose meanwhile, over the base's total. Else once, at
    the end: (base - own) / max(base, own, 1)."""


PRESETS: Final[dict[str, Preset]] = {
    "warm": Preset(
        warm_start=True,
        actor_rate=2e-3,
        critic_rate=2e-3,
        iterations_max=20,
        kl_max=0.015,
        windows=16,
        decisions=700,
        dense=True,
    ),
    "paper": Preset(
        warm_start=False,
        actor_rate=3e-4,
        critic_rate=1e-3,
        iterations_max=80,
        kl_max=0.01,
        windows=100,
        decisions=4_000,
        dense=False,
    ),
}
"""`paper`: RLTune section 4, as far as it says; gamma is 1 in both."""


class TrainingOptions(NamedTuple):
    """Everything that the result depends on, the traces apart."""

    traces: tuple[str, ...]
    metric: TrainingMetric = "bsld"
    base: Literal["sjf", "ssf"] = "sjf"
    preset: str = "warm"
    seed: int = 0
    epochs: int = 20
    hosts: int = 8
    gpus_per_host: int = 8
    load: float | None = None
    """Arrivals are moved together or apart until this much work is offered; None: as in the trace."""
    noise: float = 0.0
    limits: bool = False
    window_jobs: int = 256
    validation_windows: int = 12
    """Of each trace, from the part between training and test."""
    backend: Backend = "processes"
    workers: int | None = None
    address: str = ""
    """Of a cluster that runs the rollouts; empty: one is started here."""
    minutes: float | None = None
    """No epoch begins after so long; None: all do."""

    @property
    def key(self) -> str:
        """Trainings with the same key continue each other."""
        same = self._replace(epochs=0, backend="processes", workers=None, address="", minutes=None)
        return repr(same)

    @property
    def estimates(self) -> str:
        return "limit" if self.limits else f"lognormal:{self.noise:g}" if self.noise else "exact"


class EpochTold(NamedTuple):
    """After an epoch (0: before the first)."""

    epoch: int
    epochs: int
    validation: float
    """The metric on the validation windows, over the base's; below 1 it is better."""
    best: float
    kl: float


OnEpoch = Callable[[EpochTold], None]


TRAINED_TO: Final = 0.8
CHOSEN_TO: Final = 0.9


class Part(NamedTuple):
    """A workload whose first `warm` jobs do not count."""

    task: Task
    warm: int


class TraceParts:
    """A trace, with what sjf had running and waiting at any moment of it.

    An order is judged on windows of any trace; `open_for_training` asks for one that is long enough.
    """

    def __init__(self, trace: str, options: TrainingOptions) -> None:
        self.trace = trace
        asked = Scenario(
            trace=trace,
            noise=options.noise,
            limits=options.limits,
            hosts=options.hosts,
            gpus_per_host=options.gpus_per_host,
            pairs="none",
        )
        (whole,) = scenario.tasks(asked, [windows.REFERENCE], [options.seed])
        if options.load is not None:
            times = options.load / whole.workload.offered_load(whole.cluster.gpus)
            whole = replace(whole, workload=replace(whole.workload, submit_s=whole.workload.submit_s / times))
        self.whole = whole
        (run,) = run_all([windows.reference(whole)], workers=1, keep=True)
        assert run.outcome is not None
        self._reference: RunResult = run.outcome
        self._jobs = options.window_jobs

    @classmethod
    def open_for_training(cls, trace: str, options: TrainingOptions) -> TraceParts:
        """Opens a trace that is long enough to draw windows of, and to choose a model by others.

        Raises:
            TraceProblem: the trace has too few jobs for both.
        """
        parts = cls(trace, options)
        jobs = len(parts.whole.workload)
        if (
            jobs * TRAINED_TO < 2 * options.window_jobs
            or jobs * (CHOSEN_TO - TRAINED_TO) < options.window_jobs
        ):
            raise TraceProblem(
                f"{trace}: {jobs:,} jobs are too few to train on windows of {options.window_jobs}",
                hint=f"it takes {10 * options.window_jobs:,}; name a longer trace",
            )
        return parts

    def draw(self, generator: np.random.Generator) -> Part:
        """A window of the training part."""
        last = int(len(self.whole.workload) * TRAINED_TO) - self._jobs
        return self.window_at(int(generator.integers(last + 1)))

    def choose(self, count: int) -> list[Part]:
        """Windows of the part that models are chosen by, evenly spaced; they may overlap."""
        jobs = len(self.whole.workload)
        first, last = int(jobs * TRAINED_TO), int(jobs * CHOSEN_TO) - self._jobs
        return [self.window_at(int(begin)) for begin in np.linspace(first, last, count)]

    def window_at(self, begin: int) -> Part:
        """The window that begins with this job, with the jobs that were there before it."""
        window = windows.TraceWindow(0, begin, begin, begin + self._jobs)
        workload = windows.cut(self.whole.workload, self._reference, window)
        warm = len(workload) - self._jobs
        return Part(replace(self.whole, workload=workload, warm=warm), warm)


def weights_of(workload: Workload, metric: TrainingMetric) -> NDArray[np.float64]:
    """What a second of waiting costs, of each job."""
    if metric == "bsld":
        return 1.0 / np.maximum(workload.duration_s, 10.0)
    return np.ones(len(workload))


def total(outcome: RunResult, metric: TrainingMetric, warm: int = 0) -> float:
    """The metric, summed over the jobs that count."""
    wait_s = outcome.jct_s if metric == "jct" else outcome.wait_s
    if metric == "bsld":
        slowdown = outcome.jct_s / np.maximum(outcome.workload.duration_s, 10.0)
        return float(np.maximum(slowdown, 1.0)[warm:].sum())
    return float(wait_s[warm:].sum())


def ratio(own: Sequence[float], base: Sequence[float]) -> float:
    """The ratio of totals over windows."""
    return sum(own) / max(sum(base), 1e-9)
