"""What an attempt's processes use, and when it is measured.

Rule: the supervisor's own loop measures, a little at a time; what is not known is None, never 0. It reads
indicators, and loads the code for that, only while the attempt is profiled.

CPU time and memory come from /proc, cheap enough to read every second for every attempt. CPU time and
resident size are read each time, the process tree and what is private to a process (a walk through its page
tables) every ten seconds. Memory shared between a rank and its data loaders counts once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cotenant.agent.host.cgroups import AttemptCgroup
from cotenant.agent.host.process_identity import ProcessStat, children_of, stat_of, tree_of
from cotenant.agent.ipc.records import Order
from cotenant.agent.supervisor.core.edge import OverMemory, Sampled
from cotenant.agent.supervisor.core.printed import PrintedFacts
from cotenant.profiler.indicators.sources import Timed
from cotenant.profiler.inplace import SAMPLE_PERIOD_S as PROFILE_SAMPLE_PERIOD_S

if TYPE_CHECKING:
    from cotenant.profiler.indicators.cpu import CpuSource
    from cotenant.profiler.indicators.gpu import GpuSource

TREE_PERIOD_S: Final = 10.0
WINDOW_S: Final = 5.0
"""The duty cycle is that of the last few seconds."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MIB: Final = 1024 * 1024
SAMPLE_PERIOD_S: Final = 1.0


class Sampler:
    """Measures the processes below those it was given."""

    def __init__(self, ranks: Mapping[int, int], *, cores: int, splits_launcher: bool) -> None:
        """`ranks` are pids by rank, kept up to date by the caller.

        With `splits_launcher` there is one process, and the workers are its children.
        """
        self._ranks = ranks
        self._cores = cores
        self._splits_launcher = splits_launcher
        self._trees: dict[int, list[int]] = {}
        """Per worker: its pids."""
        self._private_bytes: dict[int, int] = {}
        self._tree_s = -TREE_PERIOD_S
        self._window: deque[tuple[float, float]] = deque()
        self.cpu_s = 0.0
        self.resident_mib = 0.0
        """Sum over all processes; what they share counts several times."""
        self.memory_mib: float | None = None
        """Of the worker that uses most."""
        self.others_mib = 0.0
        """Private to processes beside the worker's own (data loaders), where that is most."""
        self.read_bytes = 0
        """By all processes, through any file; looked up as seldom as the process tree."""
        self.is_stopped = False
        """A process is stopped: by SIGSTOP, or by a debugger."""

    def sample(self, now_s: float) -> None:
        if now_s >= self._tree_s + TREE_PERIOD_S or any(not stat_of(pid) for pid in self._trees):
            self._tree_s = now_s
            self._look_around()
        stats = {pid: stat for pid in self._all_pids() if (stat := stat_of(pid)) is not None}
        self.is_stopped = any(stat.state in "Tt" for stat in stats.values())
        self._count_cpu(stats, now_s)
        self.resident_mib = sum(stat.resident_pages for stat in stats.values()) * _PAGE_BYTES / _MIB
        sizes = [size for root, pids in self._trees.items() if (size := self._tree_mib(root, pids, stats))]
        self.memory_mib = max(sizes, default=None)
        self.others_mib = max((self._others_mib(pids, stats) for pids in self._trees.values()), default=0.0)

    @property
    def duty_cycle(self) -> float | None:
        """CPU time used / time of the cores, lately; None while there is no window yet."""
        if len(self._window) < 2 or self._cores < 1:
            return None
        (from_s, before_s), (to_s, after_s) = self._window[0], self._window[-1]
        if to_s - from_s < WINDOW_S / 5:
            return None
        return max(0.0, min(1.0, (after_s - before_s) / (to_s - from_s) / self._cores))

    def tree_pids(self) -> list[int]:
        """All processes now, ranks before what they have started."""
        self._look_around()
        return list(dict.fromkeys([*self._trees, *(pid for pids in self._trees.values() for pid in pids)]))

    def proportional_mib(self) -> float:
        """All memory of the attempt, shared pages divided among those who share them. Costs milliseconds."""
        self._look_around()
        return sum(_rollup(pid).get("Pss", 0) for pid in self._all_pids()) / _MIB

    def _look_around(self) -> None:
        roots = list(self._ranks.values())
        if self._splits_launcher:
            roots = [child for root in roots for child in children_of(root)] or roots
        self._trees = {root: tree_of(root) for root in roots}
        self.read_bytes = max(self.read_bytes, sum(map(read_by, self._all_pids())))
        self._private_bytes = {}
        for root, pids in self._trees.items():
            for pid in pids:
                if pid != root:
                    rollup = _rollup(pid)
                    self._private_bytes[pid] = rollup.get("Private_Clean", 0) + rollup.get("Private_Dirty", 0)

    def _all_pids(self) -> set[int]:
        return {*self._ranks.values(), *(pid for pids in self._trees.values() for pid in pids)}

    def _count_cpu(self, stats: Mapping[int, ProcessStat], now_s: float) -> None:
        ticks = sum(stat.cpu_ticks for stat in stats.values())
        times = os.times()  # Of what we have waited for: ranks that ended, and orphans.
        cpu_s = ticks / _TICKS_PER_S + times.children_user + times.children_system
        self.cpu_s = max(self.cpu_s, cpu_s)
        self._window.append((now_s, self.cpu_s))
        while self._window[0][0] < now_s - WINDOW_S:
            self._window.popleft()

    def _tree_mib(self, root: int, pids: list[int], stats: Mapping[int, ProcessStat]) -> float | None:
        if root not in stats:
            return None
        return _peak_bytes(root) / _MIB + self._others_mib(pids, stats)

    def _others_mib(self, pids: list[int], stats: Mapping[int, ProcessStat]) -> float:
        return sum(self._private_bytes.get(pid, 0) for pid in pids if pid in stats) / _MIB


def _peak_bytes(pid: int) -> int:
    """The most that was ever resident; the kernel keeps it, so no peak falls between two samples."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM:")), 0)


def read_by(pid: int) -> int:
    """Bytes read by a process and the children it has waited for; 0 if it is gone, or may not be looked
    into."""
    try:
        text = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return 0
    return int(text.split()[1])


def _rollup(pid: int) -> dict[str, int]:
    """Sizes in bytes by name; empty if the process is gone or not ours to look into."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    return {
        fields[0].rstrip(":"): int(fields[1]) * 1024 for line in lines if len(fields := line.split()) == 3
    }


def host_oom_kills() -> int:
    """How often this host's kernel has killed a process for lack of memory, since boot."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


class Measuring:
    """The measuring of the processes in `pids` (by rank), as long as there are any."""

    def __init__(self, order: Order, pids: Mapping[int, int]) -> None:
        self._order = order
        self._pids = pids
        self._cgroup = AttemptCgroup.none(order, Path())
        self._sampler: Sampler | None = None
        self._indicators: CpuSource | GpuSource | None = None
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

    def sample(
        self,
        now_s: float,
        *,
        is_profiling: bool,
        output_bytes: int,
        printed: PrintedFacts,
        input_bytes: int = 0,
    ) -> list[Sampled | OverMemory]:
        """Measures now and returns what there is to say of it. `output_bytes`: written by the ranks so far;
        `input_bytes`: typed into their terminal."""
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
        slots = self._order.slots_each
        memory_mib = sampler.memory_mib if on_cpu else None
        sampled = Sampled(
            memory_mib=None if memory_mib is None else memory_mib / slots,
            duty_cycle=sampler.duty_cycle if on_cpu else None,
            cpu_s=sampler.cpu_s,
            read_bytes=sampler.read_bytes,
            input_bytes=input_bytes,
            output_bytes=output_bytes,
            printed=printed,
            samples=samples,
            is_stopped=sampler.is_stopped,
            others_mib=sampler.others_mib / slots if on_cpu else 0.0,  # Of main memory, which is no GPU's.
        )
        return [sampled, *self._find_over_memory(sampler)]

    def _find_over_memory(self, sampler: Sampler) -> list[OverMemory]:
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

    def _open_indicators(self) -> CpuSource | GpuSource:
        """Opens the indicators of the processes of this host; their sources are only loaded for a job that is
        profiled."""
        from cotenant.profiler.indicators.cpu import CpuSource
        from cotenant.profiler.indicators.gpu import GpuSource

        cores = {core for rank in self._order.ranks for core in rank.cores}
        pids = list(self._pids.values())
        host = CpuSource(pids, max(1, len(cores)), cpu_stat=self._cgroup.cpu_stat)
        uuids = tuple(dict.fromkeys(uuid for rank in self._order.ranks for uuid in rank.cuda_uuids))
        return GpuSource(uuids, host, wanted=self._order.indicators) if uuids else host
