"""`cotenant demo`: real DDP jobs share devices, one is preempted, and resumes bit for bit.

Rule: it scripts only the submissions and the `policy set`s. In between the policies decide from what was
measured a minute before, on this machine.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cotenant.checkpoint.talk.protocol import ENV_ACCUMULATION_SCHEDULE
from cotenant.controller.cli.demo import cluster, measuring, plan
from cotenant.controller.cli.demo.others import OthersLoad, OthersWatch, busy_cores_now
from cotenant.controller.cli.demo.plan import DemoJob, MeasuredJob
from cotenant.controller.cli.demo.report import (
    DemoReport,
    failures,
    job_table,
    not_shown,
    read_result,
    report_of,
    to_json,
    what_sharing_brought,
)
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, Phase
from cotenant.controller.system.files import write_output
from cotenant.controller.timeline import render, timeline_of_view
from cotenant.controller.wire import clients as wire

SLOTS: Final = 2
ACT_TIMEOUT_S: Final = 420.0
PREEMPT_AFTER_STEPS_RATIO: Final = 0.15
"""The short jobs of act 2 are submitted when the long one has done this share of its steps."""


def run_demo(out_dir: Path) -> int:
    """Runs the whole demo. Returns the exit code: 0 iff every job finished and the resume was exact."""
    started_s = time.monotonic()
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"{out_dir} cannot be made ({error.strerror}); choose another with --out"
        print(f"error[refused]: {problem}", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="cotenant-demo-"))
    try:
        report = _Demo(out_dir, folder).play()
    except (measuring.NotMeasured, cluster.ProcessStartFailed, cluster.TooSlow) as error:
        kept = out_dir / "logs"
        _keep_logs(folder, kept)
        print(f"error[failed]: {error}\nlogs of controller, agent and jobs: {kept}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _conclude(report, out_dir, time.monotonic() - started_s)


class DemoClock:
    """The clock for the log and the picture: both count from the first submission."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._zero_s: float | None = None

    def start(self) -> None:
        """The first job is submitted now; later calls change nothing."""
        if self._zero_s is None:
            self._zero_s = self._now_s()

    @property
    def passed_s(self) -> float | None:
        return None if self._zero_s is None else self._now_s() - self._zero_s

    def clock_text(self) -> str:
        """The time for a line of the log; blank before the first submission, when time 0 is not known."""
        return " " * 8 if self.passed_s is None else f"{self.passed_s:6.1f} s"


class _Demo:
    """A run of the demo: measured jobs, a private cluster, two acts, an uninterrupted run to compare with."""

    def __init__(self, out_dir: Path, folder: Path) -> None:
        self._out_dir, self._folder = out_dir, folder
        self._results = folder / "results"
        self._clock = DemoClock()
        self._names: dict[JobId, str] = {}
        self._measured: dict[str, MeasuredJob] = {}
        self._others = OthersWatch()

    def _say(self, line: str) -> None:
        print(f"{self._clock.clock_text()}  {line}", flush=True)

    def play(self) -> DemoReport:
        busy_before = busy_cores_now()
        memory = self._measure()
        with (
            cluster.PrivateCluster(self._folder, f"cpu:{SLOTS}", memory.memory_mib) as private,
            Client(private.endpoint) as client,
        ):
            self._client = client
            private.check_devices(SLOTS)
            self._say("one short job first, so that the jobs below start warm: what it imports is kept ready")
            measuring.warm_up(client, SLOTS)
            self._watcher = cluster.QueueWatcher(client, self._say, self._names, self._others.look)
            self._act_one()
            self._act_two()
            shown = [client.ask(wire.ShowJob(job_id=job_id)) for job_id in self._names]
            self._draw(memory.memory_mib)
            others = OthersLoad(
                cores=len(os.sched_getaffinity(0)), before=busy_before, during=self._others.busy_cores
            )
            whole = {s.job.name: self._train_again(s) for s in shown if s.job.preemptions}
        report = report_of(shown, self._results, whole)
        lacks = () if memory.lacks is None else (memory.lacks,)
        return msgspec.structs.replace(report, others=others, left_out=(*lacks, *not_shown(report)))

    def _measure(self) -> plan.DeclaredMemory:
        """What each job needs, and the memory that a device declares."""
        kinds = len({job.measure_key for job in plan.JOBS})
        self._say(f"measuring {kinds} kinds of job, each alone on a CPU slot of its own")
        self._say("(a CPU slot stands in for a GPU and time-slices, as a GPU without MPS does)")
        self._measured = measuring.measure_jobs(plan.JOBS, SLOTS, self._folder / "alone", self._say)
        memory = plan.declare_memory(self._measured)
        heavy = self._measured[plan.MEMORY.name]
        beside = self._measured[plan.SONNETS.name].memory_mib(1)
        self._say(
            f"each of the {SLOTS} devices declares {memory.memory_mib} MiB: {plan.MEMORY.name} needs "
            f"{heavy.memory_mib(1):.0f} MiB whole, {heavy.memory_mib(2):.0f} MiB with half its batch; "
            f"beside {plan.SONNETS.name} {memory.memory_mib - beside:.0f} MiB are left"
        )
        if memory.lacks is not None:
            self._say(f"left out: {memory.lacks}")
        return memory

    def _act_one(self) -> None:
        self._set_policy(
            "castor", "Act 1: castor shares a device when two jobs end sooner that way, on average"
        )
        first = [self._submit(job) for job in (plan.SONNETS, plan.DIGITS)]
        self._watcher.wait_until(
            lambda jobs: all(jobs[j].phase is Phase.RUNNING for j in first), ACT_TIMEOUT_S
        )
        newcomers = [self._submit(job) for job in (plan.LOADER, plan.MEMORY)]
        self._watcher.wait_until(lambda jobs: cluster.all_ended(jobs, [*first, *newcomers]), ACT_TIMEOUT_S)

    def _act_two(self) -> None:
        self._set_policy("srtf", "Act 2: srtf lets a shorter job preempt a longer one")
        gang = self._submit(plan.LONG_GANG)
        enough = PREEMPT_AFTER_STEPS_RATIO * self._measured[plan.LONG_GANG.name].steps
        self._watcher.wait_until(
            lambda jobs: jobs[gang].phase is Phase.RUNNING and jobs[gang].step >= enough, ACT_TIMEOUT_S
        )
        short = [self._submit(job) for job in (plan.URGENT, plan.BRIEF)]
        self._watcher.wait_until(lambda jobs: cluster.all_ended(jobs, [gang, *short]), ACT_TIMEOUT_S)

    def _set_policy(self, name: str, why: str) -> None:
        self._client.ask(wire.SetPolicy(name=name))
        self._say(f"--- {why}")

    def _submit(self, job: DemoJob) -> JobId:
        measured = self._measured[job.name]
        result = self._results / f"{job.name}.json"
        spec = measuring.job_spec(job, measured.steps, result, measured.profile)
        self._clock.start()
        job_id = self._client.ask(wire.Submit(specs=(spec,))).job_ids[0]
        self._names[job_id] = job.name
        length = f"{measured.steps} steps, about {job.train_s:.0f} s alone"
        self._say(f"submitted {job.name} ({job_id}): {job.about}; {length}")
        return job_id

    def _draw(self, memory_mib: int) -> None:
        """The picture of `cotenant timeline`, from the first submission on."""
        asked = wire.GetTimeline(since_s=self._clock.passed_s or 0.0)
        picture = timeline_of_view(self._client.ask(asked).timeline, local_utc_offset_s=0.0)
        picture = msgspec.structs.replace(
            picture,
            title="cotenant demo",
            subtitle=f"{SLOTS} CPU slots, {memory_mib} MiB each",
            local_zero_s=None,
        )
        write_output(self._out_dir / "timeline.svg", render(picture).encode())

    def _train_again(self, s: wire.Shown) -> str:
        """The hash of the parameters that the same training has where nothing interrupts it."""
        name, schedule = s.job.name, measuring.schedule_of(s.attempts)
        self._say(f"--- the same training of {name} without interruption (schedule of s: {schedule})")
        measured, result = self._measured[name], self._folder / f"alone-{name}.json"
        spec = measuring.job_spec(measured.job, measured.steps, result, measured.profile)
        env = {**spec.launch.env, ENV_ACCUMULATION_SCHEDULE: schedule}
        launch = msgspec.structs.replace(spec.launch, env=env)
        spec = msgspec.structs.replace(spec, share="never", launch=launch)
        job_ids = self._client.ask(wire.Submit(specs=(spec,))).job_ids
        self._watcher.wait_until(lambda jobs: cluster.all_ended(jobs, job_ids), ACT_TIMEOUT_S)
        return str(read_result(result).get("parameters_sha256"))


def _keep_logs(folder: Path, kept: Path) -> None:
    """What a person needs to find out why the demo failed."""
    kept.mkdir(parents=True, exist_ok=True)
    for log in folder.rglob("*.log"):
        name = "-".join(log.relative_to(folder).parts)
        shutil.copyfile(log, kept / name)


def _conclude(report: DemoReport, out_dir: Path, wall_s: float) -> int:
    write_output(out_dir / "report.json", to_json(report))
    print()
    print(job_table(report))
    print(f"\n{what_sharing_brought(report)}", end="")
    for sentence in report.left_out:
        print(f"left out: {sentence}")
    print(f"\nreport: {out_dir / 'report.json'}\ntimeline: {out_dir / 'timeline.svg'}")
    found = failures(report)
    for failure in found:
        print(f"error[failed]: {failure}", file=sys.stderr)
    for job in report.jobs if not found else ():
        if job.uninterrupted_sha256 is not None:
            print(f"{job.job}: preempted, resumed, equal to the uninterrupted run bit for bit")
            print(f"  parameters {job.parameters_sha256}")
    print(f"{len(report.jobs)} jobs in {wall_s:.0f} s")
    return 1 if found else 0
