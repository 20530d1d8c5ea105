"""The hardware suite's programs on a CPU, and its MPS daemon where the control program is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.mps.detection import CONTROL
from cotenant.profiler.indicators.sources import Indicator
from hwtests import host
from hwtests.busy import Busy, LoadFailed
from hwtests.device import Device
from hwtests.private_mps import PrivateMps, attach_problem
from hwtests.readings import dmon_means
from hwtests.test_pairs import orders

ROOT = Path(__file__).resolve().parents[2]
CPU = Device(kind="cpu", cores=(min(os.sched_getaffinity(0)),))

EVERYTHING = """
import contextlib, io, json
from hwtests import gradients
from hwtests.models.__main__ import NAMES, main
from hwtests.models.training import Options, build, train

found = {}
words = ["--device", "cpu", "--steps", "2", "--batch-size", "4", "--small", "--precision"]
for name in NAMES:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        main([name, *words, "bf16" if name == "mlp" else "fp32"])
    found[name] = json.loads(said.getvalue())
sizes = {"rows": 16, "width": 8, "layers": 1}
found["apart"] = gradients.compare("cpu", "fp64", 4, **sizes)["apart"]
found["refused"] = [gradients.refused("cpu", kind) for kind in ("sum", "batchnorm", "mean")]
print(json.dumps(found))
"""


def test_every_model_trains_and_gradients_compare() -> None:
    """In one process of its own: importing torch is most of the time."""
    done = subprocess.run(
        [sys.executable, "-c", EVERYTHING], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    from hwtests.pair_runs import JOBS, PAIRS

    assert (
        {job.model for job in JOBS}
        == {model for pair in PAIRS for model in pair}
        == set(found)
        - {
            "apart",
            "refused",
        }
    )
    for job in JOBS:
        assert found[job.model]["steps"] == 2 and found[job.model]["loss"] > 0, job.model
    assert found["apart"] < 1e-12
    assert [bool(said) for said in found["refused"]] == [True, True, False]


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


def test_time_slicing_is_measured_in_one_order_where_time_is_short() -> None:
    assert orders(("cnn", "mlp"), "time-slicing", 3.0) == [("cnn", "mlp")]
    assert orders(("cnn", "mlp"), "time-slicing", 6.0) == [("cnn", "mlp"), ("mlp", "cnn")]
    assert orders(("cnn", "mlp"), "mps", 3.0) == [("cnn", "mlp"), ("mlp", "cnn")]
    assert orders(("cnn", "cnn"), "mps", 6.0) == [("cnn", "cnn")]


def test_what_is_missing_is_one_sentence() -> None:
    lacks = (host.lacks_cuda, host.lacks_dcgm, host.lacks_mps, host.lacks_cuda_checkpoint, host.lacks_cluster)
    for lack in lacks:
        assert "\n" not in lack()
    assert host.lacks_cluster() == ""
