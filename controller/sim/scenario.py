"""Everything in a comparison except the policies: trace, window, cluster, physics, failures.

Rule: every run of a comparison gets the same workload object for the same seed, prepared once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from cotenant.controller.domain import texts
from cotenant.controller.engine import models_offered
from cotenant.controller.flags import Declared
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
from cotenant.controller.trace_names import SYNTH, names_beginning

SYNTH_JOBS: Final = 20_000
"""Jobs of `synth:NAME` where it names no number."""


EXCLUDED: Final = (
    ("limits", ("noise",), "estimates are either limits or wrong by a lognormal factor, not both"),
    (
        "untold",
        ("noise", "limits"),
        "there are no estimates unless --known is exact: leave --noise, --estimate-noise out",
    ),
    ("elastic", ("budget",), "the length of elastic jobs is not on their devices: leave --budget out"),
    (
        "elastic",
        ("windows", "eta"),
        "there are no windows, and no ETAs, of elastic jobs: leave --windows, --eta out",
    ),
    ("windows", ("trim",), "windows leave out jobs by themselves: --trim does not go with --windows"),
)
"""What cannot be asked for together with what, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A scenario as asked for on a command line; times in seconds unless said otherwise. A field that has a
    flag says it beside its type; on a command line the fields stand in this order."""

    trace: Annotated[
        str,
        Declared(
            metavar="TRACE",
            help="A file, a bundled name (`cotenant sim trace list`) or synth:NAME[:JOBS].",
            complete=names_beginning,
        ),
    ]
    format: Annotated[str, Declared(("--format",), "NAME", "Of the file, if not recognised.")] = "auto"
    vc: Annotated[str | None, Declared(("--vc",), "ID", "Only this virtual cluster.")] = None
    jobs: Annotated[int | None, Declared(("--jobs",), "N", "Only the first N jobs.")] = None
    from_s: Annotated[
        float | None, Declared(("--from-s",), "S", "Only jobs submitted at or after S seconds.")
    ] = None
    hosts: Annotated[int, Declared(("--hosts",), "H", "Hosts.", min=1, max=100_000)] = 8
    gpus_per_host: Annotated[
        int, Declared(("--gpus-per-host",), "G", "GPUs of each host.", min=1, max=1_024)
    ] = 8
    load_scale: Annotated[float, Declared(("--load-scale",), "F", "F times as many arrivals per hour.")] = 1.0
    """Times between arrivals are divided by it."""
    noise: Annotated[
        float,
        Declared(("--noise",), "SIGMA", "Error of expected durations: lognormal, median 1, this sigma."),
    ] = 0.0
    limits: bool = False
    """Policies get time limits as people write them, in place of expected times with an error."""
    knowledge: Knowledge = COMPLETE
    load_time_scale: Annotated[float, Declared(("--load-time-scale",), "F", "Load times times F.")] = 1.0
    launch: Annotated[
        Literal["warm", "cold"],
        Declared(("--launch",), "warm|cold", "Load times of warm starts, or of cold ones (default)."),
    ] = "cold"
    pairs: Annotated[
        str,
        Declared(
            ("--pairs",),
            "gavel-v100|gavel-p100|gavel-k80|FILE|none",
            "How much jobs slow each other down; none: devices are not shared.",
        ),
    ] = "gavel-v100"
    xi: Annotated[
        str,
        Declared(
            ("--xi",),
            "learned|measured|NAME",
            "What policies know of the pairs beforehand; NAME: an installed interference model.",
        ),
    ] = "learned"
    on_preempt: Annotated[
        Literal["save", "lose"],
        Declared(
            ("--on-preempt",),
            "save|lose",
            "What a preempted job does: save its state (default), or begin again.",
        ),
    ] = "save"
    share_max: Annotated[
        float,
        Declared(
            ("--share-max",),
            "X",
            "Sharing may cost no job more than X times its step time alone: co-tenants wait (0: no bound).",
        ),
    ] = 0.0
    share_hp: Annotated[
        float,
        Declared(
            ("--share-hp",),
            "X",
            "Jobs of class hp share, at no more than X times their step time alone (0: no such bound).",
        ),
    ] = 0.0
    """With a bound, jobs of class hp share under policies with classes too."""
    failures_mtbf_h: Annotated[
        float | None,
        Declared(("--failures",), "MTBF_H", "Each host fails every MTBF_H hours on average."),
    ] = None
    trim: Annotated[
        float,
        Declared(
            ("--trim",), "F", "The first and the last F of the jobs (0.1: a tenth) run and are not counted."
        ),
    ] = 0.0
    windows: int = 0
    """Compare on so many warm windows of the trace, not on all of it (`windows.py`)."""
    window_jobs: int = 256
    """Jobs that count in each."""
    eta: Annotated[
        bool,
        Declared(("--eta",), help="Tell when jobs end as they are submitted, and say how right that was."),
    ] = False
    promise_share: Annotated[
        float,
        Declared(
            ("--promise-share",),
            "F",
            "F of the jobs (0.1: a tenth), drawn, ask to be promised an end; counts kept and broken ones.",
        ),
    ] = 0.0
    world: Annotated[
        Literal["devices", "elastic"],
        Declared(
            ("--world",),
            "devices|elastic",
            "elastic: max-min, afs-l, themis and pcs:elastic=true resize jobs.",
        ),
    ] = "devices"

    def __post_init__(self) -> None:
        asked = {
            "limits": self.limits,
            "noise": self.noise,
            "untold": self.knowledge.known != "exact",
            "elastic": self.world == "elastic",
            "budget": self.knowledge.budget_s is not None,
            "windows": self.windows,
            "eta": self.eta,
            "trim": self.trim,
        }
        for one, others, why in EXCLUDED:
            if asked[one] and any(asked[other] for other in others):
                raise ValueError(why)
        if not 0.0 <= self.promise_share <= 1.0:
            raise ValueError(
                f"the share of jobs that are promised an end is 0 to 1, got {self.promise_share:g}"
            )
        if self.xi not in (known := ("learned", "measured", *models_offered())):
            raise ValueError(f"--xi must be one of {', '.join(map(repr, known))}, got {self.xi!r}")
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
        first = dict.fromkeys(("format", "vc", "from_s", "jobs"))  # In this order in results.
        return first | asked | self.knowledge.options()


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
