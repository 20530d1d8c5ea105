"""The real jobs that are run under castor and the others: what they are, and what each was measured to need.

Rule: jobs of one kind have one command, as a user's have who starts the same training again: how long one
trains, and how slow its storage is, stands in its environment. So what is learned of one holds for others.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.cli.demo.measuring import job_environment
from cotenant.controller.cli.demo.plan import CHECKPOINT_SLACK_MIB, WORKLOADS
from cotenant.controller.domain.ids import JobId
from cotenant.controller.domain.job import JobSpec, Launch
from cotenant.controller.domain.perf import Profile, duty_cycle_rule
from cotenant.profiler.ranks import RankCommand, Seat
from cotenant.profiler.run import RunPlan
from cotenant.profiler.solo import measure_solo
from experiments.shared.live.schedule import Arrival, Kind, Pace

KINDS: Final[Mapping[str, Kind]] = {
    "digits": Kind(script="compute_bound", gpus=1, batch_size=32, share=0.16),
    "sonnets": Kind(script="language_model", gpus=1, batch_size=16, share=0.2),
    "files": Kind(script="loader_bound", gpus=1, batch_size=32, share=0.2),
    "starved": Kind(script="loader_bound", gpus=1, batch_size=32, share=0.16),
    "heavy": Kind(script="memory_heavy", gpus=1, batch_size=128, share=0.08),
    "gang": Kind(script="language_model", gpus=2, batch_size=16, share=0.12),
    "file-gang": Kind(script="loader_bound", gpus=2, batch_size=32, share=0.08),
}
ABOUT: Final[Mapping[str, str]] = {
    "digits": "a small residual network, data in memory",
    "sonnets": "a small language model, data in memory",
    "files": "a convolution on image files, each of which is waited for (256 KiB/s)",
    "starved": "the same, from a link of 32 KiB/s",
    "heavy": "few weights, large activations",
    "gang": "the language model on two devices",
    "file-gang": "files on two devices",
}
ENVIRONMENT: Final[Mapping[str, dict[str, str]]] = {"starved": {"DEMO_LINK_KIB_PER_S": "32"}}
ENDLESS: Final = "1000000"
PLAN: Final = RunPlan(
    accumulation_steps=(2, 1), warm_up_steps=2, steps_min=8, measured_s_min=4.0, deadline_s=60.0
)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One kind, alone, as the product's profiler measured it before anything was scheduled."""

    profile: Profile
    notes: tuple[str, ...]

    @property
    def pace(self) -> Pace:
        """The training's own end was not measured, nor a pause."""
        point, load_s = self.profile.at(1), self.profile.load_s
        assert point is not None and load_s is not None, f"not measured: {self.notes}"
        return Pace(step_s=point.step_s, tail_s=0.0, load_s=load_s, pause_s=0.0)

    def memory_mib(self, s: int) -> float:
        point = self.profile.at(s)
        assert point is not None, f"not measured with s = {s}: {self.notes}"
        return point.memory_mib

    @property
    def duty_cycle(self) -> float:
        assert self.profile.duty_cycle is not None, f"no duty cycle: {self.notes}"
        return self.profile.duty_cycle


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What every run has in common."""

    seed: int
    load: float
    schedule: tuple[Arrival, ...]
    measured: dict[str, Measured]


def measure(
    kinds: Sequence[str], slots: Sequence[Sequence[int]], say: Callable[[str], None]
) -> dict[str, Measured]:
    """Each kind alone; those of one device side by side, each on cores of its own."""
    singles = [kind for kind in kinds if KINDS[kind].gpus == 1]
    rounds = [singles[i : i + len(slots)] for i in range(0, len(singles), len(slots))]
    rounds += [[kind] for kind in kinds if KINDS[kind].gpus > 1]
    found: dict[str, Measured] = {}
    with ThreadPoolExecutor(len(slots)) as pool:
        for names in rounds:
            width = KINDS[names[0]].gpus
            places = [slots[i : i + width] for i in range(0, len(slots), width)]
            for name, one in zip(names, pool.map(_measure, names, places[: len(names)]), strict=True):
                found[name] = one
                say(in_words(name, one))
    return found


def _measure(name: str, slots: Sequence[Sequence[int]]) -> Measured:
    command = RankCommand(argv=argv_of(name), workdir=str(WORKLOADS), env=environment(name, ENDLESS))
    run = measure_solo(command, [Seat(cores=tuple(cores)) for cores in slots], plan=PLAN)
    return Measured(profile=run.profile(KINDS[name].batch_size), notes=run.notes)


def in_words(name: str, one: Measured) -> str:
    noted = f" ({'; '.join(one.notes)})" if one.notes else ""
    return (
        f"{name:<9} {one.pace.step_s * 1e3:6.1f} ms a step, busy {one.duty_cycle:4.0%}, "
        f"{one.memory_mib(1):.0f} MiB, with half its batch {one.memory_mib(2):.0f} MiB{noted}"
    )


def argv_of(name: str) -> tuple[str, ...]:
    """Without length: the same for all jobs of a kind."""
    kind = KINDS[name]
    return ("python", f"{kind.script}.py", "--batch-size", str(kind.batch_size), "--seed", seed_of(name))


def seed_of(name: str) -> str:
    """Tells kinds apart that differ in nothing else that a command says."""
    return str(list(KINDS).index(name))


def environment(name: str, steps: str) -> dict[str, str]:
    known = job_environment()
    path = os.pathsep.join([str(Path(sys.executable).parent), known.get("PATH", "")])
    assert shutil.which("python", path=path), f"no python beside {sys.executable}"
    return {**known, "PATH": path, "DEMO_STEPS": steps, **ENVIRONMENT.get(name, {})}


def spec_of(arrival: Arrival, measured: Mapping[str, Measured]) -> JobSpec:
    kind, known = KINDS[arrival.kind], measured[arrival.kind]
    steps = known.pace.steps(arrival.length_s)
    return JobSpec(
        job_id=JobId("new-0"),
        name=arrival.name,
        gpus_min=kind.gpus,
        gpus_max=kind.gpus,
        batch_size=kind.batch_size,
        iterations=steps,
        profile=known.profile,
        resumable=True,
        launch=Launch(
            argv=argv_of(arrival.kind), workdir=str(WORKLOADS), env=environment(arrival.kind, str(steps))
        ),
    )


def slot_memory_mib(measured: Mapping[str, Measured]) -> int:
    """What each CPU slot declares: room for any two jobs, but of two heavy ones one must split its batch."""
    heaviest, *others = sorted(measured.values(), key=lambda one: -one.memory_mib(1))
    beside = max([heaviest.memory_mib(2), *(one.memory_mib(1) for one in others)])
    return round(heaviest.memory_mib(1) + beside + CHECKPOINT_SLACK_MIB)


def rule_xi(one: Measured, other: Measured) -> float:
    """The duty-cycle rule, which is what is believed of a pair before it was seen."""
    return duty_cycle_rule(one.profile, other.profile).first
