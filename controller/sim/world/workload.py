"""What a simulated cluster is given to do: the jobs, in columns, and the cluster itself.

Rule: a workload is a value. Everything random about it (models, estimates, chosen window) was drawn from its
seed when it was made, so two policies that get the same workload get the same jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.sim.world.knowledge import COMPLETE, Knowledge

Seconds = NDArray[np.float64]


class SimulatedHost(NamedTuple):
    """The description of a host that is not like all others."""

    gpus: int
    gpu_type: str
    cpus: int
    main_memory_mib: int


class HostAsk(NamedTuple):
    """What a job asks for of each of its hosts, and of which type its GPUs are to be (empty: any)."""

    gpu_type: str = ""
    cpus: int = 0
    main_memory_mib: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Hosts on one network, which see one file system of checkpoints; equal ones, if no shapes are given."""

    hosts: int
    gpus_per_host: int
    memory_mib: int = 81_920
    max_tenants: int = 2
    gpu_type: str = "gpu"
    shapes: tuple[SimulatedHost, ...] = ()
    """Of each host."""

    def __post_init__(self) -> None:
        if self.hosts < 1 or self.gpus_per_host < 1 or self.max_tenants < 1 or self.memory_mib < 1:
            raise ValueError(f"a cluster needs at least one host, GPU and tenant, got {self}")
        if self.shapes and len(self.shapes) != self.hosts:
            raise ValueError(f"{len(self.shapes)} shapes of {self.hosts} hosts")

    @property
    def gpus(self) -> int:
        return sum(shape.gpus for shape in self.shapes) or self.hosts * self.gpus_per_host


class SimulatedSubmission(NamedTuple):
    """How a job was submitted: by whom, as which command, and as a task of which array."""

    argv: tuple[str, ...]
    user: str = ""
    array: str = ""
    """The tasks of one array have the same word; empty: the job is no task."""
    array_limit: int = 0
    """So many tasks of the array may wait for devices or have them at once; 0: all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSource:
    """Where jobs in columns come from."""

    name: str
    synthetic: bool = False
    """Whether any job was generated: said wherever results are shown."""
    job_ids: tuple[str, ...] = ()
    """The source's own; empty = the row's number, from 0."""
    submissions: tuple[SimulatedSubmission, ...] = ()
    """Of each job; empty: no job has a command, and jobs of one model are of one kind."""
    excluded: Mapping[str, int] = field(default_factory=dict)
    """Rows of the source that are no jobs here: reason -> count."""


COLUMNS_PER_JOB: Final = (
    "submit_s", "duration_s", "expected_s", "gpus", "load_s", "pause_s", "model", "hp", "organisation"
)  # fmt: skip
SAID_PER_JOB: Final = ("job_ids", "submissions", "speedups", "fractions", "asks", "tells", "resumes")
"""Empty, or an entry for each job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload(JobSource):
    """n jobs in order of arrival; each column has shape (n,)."""

    submit_s: Seconds
    """Not decreasing; the first is 0."""
    duration_s: Seconds
    """True training time alone, > 0. Only the world knows it."""
    expected_s: Seconds
    """What the policy is told; NaN: nothing."""
    gpus: NDArray[np.int32]
    load_s: Seconds
    """Launch to first step, >= 0."""
    pause_s: Seconds
    """Stop request to devices free, >= 0."""
    model: NDArray[np.int16]
    """Index into `models`; -1 = none."""
    models: tuple[str, ...]
    hp: NDArray[np.bool_]
    organisation: NDArray[np.int16]
    """Index into `organisations`; -1 = none."""
    organisations: tuple[str, ...]
    speedups: tuple[tuple[float, ...], ...] = ()
    """Of each job, its pace on 1, 2 ... `gpus` devices over that on one: it takes any number of them. Empty:
    jobs are rigid."""
    fractions: tuple[float, ...] = ()
    """Of each job, the part of its one device that it asks for, on which it takes its length; 1: whole
    devices. Empty: all ask for those."""
    asks: tuple[HostAsk, ...] = ()
    """Of each job; empty: none asks for anything beside its GPUs."""
    duty_cycles: tuple[float, ...] = ()
    """Of each model, 0 to 1, as a profile would tell the engine; empty = not profiled. Pairs that
    were never seen are judged by it."""
    knowledge: Knowledge = COMPLETE
    tells: tuple[bool, ...] = ()
    """Of each job, whether it says its number of steps while it runs, where jobs do. Empty: all do."""
    resumes: tuple[bool, ...] = ()
    """Of each job, whether it can resume. Empty: all can."""

    def __post_init__(self) -> None:
        n = len(self.submit_s)
        for name in COLUMNS_PER_JOB:
            assert len(getattr(self, name)) == n, f"column {name} has another length"
        assert all(len(getattr(self, name)) in (0, n) for name in SAID_PER_JOB)
        assert self.knowledge.known == "exact" or bool(np.all(np.isnan(self.expected_s)))
        assert not self.speedups or [*map(len, self.speedups)] == self.gpus.tolist()
        parts = [gpus for gpus, part in zip(self.gpus, self.fractions, strict=False) if part < 1.0]
        assert all(gpus == 1 for gpus in parts)
        assert not self.duty_cycles or len(self.duty_cycles) == len(self.models)
        assert n == 0 or (self.submit_s[0] == 0.0 and bool(np.all(np.diff(self.submit_s) >= 0.0)))
        assert bool(np.all(self.duration_s > 0.0)) and bool(np.all(self.gpus >= 1))

    def __len__(self) -> int:
        return len(self.submit_s)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Workload:
        """Some of the jobs, in their order; the first of them arrives at 0."""
        numbers = np.arange(len(self))[rows].tolist()
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS_PER_JOB}
        columns["submit_s"] = columns["submit_s"] - columns["submit_s"][:1].sum()
        for name in SAID_PER_JOB:
            if said := getattr(self, name):
                columns[name] = tuple(said[number] for number in numbers)
        return replace(self, **columns)

    @property
    def is_exact(self) -> bool:
        """Whether policies are told the true lengths."""
        return bool(np.array_equal(self.expected_s, self.duration_s))

    def time_on_fewest_s(self, alone_s: Seconds) -> Seconds:
        """Times alone on all its devices, of each job, as times on the fewest that it takes."""
        return alone_s * np.array([each[-1] for each in self.speedups]) if self.speedups else alone_s

    @property
    def sizes(self) -> Seconds:
        """Devices that each job asks for; below 1 for a part of one."""
        return self.gpus * np.array(self.fractions) if self.fractions else self.gpus.astype(np.float64)

    def offered_load(self, gpus: int) -> float:
        """Work that arrives / work the cluster can do while it arrives; NaN if all arrive at once."""
        span_s = float(self.submit_s[-1]) if len(self) else 0.0
        if span_s <= 0.0:
            return float("nan")
        return float(np.dot(self.duration_s, self.sizes)) / (span_s * gpus)
