"""Hydra, submitit and torchx themselves, with code written for them, on one controller and agent of ours."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.person import PATIENCE_S, Answer, Person, at_home, when

APP = """
import os, pathlib, time
import hydra

@hydra.main(version_base=None, config_path=None)
def main(cfg):
    print("lr is", cfg.lr)
    pathlib.Path(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir, "lr").write_text(str(cfg.lr))
    time.sleep(cfg.get("wait", 0))
    if cfg.lr > 1:
        raise ValueError(f"{cfg.lr} is too much")
    return cfg.lr * 2, os.environ["COTENANT_JOB"]

main()
"""
SWEEPER = """
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore

class Tells(BasicSweeper):
    # Another plugin in the same namespace: it tells of the values that runs return.
    def setup(self, **given):
        super().setup(**given)
        launch = self.launcher.launch

        def tells(*words, **more):
            runs = launch(*words, **more)
            print("RETURNED", [each._return_value for each in runs], flush=True)
            return runs

        self.launcher.launch = tells

node = dict(_target_="hydra_plugins.tells.Tells", max_batch_size=None, params=None)
ConfigStore.instance().store(group="hydra/sweeper", name="tells", node=node)
"""
SUBMITIT = """
import json, os, pathlib, sys, time
import submitit

def add(a, b):
    print("adding", file=sys.stderr)
    return a + b, submitit.JobEnvironment().global_rank

def fails():
    raise KeyError("as on any cluster")

class Counts(submitit.helpers.Checkpointable):
    def __init__(self, folder):
        self.folder, self.count = pathlib.Path(folder), 0

    def __call__(self):
        began = self.count
        self.count += 1
        (self.folder / "counting").touch()
        while not began and not (self.folder / "never").exists():
            time.sleep(0.01)
        return began, os.environ["COTENANT_ATTEMPT"]

executor = submitit.AutoExecutor(folder="logs/%j", cluster="cotenant")
executor.update_parameters(timeout_min=60, cpus_per_task=1, slurm_partition="none")
executor.update_parameters(cotenant_array_parallelism=1)
saves = executor.submit(Counts(os.getcwd()))
print(saves.job_id, flush=True)
sys.stdin.readline()  # It has been preempted.
one = executor.submit(add, 5, b=7)
many = executor.map_array(add, [1, 2], [10, 20])
with executor.batch():
    first, second = executor.submit(add, 1, 1), executor.submit(fails)
executor.update_parameters(tasks_per_node=2, gpus_per_node=2)
both = executor.submit(add, 2, 2)
try:
    second.result()
except submitit.core.utils.FailedJobError as error:
    failed = str(error)
long = executor.submit(time.sleep, 600)
long.cancel()
long.wait()
ids = [each.job_id for each in (one, *many, first, second)]
results = [each.result() for each in (one, *many, first)], both.results(), saves.result()
print(json.dumps([ids, results, one.stdout(), failed, long.get_info("force")["State"]]))
"""


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    with at_home(tmp_path_factory.mktemp("h"), agent__devices="cpu:2", profiler__seconds="0") as someone:
        someone.env["PATH"] = f"{Path(sys.executable).parent}:{someone.env['PATH']}"  # Where torchrun is.
        someone.write("app.py", APP)
        (someone.work / "hydra_plugins").mkdir()
        someone.write("hydra_plugins/tells.py", SWEEPER)
        yield someone


def begin(person: Person, *words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *words],
        env=person.env,
        cwd=person.work,
        text=True,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )


SWEEP = ("app.py", "--multirun", "hydra/launcher=cotenant", "hydra/sweeper=tells")


def test_a_hydra_sweep_is_one_array_and_its_values_come_back(person: Person) -> None:
    done = person.python(*SWEEP, "+lr=.1,5,.2", "hydra.launcher.time=1h", "hydra.launcher.at_once=2")
    assert done.code == 1, done
    assert "ValueError: 5 is too much" in done.err, "as Hydra tells of a run that failed"
    (array,) = set(re.findall(r"job (\d+)_\d : ", done.out))
    assert f"RETURNED [(0.2, '{array}_0'), ValueError('5 is too much'), (0.4, '{array}_2')]" in done.out
    assert [person.job(f"{array}_{at}")["state"] for at in range(3)] == ["done", "failed", "done"]
    (sweep,) = person.work.glob("multirun/*/*")
    assert [(sweep / str(at) / "lr").read_text() for at in range(3)] == ["0.1", "5", "0.2"]
    assert "lr is 5" in person.logs(f"{array}_1")


def test_ctrl_c_cancels_a_hydra_sweep(person: Person) -> None:
    process = begin(person, *SWEEP, "+lr=.1,.2,.3", "+wait=600")
    try:
        assert process.stdout is not None
        (job,) = re.findall(r"job (\d+_0) : ", process.stdout.readline())
        person.until_state(job, "loading", "running")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in said
    for at in range(3):
        person.until_state(job.replace("_0", f"_{at}"), "cancelled")


def test_a_misspelt_option_of_a_hydra_launcher_is_named(person: Person) -> None:
    done = person.python(*SWEEP, "+lr=.1", "hydra.launcher.tiem=1h")
    assert (done.code, "did you mean time?" in done.err) == (1, True), done


def test_submitit_code_runs_unchanged(person: Person) -> None:
    process = begin(person, str(person.write("submits.py", SUBMITIT)))
    try:
        assert process.stdout is not None
        saves = process.stdout.readline().strip()
        when((person.work / "counting").exists, lambda: person.logs(saves))
        assert person("preempt", saves).code == 0
        person.until(saves, lambda found: found["attempt"] == 2)
        out, err = process.communicate("\n", timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    ids, results, stdout, failed, cancelled = json.loads(out.splitlines()[-1])
    assert results == [[[12, 0], [11, 0], [22, 0], [2, 0]], [[4, 0], [4, 1]], [1, "2"]]
    assert ids[1].endswith("_0") and ids[2] == ids[1].replace("_0", "_1"), "map_array is an array"
    assert ids[3].endswith("_0") and ids[4] == ids[3].replace("_0", "_1"), "so is a batch"
    assert "adding" in stdout
    assert "KeyError: 'as on any cluster'" in failed
    assert cancelled == "CANCELLED"
    assert [person.job(ids[4])["state"], person.show(ids[1])["spec"]["array_limit"]] == ["failed", 1]
    assert Path(person.work / "logs" / ids[0] / f"{ids[0]}_0_log.out").is_file()


def torchx(person: Person, *words: str) -> Answer:
    return person.python("-m", "torchx.cli.main", *words)


def test_torchx_runs_tells_of_and_cancels_apps(person: Person) -> None:
    person.write("ranks.py", "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    ddp = ("dist.ddp", "-j", "1x2", "--cpu", "1", "--script", "ranks.py")
    done = torchx(person, "run", "-s", "cotenant", "-cfg", "time=1h,share=never", "--wait", "--log", *ddp)
    assert done.code == 0, done
    handle = re.search(r"cotenant://torchx/(\d+)", done.out)
    assert handle is not None
    said = torchx(person, "log", handle[0]).out
    assert all(f"rank {rank} of 2" in said for rank in range(2)), said
    spec = person.show(handle[1])["spec"]
    assert (spec["time_limit_s"], spec["share"], spec["gpus_min"]) == (3600, "never", 2)

    sleeping = torchx(person, "run", "-s", "cotenant", "utils.sh", "sleep", "600").out.strip()
    assert torchx(person, "cancel", sleeping).code == 0
    person.until_state(sleeping.rpartition("/")[2], "cancelled")
    assert "CANCELLED" in torchx(person, "status", sleeping).out
    listed = torchx(person, "list", "-s", "cotenant").out
    assert re.search(rf"{sleeping}\s+CANCELLED", listed), listed
