"""The demo's training scripts, run as plain programs and measured by the product: real training."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.agent.host.locks import LOCK_DIR_ENV
from cotenant.controller.cli.demo.measuring import NotMeasured, measure_jobs
from cotenant.controller.cli.demo.plan import WORKLOADS, DemoJob, MeasuredJob
from cotenant.controller.performance import Profile, ProfilePoint
from hwtests.plain import ReferenceFailed, run_uninterrupted
from tests.checkpoint.ranks import Warm, launch
from tests.live.cluster import EAGER
from tests.processes import IMPORT_S

KINDS = {"compute_bound": 25, "memory_heavy": 8, "loader_bound": 25, "language_model": 25}
"""How many steps are enough to see the loss fall."""


def environment() -> dict[str, str]:
    kept = ("PATH", "HOME", "COTENANT_TEST_RUN")
    given = {"OMP_NUM_THREADS": "1", "PYTHONPATH": EAGER}
    return {name: os.environ[name] for name in kept if name in os.environ} | given


def train(warm: Warm, kind: str, folder: Path, *options: str) -> dict[str, Any]:
    """Run a script to its end, as a user would on a machine without cotenant running."""
    folder.mkdir(exist_ok=True)
    result = folder / "result.json"
    words = ("--result", str(result), *options)
    launch(warm, WORKLOADS / f"{kind}.py", folder, *words).wait(deadline_s=IMPORT_S)
    content: dict[str, Any] = json.loads(result.read_text())
    return content


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_on_held_out_data_falls(warm: Warm, kind: str, tmp_path: Path) -> None:
    result = train(
        warm, kind, tmp_path, "--steps", str(KINDS[kind]), "--batch-size", "128" if "memory" in kind else "64"
    )
    assert result["steps"] == KINDS[kind]
    assert result["final_loss"] < 0.8 * result["first_loss"]
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "rank-0.log"}, (
        "it leaves its result and what it said"
    )


def test_another_seed_gives_other_parameters(warm: Warm, tmp_path: Path) -> None:
    """That the same one gives the same bits is what `tests/agent/warm/test_examples.py` rests on."""
    options = ("--steps", "2", "--batch-size", "16", "--seed")
    one, other = (
        train(warm, "compute_bound", tmp_path / seed, *options, seed)["parameters_sha256"] for seed in "78"
    )
    assert one != other


@pytest.fixture(scope="module", autouse=True)
def locks_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Another agent on this machine is not in our way, nor we in its; and jobs are eager."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", EAGER)
        patch.setenv("COTENANT_CONTROLLER__ETA_SHARE", "0")
        patch.setenv(LOCK_DIR_ENV, str(tmp_path_factory.mktemp("l") / "locks"))
        yield


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Profile]:
    """Three of them as the demo measures its jobs: side by side, each alone on a slot of one core."""
    kinds = {"compute_bound": 62, "loader_bound": 62, "memory_heavy": 254}
    jobs = [
        DemoJob(kind, kind, batch_size=batch_size, train_s=1.0, about="")
        for kind, batch_size in kinds.items()
    ]
    folder = Path(tempfile.mkdtemp(prefix="w-", dir=tmp_path_factory.getbasetemp()))
    found = measure_jobs(jobs, 2, folder, print)
    return {name: measured.profile for name, measured in found.items()}


def test_half_a_batch_of_the_memory_heavy_job_needs_far_less(profiles: dict[str, Profile]) -> None:
    whole, half = (profiles["memory_heavy"].point_at(s) for s in (1, 2))
    assert whole is not None and half is not None
    assert whole.memory_mib - half.memory_mib > 50
    assert (profiles["memory_heavy"].load_s or 0.0) > 0
    assert min(half.step_s, whole.step_s) > 0


def test_the_loader_bound_job_leaves_idle_what_the_compute_bound_one_keeps_busy(
    profiles: dict[str, Profile],
) -> None:
    """Against each other: where others want the cores as well, neither gets all of its own."""
    busy, idle = (profiles[kind].duty_cycle for kind in ("compute_bound", "loader_bound"))
    assert busy is not None and idle is not None
    assert idle < 0.6
    assert busy > idle


def test_what_does_not_run_is_said_with_its_reason(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = Path(tempfile.mkdtemp(prefix="w-", dir=tmp_path_factory.getbasetemp()))
    job = DemoJob("gone", "nowhere", batch_size=8, train_s=1.0, about="")
    with pytest.raises(NotMeasured, match="gone was not measured: it is failed"):
        measure_jobs([job], 1, folder, print)


def test_an_uninterrupted_run_follows_its_schedule_and_says_why_it_failed(tmp_path: Path) -> None:
    """Two plain ranks; and that nothing of them is left is checked by this folder's own fixture."""
    cores = [(min(os.sched_getaffinity(0)),)] * 2
    job = DemoJob("a", "compute_bound", batch_size=16, train_s=1.0, about="", workers=2)
    whole = ProfilePoint(sub_batch=16, accumulation_steps=1, step_s=0.125, memory_mib=1.0)
    measured = MeasuredJob(job=job, profile=Profile(points=(whole,)))
    found = [
        run_uninterrupted(measured, cores, schedule, tmp_path / str(number), IMPORT_S, environment())
        for number, schedule in enumerate(("0:1", "0:1,4:2"))
    ]
    assert found[0] != found[1]
    broken = msgspec.structs.replace(measured, job=msgspec.structs.replace(job, batch_size=10_000, workers=1))
    with pytest.raises(ReferenceFailed, match=r"compute_bound.py: rank \d failed: .*samples"):
        run_uninterrupted(broken, cores[:1], "0:1", tmp_path / "broken", IMPORT_S, environment())
