"""The real controller and agent on this device: two jobs share it; one is preempted and resumes exactly.

Rule: step times, memory and durations are measured here, on the device under test. NCCL refuses two ranks of
one job on one device, so every job has one worker.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cotenant.controller.cli.demo.cluster import QueueWatcher, all_ended
from cotenant.controller.cli.demo.measuring import schedule_of
from cotenant.controller.cli.demo.plan import DemoJob, MeasuredJob
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import Phase
from cotenant.controller.wire import clients as wire
from hwtests import clusters, host
from hwtests.device import Device
from hwtests.jobs import Job
from hwtests.measuring import Measure
from hwtests.plain import run_uninterrupted

pytestmark = pytest.mark.gpu

LONG = DemoJob("long", "language_model", batch_size=32, train_s=30.0, about="long")
SHORT = DemoJob("short", "language_model", batch_size=64, train_s=6.0, about="short")
TIMEOUT_S = 300.0
LOSS_STEPS = 40
"""At least so many before the preemption, and after the resume."""
LOSS_TOLERANCE = {"fp32": 0.0, "bf16": 0.05}
"""Relative, of each step's loss against the uninterrupted run's. With deterministic kernels fp32 is exact."""


@pytest.fixture(scope="module")
def measured_jobs(device: Device, tmp_path_factory: pytest.TempPathFactory) -> dict[str, MeasuredJob]:
    host.skip_if(host.lacks_cluster())
    return clusters.measure((LONG, SHORT), device, tmp_path_factory.mktemp("m"))


@pytest.fixture
def client(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    host.skip_if(host.lacks_cluster())
    folder = tmp_path_factory.mktemp("c")
    with clusters.cluster(folder, device) as cluster, Client(cluster.endpoint) as client:
        yield client


@pytest.fixture(autouse=True)
def pipes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The agent's MPS daemons live in a folder that goes with the test; short, for its sockets."""
    with tempfile.TemporaryDirectory(prefix="hw-c-", dir="/tmp", ignore_cleanup_errors=True) as name:
        monkeypatch.setenv("COTENANT_MPS__RUNTIME_DIR", name)
        yield


def _run_pair(
    client: Client, policy: str, jobs: dict[str, MeasuredJob], results: Path
) -> tuple[wire.Shown, wire.Shown]:
    """The long job, then the short one once the long one trains; both to their end."""
    client.ask(wire.SetPolicy(name=policy))
    watcher = QueueWatcher(client, print, {})
    long = clusters.submit(client, jobs["long"], results)
    watcher.wait_until(lambda now: now[long].phase is Phase.RUNNING and now[long].step > 5, TIMEOUT_S)
    short = clusters.submit(client, jobs["short"], results)
    watcher.wait_until(lambda now: all_ended(now, [long, short]), TIMEOUT_S)
    return client.ask(wire.ShowJob(job_id=long)), client.ask(wire.ShowJob(job_id=short))


def test_under_castor_two_jobs_share_the_device(
    client: Client, measured_jobs: dict[str, MeasuredJob], tmp_path: Path, measured: Measure
) -> None:
    long, short = _run_pair(client, "castor", measured_jobs, tmp_path)
    for shown in (long, short):
        clusters.note_costs(f"sharing: {shown.job.name}", shown.attempts, measured)
    assert (long.job.phase, short.job.phase) == (Phase.DONE, Phase.DONE)
    assert short.attempts[0].devices == long.attempts[0].devices
    assert long.job.job_id in short.job.co_tenants_ever
    assert long.job.preemptions == 0


def test_under_srtf_the_long_job_is_preempted_and_resumes_bit_for_bit(
    client: Client,
    measured_jobs: dict[str, MeasuredJob],
    device: Device,
    tmp_path: Path,
    measured: Measure,
) -> None:
    long, short = _run_pair(client, "srtf", measured_jobs, tmp_path)
    for shown in (long, short):
        clusters.note_costs(f"taking turns: {shown.job.name}", shown.attempts, measured)
    assert (long.job.phase, short.job.phase) == (Phase.DONE, Phase.DONE)
    assert long.job.preemptions == 1
    resumed = json.loads((tmp_path / "long.json").read_text())["parameters_sha256"]
    cores = tuple(sorted(os.sched_getaffinity(0)))
    alone = run_uninterrupted(
        measured_jobs["long"],
        [cores],
        schedule_of(long.attempts),
        tmp_path / "alone",
        TIMEOUT_S,
        env={"CUDA_VISIBLE_DEVICES": device.uuid},
    )
    measured("preempted and uninterrupted: parameters equal bit for bit", resumed == alone)
    assert resumed == alone


@pytest.mark.parametrize("precision", LOSS_TOLERANCE)
def test_the_loss_goes_on_where_it_was(
    client: Client, device: Device, precision: str, tmp_path: Path, measured: Measure
) -> None:
    """A language model is preempted by request; each step's loss is that of a run nobody disturbed."""
    disturbed, alone, enough = (tmp_path / name for name in ("disturbed", "alone", "enough"))
    job = _job(device, precision)
    spec = job.spec(None, "--losses", str(disturbed), "--until", str(enough))
    job_id = client.ask(wire.Submit(specs=(spec,))).job_ids[0]
    watcher = QueueWatcher(client, print, {})
    watcher.wait_until(
        lambda now: now[job_id].phase is Phase.RUNNING and now[job_id].step > LOSS_STEPS, TIMEOUT_S
    )
    client.ask(wire.ChangeJobs(verb="preempt", job_ids=(job_id,)))
    watcher.wait_until(lambda now: now[job_id].attempt == 2 and now[job_id].phase is Phase.RUNNING, TIMEOUT_S)
    resumed_at = client.ask(wire.ShowJob(job_id=job_id)).attempts[-1].start_step
    watcher.wait_until(lambda now: now[job_id].step > resumed_at + LOSS_STEPS, TIMEOUT_S)
    enough.touch()
    watcher.wait_until(lambda now: all_ended(now, [job_id]), TIMEOUT_S)
    shown = client.ask(wire.ShowJob(job_id=job_id))
    was = _losses(disturbed)
    clusters.note_costs(f"language model, {precision}", shown.attempts, measured)
    # As many threads as the agent gives it: how a sum is split decides how it rounds.
    whole = msgspec.structs.replace(device, cores=tuple(sorted(os.sched_getaffinity(0))))
    steps = ("--steps", str(max(was) + 1))
    with job.plain(whole, tmp_path / "d", *steps, "--losses", str(alone)) as rank:
        assert rank.process.wait(TIMEOUT_S) == 0, rank.last_line()
    wanted = _losses(alone)
    apart = max(abs(was[step] - wanted[step]) / abs(wanted[step]) for step in wanted)
    first = min((step for step in wanted if was[step] != wanted[step]), default=None)
    measured(f"{precision}: first step whose loss differs", first, otherwise="none does")
    resumed = [attempt for attempt in shown.attempts if attempt.start_step > 0]
    measured(f"{precision}: loss of a preempted job, apart at most", apart, "relative")
    measured(f"{precision}: resumed exactly", "/".join(str(attempt.exact) for attempt in resumed) or "no")
    assert resumed and shown.job.phase is Phase.DONE
    assert sorted(was) == sorted(wanted), "no step is missing"
    assert apart <= LOSS_TOLERANCE[precision]


def _job(device: Device, precision: str) -> Job:
    scale = 1 if device.kind == "cpu" else 4
    return Job(name="language", script="language_model", batch_size=8, precision=precision, scale=scale)


def _losses(path: Path) -> dict[int, float]:
    """By step; one that was repeated after a resume counts as it was the last time."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {int(step): float(loss) for step, loss in lines}
