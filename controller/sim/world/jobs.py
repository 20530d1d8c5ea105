"""What the engine learns of the jobs and hosts of a simulated world: specs and reports from columns. Rule: a
spec is made when its job arrives, and holds nothing of the truth. The engine gets the expected length, twice:
in seconds, and as steps of `STEP_S`, with a profile of one point that says what a step takes, or neither
(`knowledge.py`). So progress, lost work and what is left count in steps, as in production.

Some jobs ask for a promise as they arrive: the earliest end that can be promised, by the engine itself. Rule:
a job that asks and gets none runs like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from cotenant.controller.domain import Device, DeviceId, HostId, HostReport, JobId, JobSpec, Launch, Reason
from cotenant.controller.engine import Engine
from cotenant.controller.knowledge import PairTable
from cotenant.controller.performance import Profile, ProfilePoint
from cotenant.controller.sim.world.outcome import cells
from cotenant.controller.sim.world.physics import RatioRows
from cotenant.controller.sim.world.workload import (
    Cluster,
    HostAsk,
    Seconds,
    SimulatedHost,
    SimulatedSubmission,
    Workload,
)

STEP_S: Final = 0.001
STEPS_PER_S: Final = 1000.0
NO_ASKS: Final = HostAsk()
NO_COMMAND: Final = SimulatedSubmission(())
DOMAIN: Final = "shared"
"""Every host sees every checkpoint."""


def host_reports(cluster: Cluster, max_tenants: int, *, divides: bool = False) -> tuple[HostReport, ...]:
    """What the hosts of a cluster say when they join; `divides`: their devices can be divided."""
    width = len(str(cluster.hosts - 1))
    alike = SimulatedHost(cluster.gpus_per_host, cluster.gpu_type, 1, 0)
    shapes = cluster.shapes or (alike,) * cluster.hosts
    return tuple(
        _host(cluster, HostId(f"h{n:0{width}}"), shape, max_tenants, divides)
        for n, shape in enumerate(shapes)
    )


def _host(
    cluster: Cluster, host_id: HostId, shape: SimulatedHost, max_tenants: int, divides: bool
) -> HostReport:
    width = len(str(shape.gpus - 1))
    devices = tuple(
        Device(
            device_id=DeviceId(f"{host_id}/{n:0{width}}"),
            host_id=host_id,
            kind="cuda",
            type=shape.gpu_type,
            local=str(n),
            memory_mib=cluster.memory_mib,
            max_tenants=max_tenants,
            divides=divides,
        )
        for n in range(shape.gpus)
    )
    return HostReport(
        host_id=host_id,
        devices=devices,
        cpus=shape.cpus,
        memory_mib=shape.main_memory_mib,
        address="10.0.0.1",
        checkpoint_domain=DOMAIN,
    )


def known_pairs(workload: Workload, specs: Specs, ratios: RatioRows) -> PairTable:
    """The world's ratios as if they had been measured beforehand: for each model at each width."""
    table = PairTable()
    kinds = sorted({*zip(workload.model.tolist(), workload.gpus.tolist(), strict=True)})
    for model, gpus in kinds:
        for other, other_gpus in kinds:
            table.know(specs.kind(model, gpus), specs.kind(other, other_gpus), ratios[model][other])
    return table


class RowSpecs(Protocol):
    """Says what arrives, row by row."""

    def spec(self, row: int) -> JobSpec: ...

    @property
    def row_of(self) -> Callable[[JobId], int]: ...


class Specs:
    """Makes the spec of each row; what many rows have in common is made once."""

    def __init__(self, workload: Workload, cluster: Cluster) -> None:
        # As many jobs as a device may hold fit on it: traces say nothing about memory.
        point = ProfilePoint(
            sub_batch=1,
            accumulation_steps=1,
            step_s=STEP_S,
            memory_mib=cluster.memory_mib // cluster.max_tenants,
        )
        unprofiled = Profile(points=(point,), source="the world's step")
        known = [
            Profile(points=(point,), duty_cycle=u, source="the world's step") for u in workload.duty_cycles
        ]
        # By model; the last is that of jobs without one.
        self._profiles = [*(known or [unprofiled] * len(workload.models)), unprofiled]
        self._launches = [*(Launch.make_counted(model) for model in workload.models), Launch.make_counted()]
        self._organisations = [*workload.organisations, ""]
        self._gpus = cells(workload.gpus)
        self._expected_s = cells(workload.time_on_fewest_s(workload.expected_s))
        self._scaled = {
            speedups: tuple((devices, STEP_S / pace) for devices, pace in enumerate(speedups, 1))
            for speedups in dict.fromkeys(workload.speedups)
        }
        self._speedups, self._fractions = workload.speedups, workload.fractions
        self._asks = workload.asks
        self._submissions = workload.submissions
        self._ids = job_ids(workload.submissions)
        self._load_s = cells(workload.load_s)
        self._pause_s = cells(workload.pause_s)
        self._model = cells(workload.model)
        self._hp = cells(workload.hp)
        self._organisation = cells(workload.organisation)
        self._is_told = workload.knowledge.known == "exact"
        self._resumable = workload.knowledge.is_complete or None
        self._budget_s = workload.knowledge.budget_s
        rows = {job_id: row for row, job_id in enumerate(self._ids)}
        self.row_of: Callable[[JobId], int] = rows.__getitem__ if rows else int

    def kind(self, model: int, gpus: int) -> JobSpec:
        """What jobs of a model and width have in common, for measurements of pairs."""
        return JobSpec(job_id=JobId(""), gpus_min=gpus, gpus_max=gpus, launch=self._launches[model])

    def spec(self, row: int) -> JobSpec:
        gpus, expected_s = self._gpus[row], self._expected_s[row]
        profile = self._profiles[self._model[row]]
        if self._speedups:
            known = self._scaled[self._speedups[row]]
            profile = msgspec.structs.replace(profile, steps_by_devices=known)
        fraction = self._fractions[row] if self._fractions else 1.0
        asks = self._asks[row] if self._asks else NO_ASKS
        as_what = self._submissions[row] if self._submissions else NO_COMMAND
        return JobSpec(
            job_id=self._ids[row] if self._ids else JobId(str(row)),
            user=as_what.user,
            array_limit=as_what.array_limit,
            organisation=self._organisations[self._organisation[row]],
            job_class="hp" if self._hp[row] else "spot",
            gpus_min=1 if self._speedups else gpus,
            gpus_max=gpus,
            gpu_type=asks.gpu_type,
            cpus=asks.cpus,
            host_memory_mib=asks.main_memory_mib,
            iterations=steps_in(expected_s) if self._is_told else None,
            expected_s=expected_s if self._is_told else None,
            load_s=self._load_s[row],
            pause_s=self._pause_s[row],
            budget_s=self._budget_s,
            resumable=self._resumable,
            gpu_fraction=fraction,
            profile=profile if fraction == 1.0 else _device_part_profile(profile, fraction),
            launch=Launch.make_counted(*as_what.argv) if as_what.argv else self._launches[self._model[row]],
        )


def job_ids(submissions: Sequence[SimulatedSubmission]) -> tuple[JobId, ...]:
    """The id of each row: its number; of a task, that of its array's first row, and its place in the array.
    Empty where nothing was submitted as a command."""
    tasks = dict[str, list[int]]()
    for row, each in enumerate(submissions):
        tasks.setdefault(each.array or str(row), []).append(row)
    ids = {
        row: JobId(f"{rows[0]}_{place}" if submissions[row].array else str(row))
        for rows in tasks.values()
        for place, row in enumerate(rows)
    }
    return tuple(ids[row] for row in range(len(submissions)))


def steps_in(length_s: float) -> int:
    """Steps of a job that trains so long, alone."""
    return round(length_s * STEPS_PER_S) or 1


def _device_part_profile(profile: Profile, fraction: float) -> Profile:
    """A job on a part of a device needs no more than that of its memory."""
    points = tuple(
        msgspec.structs.replace(point, memory_mib=float(int(point.memory_mib * fraction)))
        for point in profile.points
    )
    return msgspec.structs.replace(profile, points=points)


STREAM: Final = 7
"""Of the seed: see `preparing.Stream`."""


def draw_asking_rows(jobs: int, share: float, seed: int) -> frozenset[int]:
    """The rows that ask."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"the share of jobs that ask for a promise must be 0 to 1, got {share:g}")
    if not share:
        return frozenset()
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM,)))
    return frozenset(np.flatnonzero(generator.random(jobs) < share).tolist())


class AskingSpecs:
    """Specs of a workload, some with a promised end."""

    engine: Engine

    def __init__(self, specs: RowSpecs, asks: Collection[int], submit_s: Seconds | Any) -> None:
        self._specs, self._asks, self._submit_s = specs, asks, submit_s
        self._told_s: list[float] = []
        self._refused: dict[str, int] = {}

    @property
    def row_of(self) -> Callable[[JobId], int]:
        return self._specs.row_of

    def spec(self, row: int) -> JobSpec:
        spec = self._specs.spec(row)
        if row not in self._asks:
            return spec
        now_s = float(self._submit_s[row])
        found = self.engine.promises.offer((spec,), now_s)
        if isinstance(found, Reason):
            self._refused[found.code] = self._refused.get(found.code, 0) + 1
            return spec
        self._told_s.append(found[0] - now_s)
        return msgspec.structs.replace(spec, promised_s=found[0])

    def result(self) -> dict[str, Any]:
        """Counts of the promises asked for, given, kept and broken, for a summary."""
        saved, given = self.engine.promises.saved, len(self._told_s)
        return {
            "asked": given + sum(self._refused.values()),
            "given": given,
            "refused": dict(sorted(self._refused.items())),
            "kept": saved.kept,
            "broken": saved.broken,
            "open": given - saved.kept - saved.broken - saved.void,
            "told_s_mean": sum(self._told_s) / given if given else None,
        }
