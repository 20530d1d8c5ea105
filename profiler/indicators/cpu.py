"""The CPU source: what a set of process trees uses of the cores it was given, and what its host sends and
receives.

Rule: every value is measured from the processes themselves and labelled `cpu`, or from their control group
and labelled `cgroup`; what a CPU has no counter for is missing. Resident sizes are summed over a tree, so
pages shared between its processes count more than once: the sum is an upper bound, which is the safe side
for a memory limit.

Rule: InfiniBand is counted at its ports, because traffic by RDMA passes the kernel's interfaces by; the
interfaces that belong to such a port (IP over InfiniBand) are then left out, or their bytes would count
twice. RDMA over Ethernet is in neither count.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import psutil

from cotenant.profiler.indicators import sources

AnswerT = TypeVar("AnswerT")

PERIOD_S = 0.1
TICKS_PERIOD_S = 0.5
"""Where processor time is counted in the kernel's ticks of 10 ms, which are 2 % of this."""
_RESCAN_PERIOD_S = 0.5
_NO_COUNTER = "a CPU slot has no such counter"


class Usage:
    """Processor seconds of process trees, cheap enough to read fifty times a second.

    Children are looked up twice a second, not at every reading, because that walks all of /proc.
    """

    def __init__(self, roots: Iterable[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._roots = [root for pid in roots if (root := _living(partial(psutil.Process, pid), None))]
        self._tree: list[psutil.Process] = list(self._roots)
        self._scanned_s = -_RESCAN_PERIOD_S
        self._cpu_s_max = 0.0

    def processes(self) -> list[psutil.Process]:
        """The live processes of the trees, roots first."""
        now_s = self._clock()
        if now_s - self._scanned_s >= _RESCAN_PERIOD_S:
            self._scanned_s = now_s
            found = {process.pid: process for root in self._roots for process in _process_tree(root)}
            # A process whose parent has gone is no descendant any more, and still one of the job's.
            left = {process.pid: process for process in self._tree if process.is_running()}
            self._tree = list({**found, **left}.values())
        return self._tree

    def cpu_s(self) -> float:
        """User and system seconds so far, waited-for children included. Never falls."""
        total_s = sum(_cpu_s(process) for process in self.processes())
        self._cpu_s_max = max(self._cpu_s_max, total_s)
        return self._cpu_s_max

    def runnable_threads(self) -> int:
        return sum(_runnable_threads(process.pid) for process in self.processes())


class CpuSource:
    """Castor's indicators for a job on CPU slots, over the time since the sample before.

    `cpu_stat` is the `cpu.stat` of a control group (v2) that holds these processes and no others: its count
    of processor time misses no short-lived child and is kept in microseconds instead of ticks.
    """

    name: sources.SourceName = "cpu"

    def __init__(
        self,
        roots: Sequence[int],
        core_count: int,
        clock: Callable[[], float] = time.monotonic,
        cpu_stat: Path | None = None,
    ) -> None:
        self._cpu_stat = cpu_stat if cpu_stat is not None and _group_cpu_s(cpu_stat) is not None else None
        self._usage = Usage(roots, clock)
        self.period_s = TICKS_PERIOD_S if self._cpu_stat is None else PERIOD_S
        self._core_count = core_count
        self._clock = clock
        self._at_s = -math.inf
        self._used, self._sent, self._received = sources.Counter(), sources.Counter(), sources.Counter()
        self._group_s = 0.0

    def samples(self) -> tuple[sources.Timed, ...]:
        """The sample, if there is one, over the time since the last question."""
        cpu_s, before_s = self._cpu_s(), self._at_s
        self._at_s = at_s = self._clock()
        values = self._compare(cpu_s, at_s)
        if math.isinf(before_s) or at_s <= before_s:
            return ()
        return (sources.Timed(since_s=before_s, at_s=at_s, period_s=self.period_s, values=values),)

    def _compare(self, cpu_s: float, at_s: float) -> sources.Sample:
        net = network()
        cores = self._used.rate(cpu_s, at_s)
        of_time: sources.SourceName = "cpu" if self._cpu_stat is None else "cgroup"
        occupancy = self._usage.runnable_threads() / self._core_count
        return {
            **{name: sources.missing("cpu", _NO_COUNTER) for name in sources.Indicator},
            sources.Indicator.SMOCC: sources.Reading(value=occupancy, source="cpu", gauge=True),
            sources.Indicator.GRACT: self._used.reading(
                min(cores, 1.0), of_time
            ),  # NaN comes first: it stays NaN.
            sources.Indicator.SMACT: self._used.reading(min(cores / self._core_count, 1.0), of_time),
            sources.Indicator.CPU: self._used.reading(cores, of_time),
            sources.Indicator.NETTX: self._sent.reading(self._sent.rate(net.sent, at_s), "cpu"),
            sources.Indicator.NETRX: self._received.reading(self._received.rate(net.received, at_s), "cpu"),
        }

    def close(self) -> None:
        """There is nothing to give back."""

    def _cpu_s(self) -> float:
        if self._cpu_stat is not None:
            self._group_s = max(self._group_s, _group_cpu_s(self._cpu_stat) or 0.0)
            return self._group_s
        return self._usage.cpu_s()


def _group_cpu_s(cpu_stat: Path) -> float | None:
    """User and system seconds of all that ever ran in the group; None where there is no such count."""
    try:
        lines = cpu_stat.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1e6 for line in lines if line.startswith("usage_usec ")), None)


def _living(ask: Callable[[], AnswerT], otherwise: AnswerT) -> AnswerT:
    """The answer about a process, or what stands for it when the process has gone."""
    try:
        return ask()
    except psutil.NoSuchProcess:
        return otherwise


def _process_tree(root: psutil.Process) -> list[psutil.Process]:
    return _living(lambda: [root, *root.children(recursive=True)], [])


def _cpu_s(process: psutil.Process) -> float:
    # User, system, and both of the children that were waited for.
    return _living(lambda: float(sum(process.cpu_times()[:4])), 0.0)


def _runnable_threads(pid: int) -> int:
    """How many threads of a process run or could run now (state R)."""
    folder, count = f"/proc/{pid}/task", 0
    try:
        for thread in os.listdir(folder):
            with open(f"{folder}/{thread}/stat", "rb") as file:
                text = file.read()
            # The state follows the command, which may itself hold spaces and brackets.
            count += text[text.rfind(b")") + 2 :].startswith(b"R")
    except (FileNotFoundError, ProcessLookupError):
        return count
    return count


INFINIBAND: Final = Path("/sys/class/infiniband")
WORD_BYTES: Final = 4
"""The ports count in words."""


class Sent(NamedTuple):
    sent: int
    received: int


class Port(NamedTuple):
    """A port that speaks InfiniBand."""

    interfaces: frozenset[str]
    sent: int
    received: int


def network(infiniband: Path = INFINIBAND) -> Sent:
    ports = list(_ports(infiniband))
    if not ports:
        total = psutil.net_io_counters(nowrap=True)
        return Sent(total.bytes_sent, total.bytes_recv)
    own = {name for port in ports for name in port.interfaces}
    others = [each for name, each in psutil.net_io_counters(pernic=True).items() if name not in own]
    return Sent(
        sum(each.bytes_sent for each in others) + sum(port.sent for port in ports),
        sum(each.bytes_recv for each in others) + sum(port.received for port in ports),
    )


def _ports(infiniband: Path) -> Iterator[Port]:
    """The ports of InfiniBand whose counters can be read."""
    for port in sorted(infiniband.glob("*/ports/*")):
        try:
            if (port / "link_layer").read_text().strip() != "InfiniBand":
                continue
            sent = WORD_BYTES * int((port / "counters" / "port_xmit_data").read_text())
            received = WORD_BYTES * int((port / "counters" / "port_rcv_data").read_text())
        except (OSError, ValueError):
            continue
        interfaces = frozenset(each.name for each in (port.parents[1] / "device" / "net").glob("*"))
        yield Port(interfaces, sent, received)
