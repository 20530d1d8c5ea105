"""What is measured of an attempt's processes, and when.

Rule: measured by the supervisor's own loop, a little at a time; what is not known is None, never 0.
Indicators are read only while the attempt is profiled, and what reads them is loaded only then.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Final

from cotenant.agent.host.cgroups import AttemptCgroup
from cotenant.agent.ipc.records import Order
from cotenant.agent.supervisor.core.edge import OverMemory, Sampled
from cotenant.agent.supervisor.processes.sampling import Sampler
from cotenant.profiler.indicators.sources import MetricsSource, Timed
from cotenant.profiler.inplace import SAMPLE_PERIOD_S as PROFILE_SAMPLE_PERIOD_S

SAMPLE_PERIOD_S: Final = 1.0


class Measuring:
    """Of the processes in `pids` (by rank), as long as there are any."""

    def __init__(self, order: Order, pids: Mapping[int, int]) -> None:
        self._order = order
        self._pids = pids
        self._cgroup = AttemptCgroup.none(order, Path())
        self._sampler: Sampler | None = None
        self._indicators: MetricsSource | None = None
        self._collected: list[Timed] = []
        """Indicators that were read between two samples."""
        self.collect_s = inf
        """When indicators are to be read next."""
        self.sample_s = inf
        """When the next sample is due."""

    def begin(self, cgroup: AttemptCgroup, now_s: float) -> None:
        """All processes have been started."""
        order = self._order
        self._cgroup = cgroup
        cores = {core for rank in order.ranks for core in rank.cores}
        self._sampler = Sampler(self._pids, cores=len(cores), splits_launcher=order.launch.mode == "host")
        self.sample_s = now_s + SAMPLE_PERIOD_S

    def tree_pids(self) -> list[int]:
        """Every process of the attempt that was seen."""
        return self._sampler.tree_pids() if self._sampler is not None else []

    def sample(self, now_s: float, *, is_profiling: bool, output_bytes: int) -> list[Sampled | OverMemory]:
        """Measure now: what there is to say of it. `output_bytes`: written by the ranks so far."""
        sampler = self._sampler
        if sampler is None or not self._pids:
            self.sample_s = inf
            return []
        if self._indicators is not None and not is_profiling:
            self._indicators.close()
            self._indicators, self.collect_s = None, inf
        self.sample_s = now_s + (PROFILE_SAMPLE_PERIOD_S if is_profiling else SAMPLE_PERIOD_S)
        sampler.sample(now_s)
        if is_profiling:
            self.collect(now_s)
        samples, self._collected = tuple(self._collected), []
        on_cpu = not any(rank.cuda_uuids for rank in self._order.ranks)
        sampled = Sampled(
            memory_mib=sampler.memory_mib if on_cpu else None,
            duty_cycle=sampler.duty_cycle if on_cpu else None,
            cpu_s=sampler.cpu_s,
            output_bytes=output_bytes,
            samples=samples,
            is_stopped=sampler.is_stopped,
            others_mib=sampler.others_mib,
        )
        return [sampled, *self._over_memory(sampler)]

    def _over_memory(self, sampler: Sampler) -> list[OverMemory]:
        """Where no cgroup limits host memory, and more is used than was asked for."""
        limit_mib = self._order.start.host_memory_mib
        if not limit_mib or self._cgroup.limits_memory or sampler.resident_mib <= limit_mib:
            return []
        used_mib = sampler.proportional_mib()
        return [OverMemory(used_mib=used_mib)] if used_mib > limit_mib else []

    def collect(self, now_s: float) -> None:
        """Read the indicators, as often as their source wants; they are handed over with the next sample."""
        if not self._pids:
            self.collect_s = inf
            return
        source = self._indicators = self._indicators or self._open_indicators()
        self._collected += source.samples()
        self.collect_s = now_s + source.period_s if source.period_s < PROFILE_SAMPLE_PERIOD_S else inf

    def _open_indicators(self) -> MetricsSource:
        """Of the processes of this host; only loaded for a job that is profiled."""
        from cotenant.profiler.indicators.cpu import CpuSource
        from cotenant.profiler.indicators.gpu import GpuSource

        cores = {core for rank in self._order.ranks for core in rank.cores}
        pids = list(self._pids.values())
        host = CpuSource(pids, max(1, len(cores)), cpu_stat=self._cgroup.cpu_stat)
        uuids = tuple(dict.fromkeys(uuid for rank in self._order.ranks for uuid in rank.cuda_uuids))
        return GpuSource(uuids, host, wanted=self._order.indicators) if uuids else host
