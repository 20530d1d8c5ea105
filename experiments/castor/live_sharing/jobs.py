"""The real jobs that are run under castor and the others: what they are, and what each was measured to need.

Rule: jobs of one kind have one command, as a user's have who starts the same training again: how long one
trains, and how slow its storage is, stands in its environment. So what is learned of one holds for others.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.host.locks import LOCK_DIR_ENV
from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.cli.demo.measuring import job_environment, measure_profiles
from cotenant.controller.cli.demo.plan import CHECKPOINT_SLACK_MIB, WORKLOADS
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, JobSpec, Launch
from cotenant.controller.performance import Profile, duty_cycle_rule
from experiments.shared.live.run import DEVICES, WARM_STEPS, warm_up_each
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
PROFILE_S: Final = 20.0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One kind, alone, as the product's profiler measured it before anything was scheduled."""

    profile: Profile
    notes: tuple[str, ...] = ()
    """What disturbed it, where that was recorded."""
    whole: Pace | None = None
    """Where a job of it was run to its end, preempted once."""

    @property
    def pace(self) -> Pace:
        """As a whole run measured it; without one, the training's own end was not measured, nor a pause."""
        if self.whole is not None:
            return self.whole
        point, load_s = self.profile.point_at(1), self.profile.load_s
        assert point is not None and load_s is not None, f"not measured: {self.notes}"
        return Pace(step_s=point.step_s, tail_s=0.0, load_s=load_s, pause_s=0.0)

    def memory_mib(self, s: int) -> float:
        point = self.profile.point_at(s)
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


def measure(kinds: Sequence[str], say: Callable[[str], None], *, to_end: bool = False) -> dict[str, Measured]:
    """Each kind alone on its slots; first those of one slot, side by side. `to_end`: also as a whole run.

    Raises:
        NotMeasured: one of them did not get on.
    """
    with tempfile.TemporaryDirectory(prefix="cotenant-live-") as name:
        os.environ[LOCK_DIR_ENV] = f"{name}/locks"
        with PrivateCluster(Path(name), f"cpu:{DEVICES}", profile_s=PROFILE_S) as cluster:
            found = measure_profiles(
                cluster,
                [_job(kind, kind, ENDLESS) for kind in sorted(kinds, key=lambda kind: KINDS[kind].gpus)],
                lambda kind, profile: say(in_words(kind, Measured(profile=profile))),
            )
            whole = {}
            if to_end:
                with Client(cluster.endpoint) as client:
                    whole = warm_up_each(client, {kind: _warm_up_spec(kind) for kind in kinds}, say)
    return {kind: Measured(profile=found[kind], whole=whole.get(kind)) for kind in kinds}


def _warm_up_spec(kind: str) -> JobSpec:
    """Of another length than the others: its environment then is one of its own, as that of each job is, so
    that its first load is a cold one, as theirs are."""
    steps = WARM_STEPS + list(KINDS).index(kind)
    spec = _job(f"warm-{kind}", kind, str(steps))
    return msgspec.structs.replace(spec, iterations=steps, share="never", resumable=True)


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
    known = measured[arrival.kind]
    steps = known.pace.steps(arrival.length_s)
    return msgspec.structs.replace(
        _job(arrival.name, arrival.kind, str(steps)),
        iterations=steps,
        profile=known.profile,
        resumable=True,
    )


def _job(name: str, kind: str, steps: str) -> JobSpec:
    gpus, batch_size = KINDS[kind].gpus, KINDS[kind].batch_size
    launch = Launch(argv=argv_of(kind), workdir=str(WORKLOADS), env=environment(kind, steps))
    return JobSpec(
        job_id=JobId("new-0"), name=name, gpus_min=gpus, gpus_max=gpus, batch_size=batch_size, launch=launch
    )


def slot_memory_mib(measured: Mapping[str, Measured]) -> int:
    """What each CPU slot declares: room for any two jobs, but of two heavy ones one must split its batch."""
    heaviest, *others = sorted(measured.values(), key=lambda one: -one.memory_mib(1))
    beside = max([heaviest.memory_mib(2), *(one.memory_mib(1) for one in others)])
    return round(heaviest.memory_mib(1) + beside + CHECKPOINT_SLACK_MIB)


def rule_xi(one: Measured, other: Measured) -> float:
    """The duty-cycle rule, which is what is believed of a pair before it was seen."""
    return duty_cycle_rule(one.profile, other.profile).first
