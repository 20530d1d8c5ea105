"""The short measured run of one job alone: step time and memory per sub-batch, duty cycle, load time.

Rule: every number in the result was measured in this run. The run is bounded by its deadline and leaves
nothing behind: no process, no checkpoint, no temporary file.
"""

from __future__ import annotations

import math
import select
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from cotenant.controller.wire import job
from cotenant.profiler.indicators.cpu import CpuSource, duty_cycle
from cotenant.profiler.indicators.sources import Sample, summarise
from cotenant.profiler.ranks import RankCommand, Ranks, Seat
from cotenant.profiler.run import ProfileFailed, RunPlan, RunProgress, SoloPoint, SoloRun
from cotenant.profiler.steps import (
    FirstStepTaken,
    LibraryHello,
    Said,
    StepReport,
    StepTimes,
    alternating,
    parse,
)

POLL_PERIOD_S = 0.02
"""How often memory is read."""
SAMPLE_PERIOD_S = 0.5
"""How often indicators are read."""
_PHASES = 24
_DATAGRAMS_PER_POLL = 64
_NOTES_MAX = 16
_CONTENDED_SHARE = 0.05


def measure_solo(
    command: RankCommand,
    seats: Sequence[Seat],
    *,
    plan: RunPlan = RunPlan(),  # noqa: B008 (frozen)
    progress: Callable[[RunProgress], None] = lambda _: None,
) -> SoloRun:
    """Start one rank per seat, measure until the plan is met or its deadline, and end them."""
    # A short path: a Unix socket's may not be longer than about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="cotenant-profile-", ignore_cleanup_errors=True) as name:
        first_steps = plan.warm_up_steps + plan.steps_min
        schedule = alternating(plan.accumulation_steps, first_steps, _PHASES)
        try:
            ranks = Ranks(command, seats, Path(name), str(schedule))
        except OSError as error:
            what = f"{command.argv[0]} in {command.workdir}"
            raise ProfileFailed(
                f"{what}: cannot start: {error.strerror}; check command and folder"
            ) from error
        with ranks:
            observer = _Observer(ranks, seats, plan, StepTimes(schedule, plan.warm_up_steps), progress)
            observer.observe()
            return observer.result()


class _Mark(msgspec.Struct, frozen=True, kw_only=True):
    """How much the ranks had used at one time."""

    at_s: float
    cpu_s: float
    waited_s: float

    def since(self, before: _Mark) -> _Mark:
        return _Mark(
            at_s=self.at_s - before.at_s,
            cpu_s=self.cpu_s - before.cpu_s,
            waited_s=self.waited_s - before.waited_s,
        )

    def plus(self, other: _Mark) -> _Mark:
        return _Mark(
            at_s=self.at_s + other.at_s,
            cpu_s=self.cpu_s + other.cpu_s,
            waited_s=self.waited_s + other.waited_s,
        )


_NOTHING = _Mark(at_s=0.0, cpu_s=0.0, waited_s=0.0)


class _Observer:
    """Watches one run: datagrams as they come, memory at every poll, indicators twice a second."""

    def __init__(
        self,
        ranks: Ranks,
        seats: Sequence[Seat],
        plan: RunPlan,
        times: StepTimes,
        progress: Callable[[RunProgress], None],
    ) -> None:
        self._ranks = ranks
        self._plan = plan
        self._times = times
        self._progress = progress
        self._core_count = sum(len(seat.cores) for seat in seats)
        self._source = CpuSource([process.pid for process in ranks.processes], self._core_count)
        self._samples: list[Sample] = []
        self._sampled_s = -math.inf
        self._started_s = time.monotonic()
        self._start = self._mark()
        self._before = self._start
        """The mark at rank 0's last report, or at the last poll of a job that does not report."""
        self._used: dict[int, _Mark] = {}
        """Summed over the counted reports, by s."""
        self._hello: LibraryHello | None = None
        self._load_s = math.nan
        self._memory_mib = 0.0
        """Peak so far, of the rank that needs most."""
        self._memory_at: dict[int, float] = {}
        """That peak when the last report at this s came: what follows may be another phase's."""
        self._blind_start: _Mark | None = None
        self._notes: list[str] = []

    def observe(self) -> None:
        while not self._finished():
            select.select([self._ranks.inbox], [], [], POLL_PERIOD_S)
            self._measure()
            for _ in range(_DATAGRAMS_PER_POLL):
                if not select.select([self._ranks.inbox], [], [], 0)[0]:
                    break
                self._hear(parse(self._ranks.inbox.recv(job.DATAGRAM_BYTES_MAX + 1)))

    def _measure(self) -> None:
        # The kernel keeps each process's own peak, so a short one between two polls is not missed.
        peaks = (usage.memory_peak_mib() for usage in self._ranks.usages)
        self._memory_mib = max(self._memory_mib, *peaks)
        elapsed_s = self._elapsed_s()
        if self._blind_start is None and self._hello is None and elapsed_s >= self._plan.hello_timeout_s:
            self._blind_start = self._mark()
        if elapsed_s - self._sampled_s < SAMPLE_PERIOD_S:
            return
        self._sampled_s = elapsed_s
        self._ranks.bound_output()
        sample = self._source.sample()
        if not math.isnan(self._load_s) or self._blind_start is not None:
            self._samples.append(sample)
        self._progress(RunProgress(stage=self._stage(), elapsed_s=elapsed_s, steps=self._steps()))

    def _hear(self, said: Said | None) -> None:
        if isinstance(said, LibraryHello) and said.rank == 0:
            self._hello = said
            if not said.accumulates:
                self._note("the job does not accumulate: measured at the whole batch only")
        elif isinstance(said, FirstStepTaken) and said.rank == 0:
            self._load_s = self._elapsed_s()
        elif isinstance(said, StepReport) and said.rank == 0:
            self._count(said)
        elif said is not None and not isinstance(said, LibraryHello | FirstStepTaken | StepReport):
            self._note(f"rank {said.rank}: {said.error}")

    def _count(self, report: StepReport) -> None:
        now = self._mark()
        s = report.accumulation_steps
        if self._times.add(report):
            self._used[s] = self._used.get(s, _NOTHING).plus(now.since(self._before))
        # Visits of a larger sub-batch raise the peak for good: only what came before them is this s's own.
        if not any(other < s for other in self._memory_at):
            self._memory_at[s] = self._memory_mib
        self._before = now

    def _finished(self) -> bool:
        elapsed_s = self._elapsed_s()
        codes = self._ranks.exit_codes()
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None:
            ending = _ending(codes[failed] or 0)
            raise ProfileFailed(
                f"rank {failed} {ending} after {elapsed_s:.1f} s, before it was measured: "
                f"{self._ranks.last_line(failed)}"
            )
        if self._met():
            return True
        if None not in codes:
            self._note(f"the job ended by itself after {elapsed_s:.1f} s")
            return True
        if elapsed_s >= self._plan.deadline_s:
            self._note(f"stopped at the deadline of {self._plan.deadline_s:g} s")
            return True
        return self._hello is None and elapsed_s >= self._plan.hello_timeout_s + self._plan.blind_s

    def _met(self) -> bool:
        """Every s that this job can visit was seen long enough."""
        return self._hello is not None and all(
            self._times.steps(s) >= self._plan.steps_min
            and self._times.elapsed_s(s) >= self._plan.measured_s_min
            for s in self._wanted()
        )

    def _wanted(self) -> tuple[int, ...]:
        return self._plan.accumulation_steps if self._hello is None or self._hello.accumulates else (1,)

    def result(self) -> SoloRun:
        """What was seen until now."""
        points = tuple(
            SoloPoint(
                accumulation_steps=s,
                step_s=self._times.step_s(s),
                memory_mib=self._memory_at[s],
                steps=self._times.steps(s),
            )
            for s in self._wanted()
            if self._times.steps(s) > 0
        )
        used = self._used_alone()
        elapsed_s = self._elapsed_s()
        self._explain(points, used)
        self._progress(RunProgress(stage="done", elapsed_s=elapsed_s, steps=self._steps()))
        return SoloRun(
            points=points,
            memory_mib_peak=self._memory_mib,
            duty_cycle=math.nan if used is None else self._duty_cycle(used),
            load_s=self._load_s,
            wall_s=elapsed_s,
            indicators=summarise(self._samples, SAMPLE_PERIOD_S),
            notes=tuple(self._notes),
            source=self._source.name,
        )

    def _used_alone(self) -> _Mark | None:
        """The duty cycle's basis: counted steps at the smallest s, else what was seen from outside."""
        if self._used:
            return self._used[min(self._used)]
        start = self._blind_start or self._start
        used = self._mark().since(start)
        return used if self._hello is None and used.at_s > 0 else None

    def _duty_cycle(self, used: _Mark) -> float:
        # Time in which a rank was ready and another process had its core is neither busy nor idle.
        own_s = max(used.at_s * self._core_count - used.waited_s, 1e-9)
        return duty_cycle(used.cpu_s, own_s / self._core_count, self._core_count)

    def _explain(self, points: Sequence[SoloPoint], used: _Mark | None) -> None:
        if self._hello is None:
            where = "from the end of the hello timeout on" if self._blind_start else "start-up included"
            self._note(f"the job does not use the job-side library: no step times; duty cycle {where}")
        for s in self._wanted() if self._hello is not None else ():
            if all(point.accumulation_steps != s for point in points):
                self._note(f"no whole step was measured at s = {s}")
        if used is not None and used.at_s > 0:
            share = used.waited_s / (used.at_s * self._core_count)
            if share > _CONTENDED_SHARE:
                self._note(f"other processes held its cores {share:.0%} of the time: step times are too long")

    def _mark(self) -> _Mark:
        return _Mark(
            at_s=time.monotonic(),
            cpu_s=sum(usage.cpu_s() for usage in self._ranks.usages),
            waited_s=sum(usage.waited_s() for usage in self._ranks.usages),
        )

    def _note(self, text: str) -> None:
        if text not in self._notes and len(self._notes) < _NOTES_MAX:
            self._notes.append(text)

    def _stage(self) -> Literal["loading", "measuring", "observing"]:
        if self._blind_start is not None:
            return "observing"
        return "loading" if math.isnan(self._load_s) else "measuring"

    def _steps(self) -> int:
        return sum(self._times.steps(s) for s in self._wanted())

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s


def _ending(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
