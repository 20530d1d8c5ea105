"""The hardware suite's programs on a CPU, and its MPS daemon where the control program is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cotenant.mps.detection import CONTROL
from cotenant.profiler.indicators.sources import Indicator
from hwtests import host
from hwtests.busy import Busy, LoadFailed
from hwtests.device import Device
from hwtests.jobs import JOBS, PAIRS, jobs
from hwtests.private_mps import PrivateMps, attach_problem
from hwtests.readings import dmon_means
from tests.processes import IMPORT_S

ROOT = Path(__file__).resolve().parents[2]
CPU = Device(kind="cpu", cores=(min(os.sched_getaffinity(0)),))

COMPARED = """
import json
from hwtests import gradients

sizes = {"rows": 16, "width": 8, "layers": 1}
found = {"apart": gradients.compare("cpu", "fp64", 4, **sizes)["apart"]}
found["refused"] = [gradients.refused("cpu", kind) for kind in ("sum", "batchnorm", "mean")]
print(json.dumps(found))
"""


def test_gradients_compare() -> None:
    """In a process of its own: importing torch is most of the time."""
    done = subprocess.run(
        [sys.executable, "-c", COMPARED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["apart"] < 1e-12
    assert [bool(said) for said in found["refused"]] == [True, True, False]


def test_a_job_is_one_of_the_demos_scripts_and_runs_as_a_plain_process(tmp_path: Path) -> None:
    assert {job.name for job in JOBS} == {name for pair in PAIRS for name in pair}
    losses, enough = tmp_path / "losses", tmp_path / "enough"
    enough.touch()
    for job in jobs(CPU).values():
        script = Path(job.argv()[1])
        assert script.is_file() and job.spec().launch.argv == job.argv()
    job = msgspec.structs.replace(jobs(CPU)["launches"], precision="bf16", scale=2)
    with job.plain(CPU, tmp_path / "plain", "--steps", "2", "--losses", str(losses)) as rank:
        assert rank.process.wait(IMPORT_S) == 0, rank.last_line()
    assert [line.split()[0] for line in losses.read_text().splitlines()] == ["0", "1"]
    assert json.loads(rank.last_line())["steps"] == 2
    with job.plain(CPU, tmp_path / "until", "--until", str(enough)) as rank:
        assert rank.process.wait(IMPORT_S) == 0, rank.last_line()
    assert json.loads(rank.last_line())["steps"] == 0, "the file was there before the first step"


def test_a_load_says_what_it_does_and_ends_when_its_test_does() -> None:
    with Busy("matmul", CPU, "--seconds", "30") as load:
        assert load.ready()["unit"] == "TFLOP"
        assert load.until(lambda said: "per_s" in said, 30.0)["per_s"] > 0
        assert load.error() == ""
    assert load.process.returncode == 0, "its input was closed: it left by itself"


def test_a_load_that_cannot_start_says_why() -> None:
    with Busy("nonsense", CPU) as load, pytest.raises(LoadFailed, match="invalid choice"):
        load.ready()


READ = """
import json
from hwtests import readings

known = {name.value: value for name, value in readings.product("GPU-1", 0.5, "gpm").items()}
plain = {name.value: value for name, value in readings.product("GPU-1", 0.9, "nvml").items()}
series = readings.gpm_series("GPU-1", 0.7, 0.2)
print(json.dumps([known, plain, series.values, series.late, series.cores, readings.gpm_cost("GPU-1", 1.0)]))
try:
    readings.product("GPU-2", 0.1, "gpm")
except readings.NoReading as problem:
    print(json.dumps(str(problem)))
"""


def test_a_source_is_read_as_itself_and_its_cost_is_the_childs() -> None:
    """Against the library that the profiler's tests stand in for NVML with: two counters of one device."""
    fake = ROOT / "tests" / "profiler" / "fake_nvml"
    env = {**os.environ, "PYTHONPATH": f"{fake}:{os.environ.get('PYTHONPATH', '')}"}
    env["FAKE_NVML"] = json.dumps({"gpm": ["GPU-1"]})
    done = subprocess.run(
        [sys.executable, "-c", READ], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = done.stdout.splitlines()
    known, plain, values, _, cores, cost = json.loads(first)
    assert known == {"GRACT": 0.5, "SMACT": 0.5}
    assert plain["GRACT"] == 0.4 and plain["PCITX"] == 3_000_000 and "SMACT" not in plain
    assert values and set(values) == {0.5}
    assert 0 <= cores < 1 and 0 < cost < 1
    assert "has no GPM counters" in json.loads(second), "another source's values are not GPM's"


def test_what_dcgmi_prints() -> None:
    """Two rows of a GPU, one cell without a value. Made up, in the layout that dcgmi's manual shows."""
    text = "#Entity   GRACT  SMACT\nID\nGPU 0     0.5    0.25\nGPU 0     0.7    N/A\n"
    assert dmon_means(text) == {Indicator.GRACT: pytest.approx(0.6), Indicator.SMACT: 0.25}
    assert dmon_means("Error: unable to connect") == {}


@pytest.mark.skipif(shutil.which(CONTROL) is None, reason=f"{CONTROL} is not installed")
def test_the_private_daemon_answers_and_leaves_nothing() -> None:
    with PrivateMps() as daemon:
        assert daemon.servers() == () == daemon.clients()
        assert daemon.ask("get_default_active_thread_percentage") == "100.0"
        assert "Unknown command" in daemon.ask("nonsense")
        assert daemon.environment()["CUDA_MPS_PIPE_DIRECTORY"] == str(daemon.pipes)
        pid, folder = daemon.pid, daemon.folder
        assert Path(f"/proc/{pid}/exe").readlink().name.startswith(CONTROL)
    assert not folder.exists()
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.skipif(shutil.which(CONTROL) is None, reason=f"{CONTROL} is not installed")
def test_why_nobody_becomes_a_client_is_said_with_the_last_words_of_all() -> None:
    """Here because there is no GPU; the text is that of a machine where MPS does not work."""
    said = attach_problem(Device(kind="cuda", cores=CPU.cores, uuid="GPU-none"))
    problem, control, *_ = said.split(" | ")
    assert "torch" in problem.lower() or "cuda" in problem.lower(), said
    assert "Start" in control and "Cmd:" not in control, said


def test_what_is_missing_is_one_sentence() -> None:
    lacks = (host.lacks_cuda, host.lacks_dcgm, host.lacks_mps, host.lacks_cuda_checkpoint, host.lacks_cluster)
    for lack in lacks:
        assert "\n" not in lack()
    assert host.lacks_cluster() == ""
