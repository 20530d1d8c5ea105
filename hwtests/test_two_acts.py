"""The demo's two acts on one CUDA device: two jobs time-slice it; one is preempted and resumes exactly.

Rule: step times, memory and durations are measured here, on the device under test. NCCL refuses two ranks of
one job on one device, so every job has one worker.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.controller.client import Client
from cotenant.controller.demo.cluster import PrivateCluster
from cotenant.controller.demo.measuring import MANY_STEPS, job_environment
from cotenant.controller.demo.plan import DemoJob, MeasuredJob
from cotenant.controller.demo.reference import run_uninterrupted, schedule_of
from cotenant.controller.demo.watching import Watcher, all_ended
from cotenant.controller.domain.ids import JobId
from cotenant.controller.domain.job import JobSpec, Launch, Phase
from cotenant.controller.domain.perf import Profile, ProfilePoint
from cotenant.controller.wire.clients import SetPolicy, ShowJob, Shown, Submit
from cotenant.profiler.ranks import Command, Seat
from cotenant.profiler.run import Plan
from cotenant.profiler.solo import measure_solo

pytestmark = pytest.mark.gpu

LONG = DemoJob(
    name="long", script="language_model", workers=1, batch_size=32, train_s=40.0, about="long", act=1
)
SHORT = DemoJob(
    name="short", script="compute_bound", workers=1, batch_size=64, train_s=6.0, about="short", act=1
)
TIMEOUT_S = 300.0


class _PeakMemory:
    """The device's used memory above what it was at the start, sampled through NVML."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._stop = threading.Event()
        self.peak_mib = 0.0

    def __enter__(self) -> _PeakMemory:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(self._uuid)
        before = pynvml.nvmlDeviceGetMemoryInfo(handle).used

        def watch() -> None:
            while not self._stop.wait(0.05):
                used = pynvml.nvmlDeviceGetMemoryInfo(handle).used - before
                self.peak_mib = max(self.peak_mib, used / 2**20)

        self._thread = threading.Thread(target=watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        import pynvml

        self._stop.set()
        self._thread.join()
        pynvml.nvmlShutdown()


def _measure(job: DemoJob, uuid: str) -> MeasuredJob:
    env = {**job_environment(), "CUDA_VISIBLE_DEVICES": uuid}
    command = Command(argv=job.argv(sys.executable, MANY_STEPS, None), workdir=os.getcwd(), env=env)
    cores = tuple(sorted(os.sched_getaffinity(0)))
    with _PeakMemory(uuid) as memory:
        run = measure_solo(command, [Seat(cores=cores)], plan=Plan(accumulation_steps=(1,), deadline_s=120.0))
    assert run.points, f"{job.name} was not measured: {run.notes}"
    assert memory.peak_mib > 0, f"{job.name} used no device memory: does it run on the CPU?"
    point = ProfilePoint(
        sub_batch=job.batch_size,
        accumulation_steps=1,
        step_s=run.points[0].step_s,
        memory_mib=memory.peak_mib,
    )
    # The duty cycle of a CUDA device is not the process's CPU time: left unknown, the default ratio serves.
    return MeasuredJob(
        job=job, profile=Profile(points=(point,), load_s=run.load_s, steps=run.points[0].steps)
    )


@pytest.fixture
def measured(cuda_uuid: str) -> dict[str, MeasuredJob]:
    return {job.name: _measure(job, cuda_uuid) for job in (LONG, SHORT)}


@pytest.fixture
def client(cuda_uuid: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("c")
    with PrivateCluster(folder, "cuda:0") as cluster, Client(cluster.endpoint) as client:
        yield client


def _submit(client: Client, measured: MeasuredJob, results: Path) -> JobId:
    job = measured.job
    spec = JobSpec(
        job_id=JobId("new-0"),
        name=job.name,
        batch_size=job.batch_size,
        iterations=measured.steps,
        profile=measured.profile,
        launch=Launch(
            argv=job.argv(sys.executable, measured.steps, results / f"{job.name}.json"),
            workdir=os.getcwd(),
            env=job_environment(),
        ),
    )
    return client.ask(Submit(specs=(spec,))).job_ids[0]


def _run_pair(
    client: Client, policy: str, measured: dict[str, MeasuredJob], results: Path
) -> tuple[Shown, Shown]:
    """The long job, then the short one once the long one trains; both to their end."""
    client.ask(SetPolicy(name=policy))
    watcher = Watcher(client, print, {})
    long = _submit(client, measured["long"], results)
    watcher.until(lambda jobs: jobs[long].phase is Phase.RUNNING and jobs[long].step > 5, TIMEOUT_S)
    short = _submit(client, measured["short"], results)
    watcher.until(lambda jobs: all_ended(jobs, [long, short]), TIMEOUT_S)
    return client.ask(ShowJob(job_id=long)), client.ask(ShowJob(job_id=short))


def test_under_castor_two_jobs_share_the_cuda_device(
    client: Client, measured: dict[str, MeasuredJob], tmp_path: Path
) -> None:
    long, short = _run_pair(client, "castor", measured, tmp_path)
    assert (long.job.phase, short.job.phase) == (Phase.DONE, Phase.DONE)
    assert short.attempts[0].devices == long.attempts[0].devices
    assert long.job.job_id in short.job.co_tenants_ever
    assert long.job.preemptions == 0


def test_under_srtf_the_long_job_is_preempted_and_resumes_bit_for_bit(
    client: Client, measured: dict[str, MeasuredJob], cuda_uuid: str, tmp_path: Path
) -> None:
    long, short = _run_pair(client, "srtf", measured, tmp_path)
    assert (long.job.phase, short.job.phase) == (Phase.DONE, Phase.DONE)
    assert long.job.preemptions == 1
    resumed = json.loads((tmp_path / "long.json").read_text())["parameters_sha256"]
    cores = tuple(sorted(os.sched_getaffinity(0)))
    alone = run_uninterrupted(
        measured["long"],
        [cores],
        schedule_of(long.attempts),
        tmp_path / "alone",
        TIMEOUT_S,
        env={"CUDA_VISIBLE_DEVICES": cuda_uuid},
    )
    assert resumed == alone
