"""Clients of Slurm, unchanged and in an environment of their own, on a controller and an agent of ours: each
says hello, maps a function or runs an array, fails, and cancels what runs. All of them run at the same time,
and none waits for a core while it holds one: there may be only one."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.person import PATIENCE_S, Person, at_home, when

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / ".venv-clients" / "bin"
HAVE_CLIENTS = (CLIENTS / "python").exists()

SUBMITIT = """
import json, os, time
import submitit

def square(x):
    place = submitit.JobEnvironment()
    return [x * x, place.global_rank, place.num_tasks]

def fail():
    raise ValueError("on purpose")

def stay():
    open("stays", "w").close()
    time.sleep(600)

executor = submitit.AutoExecutor(folder="logs/%j", cluster="slurm")
executor.update_parameters(timeout_min=5, slurm_partition="gpu", mem_gb=1)
long, hello, bad = executor.submit(stay), executor.submit(square, 3), executor.submit(fail)
array = executor.map_array(square, [1, 2, 3])
executor.update_parameters(slurm_ntasks_per_node=2)
two = executor.submit(square, 4)
try:
    bad.result()
except submitit.core.utils.FailedJobError as error:
    failure = "on purpose" in str(error) and "on purpose" in bad.stderr()
said = {
    "hello": hello.result(), "array": [job.result() for job in array], "tasks": two.results(),
    "failed": failure, "job": long.job_id,
}
while not os.path.exists("stays"):
    time.sleep(0.1)
long.cancel()
while not long.done(force_check=True):
    time.sleep(0.2)
said["states"] = [job.watcher.get_state(job.job_id, "force") for job in (hello, array[2], bad, long)]
print(json.dumps(said))
"""

DASK = """
import asyncio, json
from dask_jobqueue import SLURMCluster
from dask_jobqueue.slurm import SLURMJob
from distributed import Client

def refusal():
    wrong = SLURMJob("tcp://127.0.0.1:1", cores=1, memory="256 MB", job_extra_directives=["-w node1"])
    try:
        asyncio.run(wrong.start())
    except RuntimeError as error:
        return str(error)

if __name__ == "__main__":
    with SLURMCluster(
        cores=1, memory="256 MB", processes=1, queue="gpu", walltime="00:05:00", interface="lo",
        log_directory="workers", scheduler_options={"dashboard_address": None},
    ) as cluster:
        cluster.scale(jobs=2)
        with Client(cluster) as client:
            said = {
                "hello": client.submit(lambda: "hello").result(),
                "map": client.gather(client.map(lambda x: x * x, range(4))),
                "failed": repr(client.submit(lambda: 1 // 0).exception()),
                "jobs": [worker.job_id for worker in cluster.workers.values()],
            }
    said["refused"] = refusal()
    print(json.dumps(said))
"""

PARSL = """
import json, time
import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider

@parsl.python_app
def square(x):
    return x * x

@parsl.python_app
def fail():
    raise ValueError("on purpose")

def provider():
    return SlurmProvider(
        partition="gpu", exclusive=False, walltime="00:05:00", cmd_timeout=120, launcher=SrunLauncher(),
    )

if __name__ == "__main__":
    blocks = provider()
    executor = HighThroughputExecutor(
        address="127.0.0.1", max_workers_per_node=2, provider=blocks, encrypted=False,
    )
    with parsl.load(Config(executors=[executor], strategy="none")):
        said = {"hello": square(3).result(), "map": [each.result() for each in map(square, range(4))]}
        try:
            fail().result()
        except ValueError as error:
            said["failed"] = str(error)
    said["block"] = list(blocks.resources)  # Cancelled at the end.
    own = provider()
    own.script_dir = "."
    jobs = [own.submit("exit 3", 1), own.submit("sleep 600", 1)]
    while [each.state.name for each in own.status(jobs)] != ["FAILED", "RUNNING"]:
        time.sleep(0.2)
    said["cancelled"] = own.cancel(jobs[1:])
    said["jobs"] = jobs
    print(json.dumps(said))
"""

SNAKEFILE = """
rule square:
    output: "square-{n}.txt"
    shell: "expr {wildcards.n} '*' {wildcards.n} > {output}"
rule hello:
    output: "hello.txt"
    shell: "echo hello from $SLURM_JOB_ID > {output}"
rule wrong:
    output: "never.txt"
    shell: "exit 3"
rule stays:
    input: "hello.txt", expand("square-{n}.txt", n=[1, 2])
    output: "late.txt"
    shell: "touch stays; sleep 600"
"""
SNAKEMAKE = (
    "exec env --default-signal=INT snakemake --executor slurm --jobs 8 --keep-going --slurm-array-jobs square"
    " --default-resources mem_mb=500 runtime=5 slurm_account=nlp"
    " --slurm-init-seconds-before-status-checks 4 --seconds-between-status-checks 1"
    " never.txt late.txt"
)

NEXTFLOW = """#!/bin/bash
#SBATCH -J nf-hello_({name})
#SBATCH -o {output}
#SBATCH --no-requeue
#SBATCH --signal B:USR2@30
#SBATCH -t 00:05:00
{array}
on_exit() {{ status=$?; printf -- $status > .exitcode; exit $status; }}
trap on_exit EXIT
trap 'kill $pid; exit 143' TERM INT USR2
touch .command.begin
({command}) & pid=$!
wait $pid
"""
"""As its `.command.run` is built: the task in the background, an exit code for a file."""


class Client:
    """A client's program at work in a folder of its own."""

    def __init__(self, person: Person, name: str, words: list[str]) -> None:
        self.person, self.folder = person, person.work / name
        self.log = self.folder / "said.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                words, cwd=self.folder, env=person.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def said(self) -> dict[str, Any]:
        """The last line, once it has ended."""
        assert self.process.wait(PATIENCE_S) == 0, self.text()
        found: dict[str, Any] = json.loads(self.text().splitlines()[-1])
        return found


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    folder = tmp_path_factory.mktemp("s")
    with at_home(folder, agent__devices="cpu:8", agent__heartbeat_s="0.3") as made:
        made("slurm-aliases", str(folder / "bin"))
        made.env["PATH"] = f"{folder / 'bin'}:{CLIENTS}:{Path(sys.executable).parent}:{made.env['PATH']}"
        made.env["DASK_CONFIG"] = made.env["XDG_CACHE_HOME"] = str(folder / "cache")
        yield made


@pytest.fixture(scope="module")
def clients(person: Person) -> Iterator[dict[str, Client]]:
    if not HAVE_CLIENTS:
        pytest.skip(".venv-clients is not there: see tests/requirements-slurm-clients.txt")
    programs = {"submitit": SUBMITIT, "dask": DASK, "parsl": PARSL}
    begun: dict[str, Client] = {}
    try:
        for name, text in programs.items():
            (person.work / name).mkdir()
            person.write(f"{name}/program.py", text)
            begun[name] = Client(person, name, ["python", "program.py"])
        (person.work / "snakemake").mkdir()
        person.write("snakemake/Snakefile", SNAKEFILE)
        begun["snakemake"] = Client(person, "snakemake", ["sh", "-c", SNAKEMAKE])
        yield begun
    finally:
        for each in begun.values():
            each.process.kill()
            each.process.wait()


def states(person: Person, *jobs: str) -> list[str]:
    shown = shell(person, f"sacct -X -n -P -o State -j {','.join(jobs)}")
    return shown.split()


def shell(person: Person, line: str, cwd: Path | None = None, text: str = "") -> str:
    done = subprocess.run(
        ["bash", "-c", line], cwd=cwd or person.work, env=person.env, input=text, capture_output=True,
        text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done
    return done.stdout


def test_snakemake(clients: dict[str, Client], person: Person) -> None:
    at_work = clients["snakemake"]
    stays = at_work.folder / "stays"
    when(lambda: stays.exists() and "Error in rule wrong" in at_work.text(), at_work.text)
    text = at_work.text()
    assert "SLURM status is: 'FAILED'. Reason: Step 0: failed: exit code 1" in text
    assert [(at_work.folder / f"square-{n}.txt").read_text() for n in (1, 2)] == ["1\n", "4\n"]
    assert "The individual task IDs are 1-2." in text
    assert (at_work.folder / "hello.txt").read_text().startswith("hello from ")
    at_work.process.send_signal(signal.SIGINT)  # It ends once its own next look at the states is due.
    (late,) = re.findall(r"SLURM jobid (\d+) \(log: .*/rule_stays/", text)
    person.until_state(late, "cancelled")


def test_submitit(clients: dict[str, Client], person: Person) -> None:
    said = clients["submitit"].said()
    assert said["hello"] == [9, 0, 1]
    assert said["array"] == [[1, 0, 1], [4, 0, 1], [9, 0, 1]]
    assert said["tasks"] == [[16, 0, 2], [16, 1, 2]]
    assert said["failed"] is True
    assert said["states"] == ["COMPLETED", "COMPLETED", "FAILED", "CANCELLED"]
    person.until_state(said["job"], "cancelled")


def test_dask_jobqueue(clients: dict[str, Client], person: Person) -> None:
    said = clients["dask"].said()
    assert (said["hello"], said["map"]) == ("hello", [0, 1, 4, 9])
    assert said["failed"].startswith("ZeroDivisionError")
    assert "#SBATCH -w is not possible here" in said["refused"]
    for job in said["jobs"]:
        person.until_state(job, "cancelled")


def test_parsl(clients: dict[str, Client], person: Person) -> None:
    said = clients["parsl"].said()
    assert (said["hello"], said["map"]) == (9, [0, 1, 4, 9])
    assert said["failed"] == "on purpose"
    assert said["cancelled"] == [True]
    for job in (*said["block"], said["jobs"][1]):
        person.until_state(job, "cancelled")
    assert states(person, said["jobs"][0]) == ["FAILED"]


def test_the_words_of_nextflow(person: Person) -> None:
    """Nextflow itself is not to be had here: its words, and a script in the form of its `.command.run`."""

    def run(name: str, command: str, array: str = "") -> str:
        folder = person.work / name
        folder.mkdir()
        output = "/dev/null" if array else str(folder / ".command.log")
        text = NEXTFLOW.format(name=name, output=output, array=array, command=command)
        (folder / ".command.run").write_text(text)
        answer = shell(person, "sbatch .command.run 2>&1", folder)
        assert "Submitted batch job " in answer
        return answer.split()[-1]

    hello = run("nf1", "echo hello")
    wrong = run("nf2", "exit 3")
    array = run("nf3", "touch $SLURM_ARRAY_TASK_ID", "#SBATCH --array 0-1")
    stays = run("nf4", "touch stays; exec sleep 600")
    when(lambda: (person.work / "nf4" / "stays").exists(), lambda: person.logs(stays))
    assert shell(person, f"scancel {stays}") == ""

    def statuses() -> dict[str, str]:
        out = shell(person, "squeue --noheader -o '%i %t' -t all -u $(id -un)")
        return dict(line.split() for line in out.splitlines())

    wanted = {hello: "CD", wrong: "F", f"{array}_0": "CD", f"{array}_1": "CD", stays: "CA"}
    when(lambda: wanted.items() <= statuses().items(), statuses)
    assert (person.work / "nf1" / ".command.log").read_text() == "hello\n"
    assert [(person.work / f"nf{n}" / ".exitcode").read_text() for n in (1, 2, 4)] == ["0", "3", "143"]
    assert all((person.work / "nf3" / index).exists() for index in "01")


def test_salloc_runs_a_command_or_opens_a_shell(person: Person) -> None:
    assert shell(person, "salloc -n 2 srun bash -c 'echo $SLURM_PROCID' | sort") == "0\n1\n"
    said = shell(person, "salloc --gres=gpu:1 -t 5", text="srun -l echo on-$SLURM_NTASKS-$SLURM_GPUS\nexit\n")
    assert "0: on-1-1" in said
    assert "slurm-" not in " ".join(each.name for each in person.work.iterdir())
