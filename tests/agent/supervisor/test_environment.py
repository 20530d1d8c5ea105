"""What a process of an attempt finds in its environment, and how launchers are told their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.agent.ipc.records import Order, RankOrder
from cotenant.agent.supervisor.processes.environment import Account, command_of, environment_of, meeting_of
from cotenant.agent.supervisor.processes.launchers import NotLaunchable
from cotenant.agent.supervisor.processes.ranks import cuda_indices
from cotenant.checkpoint.talk import protocol
from cotenant.controller.domain import AttemptNo, Launch, launcher_of
from tests.building import orders
from tests.building.orders import changed

SOCKET = Path("/a/7-a2/job/cotenant.sock")
ADA = Account(name="ada", home="/home/ada", shell="/bin/zsh")


def order_of(*, each: int = 2, host_no: int = 0, **fields: Any) -> Order:
    plain: dict[str, Any] = {
        "attempt": AttemptNo(2),
        "master_address": "10.0.0.1",
        "master_port": 29511,
        "ranks": tuple(RankOrder(rank=host_no * each + no, local_rank=no, cores=(no,)) for no in range(each)),
        "accumulation_steps": 4,
        "checkpoint_every_s": 600.0,
        "start_deadline_s": 1800.0,
        "jobside_path": "/state/jobside",
    }
    return orders.order_of(each, host_no=host_no, **{**plain, **fields})


def env_of(order: Order, no: int = 0) -> dict[str, str]:
    return environment_of(order, order.ranks[no], SOCKET, ADA)


def launch(*argv: str, mode: Any = "host", **fields: Any) -> Launch:
    return Launch(argv=argv, mode=mode, **fields)


def test_a_job_that_asks_for_the_hook_gets_it_first_on_its_path() -> None:
    launched = Launch(argv=("python", "t.py"), env={"PYTHONPATH": "/mine"}, zero_code=("accumulate", "mean"))
    env = env_of(order_of(launch=launched))
    assert env["PYTHONPATH"] == "/state/jobside/cotenant/gradaccum/startup:/state/jobside:/mine"
    assert env["COTENANT_ZERO_CODE"] == "accumulate,mean"
    assert "COTENANT_ZERO_CODE" not in env_of(order_of())
    assert env_of(order_of())["PYTHONPATH"] == "/state/jobside/cotenant/gradaccum/startup:/state/jobside"


def test_a_worker_knows_its_place() -> None:
    env = env_of(order_of(hosts=2, host_no=1), no=1)
    assert {name: env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert (env["GROUP_RANK"], env["MASTER_ADDR"], env["MASTER_PORT"]) == ("1", "10.0.0.1", "29511")


@pytest.mark.parametrize(
    ("mode", "ranked_alone", "devices", "is_ranked"),
    [
        ("process", True, 1, False),
        ("process", True, 2, False),
        ("worker", True, 1, True),
        ("worker", False, 1, False),
        ("worker", False, 2, True),
    ],
)
def test_a_command_that_is_started_as_it_was_typed_is_no_rank(
    mode: str, ranked_alone: bool, devices: int, is_ranked: bool
) -> None:
    order = order_of(each=devices, launch=launch("x", mode=mode, ranked_alone=ranked_alone))
    place = {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
    assert place & env_of(order).keys() == (place if is_ranked else set())
    assert not any(name.startswith("PET_") for name in env_of(order))


def test_the_protocols_variables() -> None:
    env = env_of(order_of(sub_batch=8, torch_limit_mib=4096))
    known = {value for name, value in vars(protocol).items() if name.startswith("ENV_")}
    assert {name: env[name] for name in known & env.keys()} == {
        protocol.ENV_PROTOCOL: "1",
        protocol.ENV_JOB: "7",
        protocol.ENV_ATTEMPT: "2",
        protocol.ENV_CHECKPOINT_ROOT: "/checkpoints/7",
        protocol.ENV_ACCUMULATION_STEPS: "4",
        protocol.ENV_SUB_BATCH: "8",
        protocol.ENV_SOCKET: str(SOCKET),
        protocol.ENV_MEMORY_MIB: "4096",
    }
    assert protocol.ENV_SUB_BATCH not in env_of(order_of())


def test_the_agents_own_environment_never_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKED", "1")
    monkeypatch.setenv("PATH", "/agents/own/bin")
    env = env_of(
        order_of(launch=launch("python", env={"PATH": "/home/ada/bin", "VIRTUAL_ENV": "/home/ada/venv"}))
    )
    assert "LEAKED" not in env
    assert env["PATH"] == "/home/ada/bin"
    assert env["VIRTUAL_ENV"] == "/home/ada/venv"
    assert env_of(order_of())["PATH"] == "/usr/local/bin:/usr/bin:/bin"


def test_secrets_are_there_and_win_over_recorded_ones() -> None:
    env = env_of(order_of(launch=launch("x", env={"HF_TOKEN": "***"}), secrets={"HF_TOKEN": "real"}))
    assert env["HF_TOKEN"] == "real"


def test_who_the_user_is_comes_from_the_host_unless_recorded() -> None:
    assert {name: env_of(order_of())[name] for name in ("HOME", "USER", "LOGNAME", "SHELL")} == {
        "HOME": "/home/ada",
        "USER": "ada",
        "LOGNAME": "ada",
        "SHELL": "/bin/zsh",
    }
    assert env_of(order_of(launch=launch("x", env={"HOME": "/elsewhere"})))["HOME"] == "/elsewhere"
    nobody = environment_of(order_of(), order_of().ranks[0], SOCKET, Account())
    assert "HOME" not in nobody


def test_as_many_threads_as_cores_unless_the_user_says_otherwise() -> None:
    order = order_of()
    assert env_of(order)["OMP_NUM_THREADS"] == "1"
    wide = msgspec.structs.replace(order, ranks=(RankOrder(rank=0, local_rank=0, cores=(0, 1, 2)),))
    assert env_of(wide)["OMP_NUM_THREADS"] == "3"
    own = order_of(launch=launch("x", mode="worker", env={"OMP_NUM_THREADS": "7"}))
    assert env_of(own)["OMP_NUM_THREADS"] == "7"
    gpu = order_of(each=1, ranks=(RankOrder(rank=0, local_rank=0, cuda_uuids=("GPU-a",)),))
    assert "OMP_NUM_THREADS" not in env_of(gpu)
    assert env_of(changed(gpu, cpus=8))["OMP_NUM_THREADS"] == "8"
    host = order_of(launch=launch("torchrun"), ranks=(RankOrder(rank=0, local_rank=0, cores=(0, 1, 2, 3)),))
    assert env_of(host)["OMP_NUM_THREADS"] == "2"
    once = order_of(launch=launch("x", mode="process"), ranks=host.ranks)
    assert env_of(once)["OMP_NUM_THREADS"] == "4", "one process has the cores of all its slots"
    on_gpus = order_of(launch=launch("x", mode="process"), ranks=(RankOrder(rank=0, local_rank=0),))
    assert env_of(changed(on_gpus, cpus=8))["OMP_NUM_THREADS"] == "8"


def test_devices_are_named_by_uuid_and_a_job_without_any_sees_none() -> None:
    ranks = (RankOrder(rank=0, local_rank=0, cuda_uuids=("GPU-a", "GPU-b")),)
    assert env_of(order_of(ranks=ranks))["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    own = order_of(launch=launch("x", env={"CUDA_VISIBLE_DEVICES": "0,1,2,3"}))
    assert env_of(own)["CUDA_VISIBLE_DEVICES"] == "", "nobody chooses devices but the controller"
    fenced = [
        any(name.startswith("CUDA_MPS_") for name in env_of(each)) for each in (order_of(ranks=ranks), own)
    ]
    assert fenced == [True, False], "a job without devices has nothing to be kept from"


def test_a_launcher_that_needs_numbers_gets_them_in_the_drivers_order() -> None:
    order = order_of(ranks=(RankOrder(rank=0, local_rank=0, cuda_uuids=("GPU-a",)),))
    env = environment_of(order, order.ranks[0], SOCKET, ADA, cuda_indices=(3,))
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("3", "PCI_BUS_ID")


def test_indices_are_the_drivers_and_in_a_container_those_of_what_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho GPU-a, 3; echo GPU-b, 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert cuda_indices(("GPU-a", "GPU-b"), alone=False) == (3, 1)
    assert cuda_indices(("GPU-a", "GPU-b"), alone=True) == (1, 0)
    with pytest.raises(NotLaunchable, match=r"does not say the index of GPU-c.*--devices-as uuid"):
        cuda_indices(("GPU-c",), alone=False)


def test_our_libraries_come_first_on_the_python_path() -> None:
    assert env_of(order_of())["PYTHONPATH"] == "/state/jobside/cotenant/gradaccum/startup:/state/jobside"
    own = order_of(launch=launch("x", env={"PYTHONPATH": "/home/ada/src:/b"}))
    startup = "/state/jobside/cotenant/gradaccum/startup"
    assert env_of(own)["PYTHONPATH"] == f"{startup}:/state/jobside:/home/ada/src:/b"


def test_the_network_interface() -> None:
    env = env_of(order_of(network="ib0"))
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("ib0", "ib0")
    own = order_of(network="ib0", launch=launch("x", env={"NCCL_SOCKET_IFNAME": "eth1"}))
    assert env_of(own)["NCCL_SOCKET_IFNAME"] == "eth1"
    assert "GLOO_SOCKET_IFNAME" not in env_of(order_of())


def test_what_runs_in_a_job_finds_the_controller_of_its_host_or_the_one_its_user_names() -> None:
    order = order_of(controller="tcp://a:7070,tcp://b:7070")
    assert env_of(order)["COTENANT_CONTROLLER__ENDPOINT"] == "tcp://a:7070,tcp://b:7070"
    own = {"COTENANT_CONTROLLER__ENDPOINT": "tcp://c:7070"}
    named = changed(order, launch=launch("x", env=own))
    assert env_of(named)["COTENANT_CONTROLLER__ENDPOINT"] == "tcp://c:7070"
    assert "COTENANT_CONTROLLER__ENDPOINT" not in env_of(order_of())


def test_what_differs_from_rank_to_rank_comes_last() -> None:
    order = order_of(ranks=(RankOrder(rank=0, local_rank=0, env={"CUDA_MPS_PIPE_DIRECTORY": "/mps"}),))
    assert env_of(order)["CUDA_MPS_PIPE_DIRECTORY"] == "/mps"


# --- Launchers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "launcher"),
    [
        (("torchrun", "t.py"), "torchrun"),
        (("/venv/bin/torchrun", "t.py"), "torchrun"),
        (("python", "-m", "torch.distributed.run", "t.py"), "torchrun"),
        (("python3.11", "-u", "-m", "torch.distributed.launch", "t.py"), "torchrun"),
        (("accelerate", "launch", "t.py"), "accelerate"),
        (("accelerate", "config"), ""),
        (("deepspeed", "t.py"), "deepspeed"),
        (("python", "torchrun.py"), ""),
        (("python", "-m", "mypackage"), ""),
        ((), ""),
    ],
)
def test_launchers_are_recognised(argv: tuple[str, ...], launcher: str) -> None:
    assert launcher_of(argv) == launcher


def test_torchrun_takes_its_place_from_its_own_variables_and_its_command_line_stays() -> None:
    order = order_of(hosts=2, host_no=1, launch=launch("torchrun", "--max-restarts=1", "t.py"))
    assert command_of(order) == ("torchrun", "--max-restarts=1", "t.py")
    env = env_of(order)
    assert {name: value for name, value in env.items() if name.startswith("PET_")} == {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "29511",
    }
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & env.keys()


def test_accelerate_is_told_only_what_the_user_left_out() -> None:
    order = order_of(
        hosts=2, host_no=1, launch=launch("accelerate", "launch", "--machine-rank=5", "t.py", "--lr", "1")
    )
    assert command_of(order) == (
        "accelerate", "launch",
        "--num_processes", "4", "--num_machines", "2",
        "--main_process_ip", "10.0.0.1", "--main_process_port", "29511",
        "--machine-rank=5", "t.py", "--lr", "1",
    )  # fmt: skip


def test_accelerate_with_one_gpu_here_and_one_there() -> None:
    assert "--multi_gpu" in command_of(
        order_of(hosts=2, each=1, launch=launch("accelerate", "launch", "t.py"))
    )
    fsdp = launch("accelerate", "launch", "--use_fsdp", "t.py")
    assert "--multi_gpu" not in command_of(order_of(hosts=2, each=1, launch=fsdp))
    assert "--multi_gpu" not in command_of(order_of(launch=launch("accelerate", "launch", "t.py")))


def test_deepspeed_on_one_host() -> None:
    assert command_of(order_of(launch=launch("deepspeed", "t.py"))) == (
        "deepspeed",
        "--master_port=29511",
        "t.py",
    )
    module = launch("python", "-m", "deepspeed.launcher.runner", "t.py")
    assert command_of(order_of(launch=module))[3:] == ("--master_port=29511", "t.py")


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (order_of(hosts=2, launch=launch("deepspeed", "t.py")), "needs ssh between hosts"),
        (order_of(launch=launch("deepspeed", "--num_gpus", "2", "t.py")), "ignores the devices"),
        (order_of(launch=launch("deepspeed", "--include=localhost:0", "t.py")), "ignores the devices"),
    ],
)
def test_deepspeed_is_refused_where_it_would_take_what_is_not_its_own(order: Order, why: str) -> None:
    with pytest.raises(NotLaunchable, match=why):
        command_of(order)


def test_a_command_that_is_started_per_worker_is_left_alone() -> None:
    order = order_of(launch=launch("torchrun", "t.py", mode="worker"))
    assert command_of(order) == ("torchrun", "t.py")
    assert meeting_of(order).workers == 2
