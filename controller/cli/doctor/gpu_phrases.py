"""How `doctor` speaks of several GPUs at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.controller.cli.doctor.check import Check, DoctorFacts, Verdict
from cotenant.controller.cli.doctor.enabling import EnablingStep
from cotenant.profiler.driver.facts import GpuFacts


def answering(facts: DoctorFacts) -> list[GpuFacts]:
    return [gpu for gpu in facts.driver.gpus if not gpu.problem]


def uuids_of(some: Sequence[GpuFacts]) -> tuple[str, ...]:
    return tuple(gpu.uuid for gpu in some)


def ranged(some: Sequence[GpuFacts]) -> str:
    """`0`, `0 to 7`, or `0, 2, 5`: the indices of a group."""
    indices = [gpu.index for gpu in some]
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]} to {indices[-1]}"
    return ", ".join(map(str, indices))


def numbers(some: Sequence[GpuFacts]) -> str:
    return "GPU " + ", ".join(str(gpu.index) for gpu in some)


def all_of(some: Sequence[GpuFacts]) -> str:
    return "this GPU" if len(some) == 1 else f"all {len(some)} GPUs"


def checked(name: str, verdict: Verdict, found: str, step: EnablingStep) -> Check:
    return Check(name, verdict, found, step.todo, step.command)
