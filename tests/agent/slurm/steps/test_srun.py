"""`srun`, `scontrol` and `module` as programs, as the agent lays them out for a job."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cotenant.agent.host import jobside
from cotenant.agent.ipc.records import Order, RankOrder
from cotenant.agent.supervisor.processes.environment import Account, environment_of
from cotenant.controller.domain import AttemptNo, JobId, Launch, SlurmScript
from tests.building.limits import within_s
from tests.building.orders import PLAIN, order_of

PATIENCE_S = within_s(60.0)


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jobside.prepare_jobside(tmp_path_factory.mktemp("side"))


class Script:
    """A script's surroundings on one host, and lines to run there."""

    def __init__(self, folder: Path, side: Path, host: int = 0, hosts: int = 1, **asked: Any) -> None:
        more = {name: asked.pop(name) for name in ("job_id", "attempt", "time_left_s") if name in asked}
        env = {"PATH": os.environ["PATH"], **asked.pop("env", {})}
        launch = Launch(argv=("bash",), mode="host", env=env, slurm=SlurmScript(**asked))
        self.order: Order = order_of(
            2, hosts=hosts, host_no=host, launch=launch, name="try", user="ada",
            jobside_path=str(side), master_address="127.0.0.1", master_port=29511, **more,
        )  # fmt: skip
        self.folder = folder
        rank = RankOrder(rank=2 * host, local_rank=0, cores=(0, 1), cuda_uuids=("GPU-a", "GPU-b"))
        self.env = environment_of(self.order, rank, folder / "cotenant.sock", Account())

    def begun(self, text: str, shell: str = "bash") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [shell, "-c", text],
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, text: str, shell: str = "bash") -> tuple[int, list[str], str]:
        process = self.begun(text, shell)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, sorted(out.splitlines()), err


@pytest.fixture
def one(tmp_path: Path, side: Path) -> Script:
    return Script(tmp_path, side, tasks=2, job_id=JobId(f"{os.getpid()}"))


def test_a_step_has_a_task_per_device_and_each_knows_its_place(one: Script) -> None:
    said = "echo $SLURM_PROCID/$SLURM_NTASKS $RANK/$WORLD_SIZE $LOCAL_RANK $CUDA_VISIBLE_DEVICES"
    code, out, err = one(f"srun bash -c '{said}'")
    assert (code, err) == (0, "")
    assert out == ["0/2 0/2 0 GPU-a,GPU-b", "1/2 1/2 1 GPU-a,GPU-b"]
    assert one(f"srun -l --gpus-per-task=1 bash -c '{said}'")[1] == [
        "0: 0/2 0/2 0 GPU-a",
        "1: 1/2 1/2 1 GPU-b",
    ]


def test_a_login_shell_and_a_plain_one_find_it(one: Script) -> None:
    assert one("srun -n1 echo x", "sh")[1] == ["x"]
    assert one("bash -lc 'srun -n1 echo x; module load cuda && ml x'")[1] == ["x"]


def test_environment_modules_that_are_not_there_end_nothing(one: Script) -> None:
    code, out, err = one("set -e; module purge; module load gcc; echo on")
    assert (code, out) == (0, ["on"])
    assert "this host has no environment modules" in err


def test_the_worst_end_is_the_steps_and_the_others_are_ended(one: Script) -> None:
    code, _, err = one("srun bash -c 'if [ $SLURM_PROCID = 1 ]; then exit 3; fi; exec sleep 600'")
    assert code == 3, "the others were made to end, which is nobody's failure"
    assert "srun: error: h: task 1: exit code 3" in err
    assert one("srun --kill-on-bad-exit=0 bash -c 'exit $SLURM_PROCID'")[0] == 1
    assert one("srun no-such-program")[0] == 127


def test_what_a_step_has_is_locked_where_no_other_account_can_lock_it(one: Script) -> None:
    """An abstract socket's name could be anybody's: it has no owner and no folder."""
    names = [
        f"\0cotenant-step-{os.getuid()}-{os.getpid()}-1-h-{what}" for what in ("voice", "gpu-0", "gpu-1")
    ]
    with ExitStack() as taken:
        for name in names:
            taken.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).bind(name)
        assert one("srun -n1 --gpus=1 bash -c 'echo ${COTENANT_SOCKET:+speaks}'")[1] == ["speaks"]
    assert {path.name for path in one.folder.glob("claim-*")} == {"claim-voice", "claim-gpu-0"}
    assert one("srun -n2 srun -n1 bash -c 'echo ${COTENANT_STEP_FOLDER}'")[1] == [str(one.folder)] * 2


def test_steps_side_by_side_have_gpus_of_their_own_and_one_of_them_speaks_for_the_job(one: Script) -> None:
    said = 'echo "$0 $CUDA_VISIBLE_DEVICES ${COTENANT_SOCKET:+speaks}"; read x < go-$0'
    names = ("a", "b", "c")
    for name in names:
        os.mkfifo(one.folder / f"go-{name}")
    process = one.begun("\n".join([*(f"srun -n1 --gpus=1 bash -c '{said}' {n} &" for n in names), "wait"]))
    assert process.stdout is not None and process.stderr is not None
    seen: dict[str, list[str]] = {}
    first = ""
    for ends in (False, False, True):
        if ends:
            assert process.stderr.readline() == "srun: waits for GPUs of other steps\n"
            assert {words[0] for words in seen.values()} == {"GPU-a", "GPU-b"}, (
                "the third waits for one of them"
            )
            first = min(seen)
            (one.folder / f"go-{first}").write_text("on\n")
        name, *words = process.stdout.readline().split()
        seen[name] = words
    for name in sorted(seen.keys() - {first}):
        (one.folder / f"go-{name}").write_text("on\n")
    process.communicate(timeout=PATIENCE_S)
    assert sorted(seen) == ["a", "b", "c"]


def test_a_part_of_the_gang_does_not_speak_for_the_job(tmp_path: Path, side: Path) -> None:
    script = Script(tmp_path, side, hosts=2, tasks=4, job_id=JobId(f"{os.getpid()}"))
    assert script("srun -N1 -n1 bash -c 'echo ${COTENANT_SOCKET:-silent}'")[1] == ["silent"]
    code, out, _ = script("srun bash -c 'echo ${COTENANT_SOCKET:+speaks} $WORLD_SIZE'")
    assert (code, out) == (0, ["speaks 4", "speaks 4"])


def test_each_host_has_its_own_tasks(tmp_path: Path, side: Path) -> None:
    second = Script(tmp_path, side, host=1, hosts=2, tasks=4, job_id=JobId(f"{os.getpid()}"))
    assert second("srun bash -c 'echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID'")[1] == ["2 0 1", "3 1 1"]
    assert second("srun -N1 -n1 echo first")[:2] == (0, [])
    assert second('srun -N1 -n1 -w "$(scontrol show hostnames | head -n 1)" hostname -i')[1] == ["127.0.0.1"]


def test_the_hosts_one_by_one(one: Script) -> None:
    assert one('scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1')[1] == ["127.0.0.1"]
    assert one("scontrol show hostnames 'gpu[1-2]'")[1] == ["gpu1", "gpu2"]
    assert f"JobId={os.getpid()} JobName=try" in one("scontrol show job $SLURM_JOB_ID")[1]
    assert "TimeLimit=UNLIMITED EndTime=Unknown" in " ".join(one("scontrol show job")[1])
    code, _, err = one("scontrol update job 3")
    assert code == 1 and "known are show hostnames" in err


def test_a_script_sees_its_time_limit(tmp_path: Path, side: Path) -> None:
    limited = Script(tmp_path, side, job_id=JobId(f"{os.getpid()}"), time_left_s=93_784.0)
    assert "   TimeLimit=1-02:03:04 EndTime=" in "\n".join(limited("scontrol show job")[1])


def test_each_of_slurms_variables_is_in_env_once(one: Script) -> None:
    names = [line.partition("=")[0] for line in one("env")[1] if "SLURM" in line.partition("=")[0]]
    assert sorted(names) == sorted(name for name in one.env if "SLURM" in name)


def test_steps_are_counted_and_write_where_they_are_told(one: Script) -> None:
    assert one("srun -n1 bash -c 'echo $SLURM_STEP_ID'; srun -n1 bash -c 'echo $SLURM_STEP_ID'")[1] == [
        "0",
        "1",
    ]
    one("srun -o out-%x-%t.txt bash -c 'echo $SLURM_PROCID'")
    assert [(one.folder / f"out-try-{task}.txt").read_text() for task in (0, 1)] == ["0\n", "1\n"]


def test_errors_go_to_a_file_of_their_own(one: Script) -> None:
    code, out, err = one("srun -n1 -o %j/out -e err-%j-%t sh -c 'echo said; echo wrong >&2'")
    assert (code, out, err) == (0, [], "")
    number = one.env["SLURM_JOB_ID"]
    assert (one.folder / number / "out").read_text() == "said\n"
    assert (one.folder / f"err-{number}-0").read_text() == "wrong\n"


def test_a_step_knows_its_job_where_a_client_has_removed_the_variables(one: Script) -> None:
    kept = "env -u SLURM_JOB_NODELIST -u SLURM_NODEID -u SLURM_NTASKS -u SLURM_TASKS_PER_NODE"
    assert one(f"{kept} srun -n1 sh -c 'echo $SLURM_NODEID/$SLURM_NTASKS'") == (0, ["0/1"], "")


def test_what_tasks_are_sent_before_the_limit(tmp_path: Path, side: Path) -> None:
    script = Script(
        tmp_path, side, tasks=1, signal=int(signal.SIGUSR1), signal_before_s=600.0, time_left_s=600.0,
        job_id=JobId(f"{os.getpid()}"),
    )  # fmt: skip
    code, _, err = script("srun sleep 600")
    assert (code, "signal 10" in err) == (128 + signal.SIGUSR1, True)


def test_a_script_is_told_what_slurm_tells(tmp_path: Path, side: Path) -> None:
    env = Script(
        tmp_path, side, tasks_per_host=2, hosts=2, host=1, array_position=3, job_id=JobId("7_12"),
        attempt=AttemptNo(2), time_left_s=60.0, variables={"SLURM_SUBMIT_DIR": "/home/ada"},
        env={"BASH_FUNC_module%%": "() {  true\n}"},
    ).env  # fmt: skip
    wanted = {
        "SLURM_JOB_ID": "10", "SLURM_JOBID": "10", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "12",
        "SLURM_JOB_NODELIST": "h0,h1", "SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURMD_NODENAME": "h1",
        "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_PROCID": "0", "SLURM_RESTART_COUNT": "1",
        "SLURM_GPUS_ON_NODE": "2", "SLURM_CPUS_ON_NODE": "2", "SLURM_JOB_NAME": "try",
        "SLURM_JOB_USER": "ada",
        "SLURM_SUBMIT_DIR": "/home/ada",
    }  # fmt: skip
    assert {name: env.get(name) for name in wanted} == wanted
    assert int(env["SLURM_JOB_END_TIME"]) - int(env["SLURM_JOB_START_TIME"]) == 60
    assert env["PATH"].startswith(f"{side}/steps/bin:")
    assert env["BASH_FUNC_module%%"] == "() {  true\n}", "the user's own stays"


def test_other_jobs_are_told_nothing_of_slurm() -> None:
    rank = RankOrder(rank=0, local_rank=0)
    env = environment_of(PLAIN, rank, Path("/s"), Account())
    assert not [name for name in env if name.startswith(("SLURM", "BASH_FUNC"))]
