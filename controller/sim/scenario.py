"""Everything in a comparison except the policies: trace, window, cluster, physics, failures.

Rule: every run of a comparison gets the same workload object for the same seed, prepared once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from cotenant.controller.domain import texts
from cotenant.controller.engine import models_offered
from cotenant.controller.policies import registry
from cotenant.controller.sim.choices import PolicyChoice
from cotenant.controller.sim.compare import Task
from cotenant.controller.sim.preparing import prepare
from cotenant.controller.sim.speedups import curve_scaled_workload, elastic_workload, measured_speedups
from cotenant.controller.sim.traces.reading import read
from cotenant.controller.sim.traces.trace import Trace, TraceProblem
from cotenant.controller.sim.world.knowledge import COMPLETE, Knowledge
from cotenant.controller.sim.world.overheads import launch_overheads
from cotenant.controller.sim.world.physics import Failures, PairData, Physics, pair_data
from cotenant.controller.sim.world.workload import Cluster, Workload
from cotenant.controller.trace_names import SYNTH

SYNTH_JOBS: Final = 20_000
"""Jobs of `synth:NAME` where it names no number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A scenario as asked for on a command line; times in seconds unless said otherwise."""

    trace: str
    """A file, a bundled name, or `synth:NAME[:JOBS]`."""
    format: str = "auto"
    vc: str | None = None
    from_s: float | None = None
    jobs: int | None = None
    load_scale: float = 1.0
    """Times between arrivals are divided by it."""
    noise: float = 0.0
    limits: bool = False
    """Policies get time limits as people write them, in place of expected times with an error."""
    knowledge: Knowledge = COMPLETE
    load_time_scale: float = 1.0
    launch: Literal["warm", "cold"] = "cold"
    pairs: str = "gavel-v100"
    xi: str = "learned"
    """What policies know of pairs beforehand (`Physics.xi`)."""
    on_preempt: Literal["save", "lose"] = "save"
    """Whether preempted jobs save their state, or begin again."""
    share_max: float = 0.0
    """The bound on what sharing may cost any job; 0 = none."""
    share_hp: float = 0.0
    """The bound of jobs of class hp, which then share under policies with classes too; 0 = they do not."""
    failures_mtbf_h: float | None = None
    """Mean time between failures of each host, in hours; None = nothing fails."""
    trim: float = 0.0
    """Share of the jobs at the beginning, and at the end, that run and are not counted."""
    windows: int = 0
    """Compare on so many warm windows of the trace, not on all of it (`windows.py`)."""
    window_jobs: int = 256
    """Jobs that count in each."""
    eta: bool = False
    """Tell intervals at submissions, and compare them with what comes."""
    promise_share: float = 0.0
    """The share of jobs, drawn, that ask for a promise of the earliest end possible."""
    hosts: int = 8
    gpus_per_host: int = 8
    world: Literal["devices", "elastic"] = "devices"
    """elastic: jobs take more and fewer devices under policies that give them so."""

    def __post_init__(self) -> None:
        if self.limits and self.noise:
            raise ValueError("estimates are either limits or wrong by a lognormal factor, not both")
        if self.knowledge.known != "exact" and (self.noise or self.limits):
            raise ValueError(
                "there are no estimates unless --known is exact: leave --noise, --estimate-noise out"
            )
        if self.world == "elastic" and self.knowledge.budget_s is not None:
            raise ValueError("the length of elastic jobs is not on their devices: leave --budget out")
        if self.world == "elastic" and (self.windows or self.eta):
            raise ValueError("there are no windows, and no ETAs, of elastic jobs: leave --windows, --eta out")
        if not 0.0 <= self.promise_share <= 1.0:
            raise ValueError(
                f"the share of jobs that are promised an end is 0 to 1, got {self.promise_share:g}"
            )
        if self.xi not in (known := ("learned", "measured", *models_offered())):
            raise ValueError(f"--xi must be one of {', '.join(map(repr, known))}, got {self.xi!r}")
        if self.windows and self.trim:
            raise ValueError("windows leave out jobs by themselves: --trim does not go with --windows")
        if self.failures_mtbf_h is not None and not 0.0 < self.failures_mtbf_h < math.inf:
            raise ValueError(f"hosts must fail after a time above 0 h, got {self.failures_mtbf_h:g}")
        if not 0.0 <= self.trim < 0.5:
            raise ValueError(
                f"the share of jobs left out at each end must be 0 to below 0.5, got {self.trim:g}"
            )
        if not 0.0 <= self.load_time_scale <= 1e6:
            raise ValueError(f"the scale of load times must be 0 or more, got {self.load_time_scale:g}")

    @property
    def cluster(self) -> Cluster:
        return Cluster(hosts=self.hosts, gpus_per_host=self.gpus_per_host)

    @property
    def failures(self) -> Failures | None:
        return (
            None if self.failures_mtbf_h is None else Failures(mean_between_s=self.failures_mtbf_h * 3600.0)
        )

    def options(self) -> dict[str, Any]:
        """The options for a result: all that was asked for, the trace and the cluster apart."""
        # Results from before these options existed still compare.
        unsaid = {"launch": "cold", "limits": False, "on_preempt": "save", "world": "devices", "eta": False}
        unsaid |= {"promise_share": 0.0, "share_max": 0.0, "share_hp": 0.0}
        unasked = [name for name, default in unsaid.items() if getattr(self, name) == default]
        apart = ("trace", "hosts", "gpus_per_host", "knowledge", *unasked)
        asked = {key: value for key, value in dataclasses.asdict(self).items() if key not in apart}
        return asked | self.knowledge.options()


def open_trace(
    name: str, *, format: str = "auto", seed: int = 0, columns: Mapping[str, str] | None = None
) -> Trace:
    """Opens the trace of a file, a bundled name, or `synth:NAME[:JOBS]`, which the seed generates.

    Raises:
        TraceProblem: no such trace, or something is wrong in it.
    """
    if not name.startswith(SYNTH):
        return read(name, format=format, columns=columns)
    from cotenant.controller.sim.traces.synth import synthesise

    like, _, count = name.removeprefix(SYNTH).partition(":")
    if count and not texts.is_whole_number(count):
        raise TraceProblem(f"{count!r} is not a number of jobs", hint="write synth:earth:20000")
    return synthesise(like, seed=seed, jobs=int(count) if count else SYNTH_JOBS)


def tasks(scenario: Scenario, policies: Sequence[PolicyChoice], seeds: Sequence[int]) -> list[Task]:
    """A run for each policy and seed; seeds in order, the policies within each.

    Raises:
        TraceProblem: the trace, or what was asked of it.
        ValueError: the table of pairs.
    """
    physics = Physics(
        pairs=scenario.pairs,
        xi=scenario.xi,
        on_preempt=scenario.on_preempt,
        share_max=scenario.share_max,
        share_hp=scenario.share_hp,
    )
    table = pair_data(scenario.pairs)
    fixed = None if scenario.trace.startswith(SYNTH) else open_trace(scenario.trace, format=scenario.format)
    made: list[Task] = []
    for seed in seeds:
        trace = fixed if fixed is not None else open_trace(scenario.trace, seed=seed)
        workload = workload_of(scenario, trace, table, seed)
        resized = elastic_workload(workload) if scenario.world == "elastic" else workload
        made += [
            Task(
                policy=policy,
                seed=seed,
                workload=resized if resizes(policy) else workload,
                cluster=scenario.cluster,
                physics=physics,
                failures=scenario.failures,
                trim=scenario.trim,
                eta=scenario.eta,
                promise_share=scenario.promise_share,
            )
            for policy in policies
        ]
    return made


def resizes(policy: PolicyChoice) -> bool:
    """Whether it gives elastic jobs more and fewer devices; under others each runs on all it asks for."""
    return registry.is_ours(policy.name) and registry.make(policy.name, policy.parameters).traits.resizes


def workload_of(scenario: Scenario, trace: Trace, table: PairData | None, seed: int) -> Workload:
    by_model = scenario.world == "elastic"
    workload = prepare(
        trace,
        cluster=scenario.cluster,
        seed=seed,
        vc=scenario.vc,
        from_s=scenario.from_s,
        jobs=scenario.jobs,
        load_scale=scenario.load_scale,
        noise=scenario.noise,
        limits=scenario.limits,
        knowledge=scenario.knowledge,
        overheads=launch_overheads(scenario.launch, scenario.load_time_scale),
        models=_models(
            trace, tuple(measured_speedups()) if by_model else () if table is None else table.models()
        ),
    )
    return curve_scaled_workload(workload) if by_model else workload


def _models(trace: Trace, known: tuple[str, ...]) -> tuple[str, ...]:
    """Models for the jobs of a trace that has none, or none that has been measured."""
    own = {name.partition(":")[0] for name in trace.model.names}
    return () if own & set(known) else known
