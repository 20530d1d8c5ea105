"""Hosts as an administrator meets them: `doctor` has what is wrong first, and the command for it.

The driver's answers come from the mock NVML library through the code of the driver's child; what lies around
the GPUs is a tree of files in a temporary folder, or said by hand where a file cannot show it to root.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from cotenant.controller.cli.doctor.check import Check
from cotenant.controller.cli.doctor.controller_link import AgentAnswer
from cotenant.controller.cli.doctor.doctor import page, run_all
from cotenant.controller.cli.doctor.facts import Facts
from cotenant.controller.cli.doctor.host_files import (
    Cgroup,
    DeviceFile,
    Folder,
    InheritedLimits,
    SettingsFile,
    Torch,
)
from cotenant.controller.cli.doctor.processes import Agent, SeenProcess
from cotenant.controller.domain import HostState
from cotenant.controller.system import settings
from cotenant.profiler.driver.facts import DriverFacts
from tests.agent.mock_gpus import ONE, TWO, build
from tests.building.limits import within_s
from tests.controller.cli.gpu_hosts import FILES, MPS, NOBODY, made_up

CONTAINER: Final[Mapping[str, Any]] = {"container": True, "user": "root", "device_files": ()}
H100: Final = (
    f"gpu 0 uuid {ONE}", "gpu 0 name NVIDIA H100 80GB HBM3", "gpu 0 gpm 1", "gpu 0 clocks 1980 1980 0",
    f"gpu 1 uuid {TWO}", "gpu 1 name NVIDIA H100 80GB HBM3", "gpu 1 gpm 1", "gpu 1 clocks 1980 1980 0",
)  # fmt: skip
WORN: Final = (*H100, "gpu 1 rc 15", "gpu 0 persistence 0")
V100: Final = (f"gpu 0 uuid {ONE}", "gpu 0 name Tesla V100-SXM2-16GB", "gpu 0 capability 7.0", "cuda 12080")
GEFORCE: Final = (f"gpu 0 uuid {ONE}", "gpu 0 name NVIDIA GeForce RTX 4090", "gpu 0 capability 8.9")
NOT_OURS: Final = DeviceFile(path="/dev/nvidia0", mode=0o600, owner="root", group="root", ours=False)
BY_GROUP: Final = msgspec.structs.replace(NOT_OURS, mode=0o660, group="render")
UNIT: Final = Agent(
    pid=7, user="root", uid=0, cgroup="/system.slice/cotenant-agent.service", kill_mode="process"
)
DISK: Final = Folder(role="checkpoints", setting="checkpoint.root", path="/ck", exists="/ck", free_mib=90_000)
STATE: Final = Folder(
    role="agent's state", setting="agent.state_dir", path="/st", exists="/st", free_mib=90_000
)
JOURNAL: Final = msgspec.structs.replace(
    STATE, role="journal", setting="controller.state_dir", filesystem="nfs4"
)
DAEMON: Final = SeenProcess(
    pid=4711,
    user="bob",
    uid=1001,
    words=("nvidia-cuda-mps-control", "-d"),
    pipes="/tmp/nvidia-mps",
    since="2026-11-30 09:12",
)
ENGINE: Final = SeenProcess(pid=50, user="root", words=("/usr/bin/nv-hostengine", "-n"))
EXPORTER: Final = SeenProcess(pid=51, user="root", words=("/usr/bin/dcgm-exporter",))
FALLEN: Final = "controller at tcp://head:7070 does not accept this key (status 400)"


class Situation(NamedTuple):
    check: str
    verdict: str
    words: str
    command: str = ""
    nvml: tuple[str, ...] = H100
    files: Mapping[str, Any] = {}
    around: Mapping[str, Any] = {}
    mps: Mapping[str, Any] = {}
    link: AgentAnswer | None = None
    todo: str = ""
    settings: Mapping[str, object] = {}


S = Situation
SITUATIONS: Final[dict[str, Situation]] = {
    "no driver on Debian": S(
        "GPUs", "fail", "2 NVIDIA GPUs on the bus, but NVML: no NVIDIA driver library",
        "sudo apt install nvidia-driver", ("init 12",), {"pci_devices": 2, "module": "", "is_debian": True},
    ),
    "no driver elsewhere": S(
        "GPUs", "fail", "on the bus", "", ("init 12",), {"pci_devices": 2, "module": ""},
        todo="as your distribution or NVIDIA does",
    ),
    "a driver that is not loaded": S(
        "GPUs", "fail", "the NVIDIA driver is not loaded", "sudo modprobe nvidia", ("init 9",)
    ),
    "a driver too old for torch": S(
        "driver", "fail", "450.80.02, serves CUDA up to 10.2: torch 2.5", "",
        (*H100, "driver 450.80.02", "cuda 10020"), todo="install a newer one of NVIDIA's driver",
    ),
    "a driver of CUDA 11": S(
        "driver", "warn", "only torch built for CUDA 11.8", "sudo apt install nvidia-driver",
        (*H100, "driver 470.1", "cuda 11040"), {"is_debian": True},
    ),
    "a driver updated under the kernel": S(
        "GPUs", "fail", "driver and library have different versions",
        "sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia", ("init 18",),
        todo="reboot",
    ),
    "an image with a driver library of its own": S(
        "GPUs", "fail", "different versions", "", ("init 18",), CONTAINER,
        todo="the image brings a driver library of its own",
    ),
    "device files of another group": S(
        "GPUs", "fail", "this user may not talk to the NVIDIA driver", "sudo usermod -aG render ada",
        ("init 4",), {"device_files": (BY_GROUP,)},
    ),
    "device files for root alone": S(
        "device files", "fail", "not for ada: /dev/nvidia0 (600 root:root)", "sudo chmod a+rw /dev/nvidia0",
        ("init 4",), {"device_files": (NOT_OURS,)},
    ),
    "a container without GPUs": S(
        "GPUs", "fail", "2 NVIDIA GPUs on the bus, but NVML: no NVIDIA driver library", "", ("init 12",),
        {**CONTAINER, "pci_devices": 2, "module": ""}, todo="--gpus all",
    ),
    "a container with the library and no device files": S(
        "GPUs", "fail", "not loaded", "", ("init 9",), CONTAINER, todo="--gpus all"
    ),
    "a container that lost its GPUs": S(
        "GPUs", "fail", "Unknown Error", "", ("init 999",), CONTAINER, todo="restart it"
    ),
    "all in MIG mode": S(
        "MIG", "ok", "GPU 0 in MIG mode (2 instances; jobs name their type, one on each)", "",
        (f"gpu 0 uuid {ONE}", "gpu 0 mig 1", "gpu 0 instance MIG-1 MIG 3g.40gb",
         "gpu 0 instance MIG-2 MIG 3g.40gb"),
    ),
    "one of two in MIG mode": S(
        "MIG", "warn", "GPU 1 in MIG mode", f"sudo nvidia-smi -i {TWO} -mig 0", (*H100, "gpu 1 mig 1")
    ),
    "MIG mode that waits for a reset": S(
        "MIG", "warn", "GPU 1 will enter MIG mode at the next reset", f"sudo nvidia-smi -i {TWO} --gpu-reset",
        (*H100, "gpu 1 mig_next 1"),
    ),
    "EXCLUSIVE_PROCESS": S(
        "compute mode", "warn", "through MPS or not at all", f"sudo nvidia-smi -i {ONE} -c DEFAULT",
        (*H100, "gpu 0 mode 3"),
    ),
    "PROHIBITED": S(
        "compute mode", "fail", "GPU 1 in PROHIBITED mode: nothing can run there",
        f"sudo nvidia-smi -i {TWO} -c DEFAULT", (*H100, "gpu 1 mode 2"),
    ),
    "no persistence": S(
        "persistence", "warn", "off on GPU 0", "sudo nvidia-smi -pm 1", (*H100, "gpu 0 persistence 0")
    ),
    "no persistence on Debian": S(
        "persistence", "warn", "off on GPU 0",
        "sudo apt install nvidia-persistenced && sudo systemctl enable --now nvidia-persistenced",
        (*H100, "gpu 0 persistence 0"), {"is_debian": True},
    ),
    "somebody else's MPS daemon": S(
        "other MPS", "warn", "pid 4711 of bob (/tmp/nvidia-mps, since 2026-11-30 09:12): no GPU job of ours",
        "echo quit | sudo -u bob env CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps nvidia-cuda-mps-control",
        around={"mps_daemons": (DAEMON,)},
    ),
    "what an MPS daemon has left behind": S(
        "other MPS", "ok", "/tmp/nvidia-mps is left over from a daemon of bob", files={"mps_left_by": "bob"}
    ),
    "somebody else's MPS daemon, for root": S(
        "other MPS", "warn", "pid 4711 of bob",
        "echo quit | runuser -u bob -- env CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps nvidia-cuda-mps-control",
        files={"user": "root"}, around={"mps_daemons": (DAEMON,)},
    ),
    "MPS under WSL": S(
        "MPS", "ok", "none: this is WSL", around={"wsl": True}, mps={"control_path": None}
    ),
    "a way to MPS daemons that is closed to others": S(
        "MPS", "warn", "other accounts than root time-slice, since /srv/x is closed", "chmod o+x /srv/x",
        mps={"closed": "/srv/x"},
    ),
    "no MPS program": S(
        "MPS", "warn", "none: ", "", mps={"control_path": None}, todo="until then co-tenants time-slice",
    ),
    "no place for MPS daemons": S(
        "MPS", "warn", "none: /run/user/7/cotenant is not writable for user 7",
        mps={"runtime_writable": False},
    ),
    "GPM for administrators only": S(
        "counters", "warn", "GPM, but not for ada",
        "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' "
        "| sudo tee /etc/modprobe.d/nvidia-profiling.conf",
        (*H100, "fail nvmlGpmSampleGet 4"), todo="run the agent as root",
    ),
    "no GPM and no DCGM": S(
        "counters", "warn", "no GPM (it came with Hopper) and no DCGM",
        "", V100, todo="NVIDIA's DCGM",
    ),
    "GPM on one of two": S(
        "counters", "warn", "GPM on GPU 0; GPU 1: no GPM",
        "", (*H100, "gpu 1 gpm 0"),
    ),
    "GeForce, for which there are no counters": S(
        "counters", "ok", "NVIDIA has those for data-centre GPUs only", "", GEFORCE
    ),
    "an old DCGM": S(
        "counters", "warn", "an old DCGM", "", V100, {"dcgm_old": True},
    ),
    "DCGM without its engine": S(
        "counters", "warn", "its host engine does not answer", "sudo systemctl enable --now nvidia-dcgm",
        V100, {"dcgm_bindings": "/usr/share/x"},
    ),
    "two engines of DCGM": S(
        "DCGM twice", "warn", "nv-hostengine (pid 50), dcgm-exporter (pid 51)", "",
        around={"hostengines": (ENGINE, EXPORTER)}, todo="dcgm-exporter -r localhost:5555",
    ),
    "InfiniBand without peer memory": S(
        "InfiniBand", "warn", "mlx5_0; nvidia_peermem is not loaded",
        "sudo modprobe nvidia_peermem && echo nvidia_peermem | sudo tee /etc/modules-load.d/peermem.conf",
        around={"infiniband": ("mlx5_0",), "limits": InheritedLimits(open_files=65536)},
    ),
    "a process of nobody's here": S(
        "on the GPUs", "warn", "0: pid 4194999", "", (*H100, "process 0 4194999 20480 C", "gpu 0 used 21080")
    ),
    "memory that nobody owns up to": S(
        "held memory", "warn", "1: 8.8G, by nobody who can be seen", "", (*H100, "gpu 1 used 9600")
    ),
    "ECC errors": S(
        "memory errors", "warn", "1: 2 uncorrected errors", f"sudo nvidia-smi -i {TWO} --gpu-reset",
        (*H100, "gpu 1 ecc 2"), todo="stop the agent",
    ),
    "a row remap pending": S(
        "memory errors", "warn", "0: memory waits to be replaced at a reset",
        f"sudo nvidia-smi -i {ONE} --gpu-reset", (*H100, "gpu 0 remap 0 1 1 0"),
    ),
    "no spare rows": S(
        "memory errors", "fail", "GPU 0 ran out of spare memory rows", "", (*H100, "gpu 0 remap 0 1 0 1"),
        todo="replaced",
    ),
    "a GPU that fell off the bus": S(
        "GPUs", "fail", "1 of 2 do not answer: 1: a GPU has fallen off the bus", "sudo reboot",
        (*H100, "gpu 1 rc 15"),
    ),
    "a GPU that wants a reset": S(
        "GPUs", "fail", "1 of 2 do not answer: 1: a GPU needs a reset", "sudo nvidia-smi -i 1 --gpu-reset",
        (*H100, "gpu 1 rc 16"),
    ),
    "a V100 under a driver that has dropped it": S(
        "GPUs", "fail", "2 NVIDIA GPUs on the bus, and driver 590.44 serves none", "sudo dmesg | grep NVRM",
        ("driver 590.44",), {"pci_devices": 2}, todo="too new",
    ),
    "a GPU on the bus that the driver leaves out": S(
        "GPUs", "warn", "2 of 8 on the bus: 6 not served", "sudo dmesg | grep NVRM", H100, {"pci_devices": 8}
    ),
    "16 GPUs": S(
        "GPUs", "ok", "0 to 15: GPU (mock), 80.0G", "",
        tuple(f"gpu {i} uuid GPU-{i:02}" for i in range(16)), {"pci_devices": 16},
    ),
    "a name of 70 characters": S(
        "GPUs", "ok", f"0: {'x' * 70} (mock)", "", (f"gpu 0 uuid {ONE}", f"gpu 0 name {'x' * 70}"),
    ),
    "no group of our own": S(
        "cgroups", "warn", "v2, but /user.slice belongs to someone else", "",
        around={"cgroup": Cgroup(version=2, path="/user.slice")}, todo="Delegate=yes",
    ),
    "groups of v1 that are not ours": S(
        "cgroups", "warn", "v1, and none of them is ours", "", around={"cgroup": Cgroup(version=1)},
        todo="watched, not enforced",
    ),
    "groups of v1": S(
        "cgroups", "ok", "v1 with memory", "", around={"cgroup": Cgroup(version=1, writable=("memory",))}
    ),
    "a unit that kills jobs": S(
        "survival", "fail", "KillMode=control-group: a restart ends its jobs",
        "sudo systemctl edit cotenant-agent.service",
        around={"agent": msgspec.structs.replace(UNIT, kill_mode="control-group")}, todo="KillMode=process",
    ),
    "the journal on NFS": S(
        "journal", "fail", "lies on a network disk (nfs4)", "", around={"folders": (JOURNAL,)},
        todo="set controller.state_dir to a local disk",
    ),
    "the agent's state on NFS": S(
        "agent's state", "warn", "network disk (nfs)", "",
        around={"folders": (msgspec.structs.replace(STATE, filesystem="nfs"),)}, todo="set agent.state_dir",
    ),
    "checkpoints on NFS, as they may": S(
        "checkpoints", "ok", "/ck on nfs4, 87.9G free", "",
        around={"folders": (msgspec.structs.replace(DISK, filesystem="nfs4"),)},
    ),
    "a disk nearly full": S(
        "checkpoints", "warn", "only 1.5G free", "",
        around={"folders": (msgspec.structs.replace(DISK, free_mib=1536),)}, todo="make room",
    ),
    "a full disk": S(
        "agent's state", "fail", "only 3M free", "",
        around={"folders": (msgspec.structs.replace(STATE, free_mib=3),)}, todo="make room",
    ),
    "a disk without inodes": S(
        "agent's state", "fail", "room for 7 more files only", "",
        around={"folders": (msgspec.structs.replace(STATE, free_files=7),)},
    ),
    "torch for a newer CUDA than the driver's": S(
        "torch", "warn", "built for CUDA 13.0, the driver serves 12.4 at most", "",
        (*H100, "cuda 12040"), around={"torch": Torch(version="2.11.0", cuda=(13, 0))},
        todo="torch built for CUDA 12",
    ),
    "torch without CUDA": S(
        "torch", "warn", "2.11.0+cpu has no CUDA", "",
        around={"torch": Torch(version="2.11.0+cpu", cuda=None)},
        todo="torch built for CUDA (CUDA 13 at most)",
    ),
    "torch that has dropped the V100": S(
        "torch", "warn", "has no code for Tesla V100", "", (*V100, "cuda 13000"),
        around={"torch": Torch(version="2.11.0", cuda=(13, 0))}, todo="CUDA 12.6",
    ),
    "torch that fits": S(
        "torch", "ok", "2.11.0, built for CUDA 13.0", "",
        around={"torch": Torch(version="2.11.0", cuda=(13, 0))},
    ),
    "few open files in the unit": S(
        "limits", "warn", "the agent's 1024 open files", "sudo systemctl edit cotenant-agent.service",
        around={"limits": InheritedLimits(open_files=1024), "agent": UNIT}, todo="LimitNOFILE=65536:1048576",
    ),
    "little locked memory in a shell": S(
        "limits", "warn", "8M of locked memory (NCCL over InfiniBand",
        r"printf '* soft nofile 65536\n* hard nofile 1048576\n* - memlock unlimited\n' "
        "| sudo tee /etc/security/limits.d/cotenant.conf",
        around={"limits": InheritedLimits(open_files=65536, locked_kib=8192), "infiniband": ("mlx5_0",),
                "peer_memory": True},
    ),
    "settings that anybody may write": S(
        "settings", "fail", "others may write /etc/cotenant/agent.toml",
        "sudo chmod go-w /etc/cotenant/agent.toml",
        around={"settings_files": (SettingsFile(path="/etc/cotenant/agent.toml", open_to_others=True),)},
    ),
    "settings that one may not read": S(
        "settings", "warn", "you may not read /etc/cotenant/agent.toml", "",
        around={"settings_files": (SettingsFile(path="/etc/cotenant/agent.toml", readable=False),)},
    ),
    "no agent on a server": S(
        "agent", "fail", "none runs here, and tcp://head:7070 would accept it",
        "sudo systemctl enable --now cotenant-agent", link=AgentAnswer(endpoint="tcp://head:7070"),
    ),
    "an agent whose key is refused": S(
        "agent", "fail", f"process 7 of root; the {FALLEN}", "", around={"agent": UNIT},
        link=AgentAnswer(endpoint="tcp://head:7070", why=f"the {FALLEN}", todo="ask an admin"),
        todo="ask an admin",
    ),
    "a controller that does not answer": S(
        "controller", "fail", "no controller", "", settings={"controller.endpoint": "ipc:///nowhere/c.sock"}
    ),
}  # fmt: skip


ASK_ALL: Final = """
import functools, os, sys, msgspec
from cotenant.profiler.driver import probe
from cotenant.profiler.driver.facts import DriverFacts, NvmlError
from cotenant.profiler.driver.library import open_library
answers = []
for world in msgspec.json.decode(sys.stdin.buffer.read()):
    with open(os.environ["COTENANT_MOCK_NVML"], "w") as file:
        file.writelines(f"{fact}\\n" for fact in world)
    try:
        with open_library() as nvml:
            answers.append(functools.reduce(DriverFacts.add, probe.answers(nvml, diagnostics=True)))
    except NvmlError as error:
        answers.append(DriverFacts(problem=error.what, problem_code=error.code))
sys.stdout.buffer.write(msgspec.json.encode(answers))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], DriverFacts]:
    """What the driver's child makes of each driver; one asks for all of them, for the sake of time."""
    folder = build(tmp_path_factory.mktemp("nvml"))
    worlds = sorted({*(each.nvml for each in SITUATIONS.values()), WORN})
    child = subprocess.run(
        [sys.executable, "-c", ASK_ALL],
        input=msgspec.json.encode(worlds),
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), "COTENANT_MOCK_NVML": str(folder / "gpus")},
        stdout=subprocess.PIPE,
        timeout=within_s(60),
        check=True,
    )
    known = dict(zip(worlds, msgspec.json.decode(child.stdout, type=list[DriverFacts]), strict=True))
    return known.__getitem__


def facts_of(situation: Situation, driver: Callable[[tuple[str, ...]], DriverFacts]) -> Facts:
    known = {
        "answers": NOBODY,
        "driver": driver(situation.nvml),
        "mps": _replaced(MPS, situation.mps),
        "link": situation.link,
        "limits": InheritedLimits(open_files=65536),
        "cgroup": Cgroup(version=2, path="/a", ours=True),
        "pci_devices": 0,
    }
    flags = {"mps.mode": "auto", **situation.settings}
    return made_up(flags, **{**FILES, **known, **situation.files, **situation.around})


def _replaced(value: Any, changes: Mapping[str, Any]) -> Any:
    import dataclasses

    return dataclasses.replace(value, **changes)


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS.keys())
def test_what_an_administrator_reads(
    situation: Situation, driver: Callable[[tuple[str, ...]], DriverFacts]
) -> None:
    checks = run_all(facts_of(situation, driver))
    (found,) = [check for check in checks if check.name == situation.check]
    assert (found.verdict, found.command) == (situation.verdict, situation.command), found
    assert situation.words in found.found
    assert situation.todo in found.todo
    assert found.verdict == "ok" or found.todo, "what is not ok says what to do"
    lines = page(checks).split("\n")
    verdicts = [line[:4].strip() for line in lines[1:] if line[:4].strip()]
    assert verdicts == sorted(verdicts, key=["fail", "warn", "ok"].index), "the worst comes first"
    assert not situation.command or f"$ {situation.command}" in [line.strip() for line in lines]


def test_a_container_is_not_told_to_do_what_only_its_host_can(
    driver: Callable[[tuple[str, ...]], DriverFacts],
) -> None:
    for name, situation in SITUATIONS.items():
        inside = situation._replace(files={**situation.files, "container": True})
        for check in run_all(facts_of(inside, driver)):
            for word in ("modprobe", "nvidia-driver"):
                assert word not in check.command, f"{name}: {check}"


def test_root_is_not_told_to_use_sudo(driver: Callable[[tuple[str, ...]], DriverFacts]) -> None:
    for name, situation in SITUATIONS.items():
        as_root = situation._replace(files={**situation.files, "user": "root"})
        for check in run_all(facts_of(as_root, driver)):
            assert "sudo " not in check.command, f"{name}: {check}"


# --- Files, as they are read ------------------------------------------------------------------------


def looked_around(
    loaded: settings.LoadedSettings,
    root: Path,
    seen: tuple[SeenProcess, ...],
    knows_us: bool | None = None,
    **known: Any,
) -> Facts:
    """What surrounds an agent, by a tree of files and the processes of its machine."""
    return Facts(loaded, root=root, processes=seen, knows_us=knows_us, **known)


def test_surroundings_are_read_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {
        "proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n",
        "proc/7/cgroup": "0::/system.slice/cotenant-agent.service\n",
        "proc/7/limits": "Limit                     Soft Limit           Hard Limit           Units\n"
        "Max open files            1024                 524288               files\n"
        "Max locked memory         8388608              8388608              bytes\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory",
        "sys/class/infiniband/mlx5_0/node_guid": "x",
        "sys/module/nvidia_peermem/refcnt": "0",
        "env/lib/python3.12/site-packages/torch/version.py": "__version__ = '2.11.0'\n"
        "debug = False\ncuda: Optional[str] = '12.8'\n",
    }
    for name, text in tree.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("VIRTUAL_ENV", "/env")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    seen = (
        SeenProcess(pid=7, user="root", uid=0, words=("/opt/cotenant/bin/python", "-m", "cotenant.agent")),
        DAEMON,
        SeenProcess(
            pid=8, uid=os.getuid(), words=("nvidia-cuda-mps-control", "-d"), pipes=f"{tmp_path}/own/x"
        ),
        SeenProcess(pid=9, user="bob", words=("nvidia-cuda-mps-control",), pipes="/tmp/nvidia-mps"),
        ENGINE,
    )
    loaded = settings.load({"mps.runtime_dir": str(tmp_path / "own")}, files=[], environ={})
    found = looked_around(loaded, tmp_path, seen, uid=1000, knows_us=True)
    assert found.wsl and found.peer_memory and found.infiniband == ("mlx5_0",)
    assert found.agent is not None and (found.agent.pid, found.agent.user) == (7, "root")
    assert found.limits == InheritedLimits(open_files=1024, locked_kib=8192)
    assert (found.cgroup.version, found.cgroup.path) == (2, "/system.slice/cotenant-agent.service")
    assert found.torch == Torch(version="2.11.0", cuda=(12, 8), place="/env")
    assert found.mps_daemons == (DAEMON,), "neither our own daemon nor a front end that asks one"
    assert found.hostengines == (ENGINE,)


def test_settings_files_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("")
    (tmp_path / "own.toml").chmod(0o664)
    loaded = settings.load({}, files=[tmp_path / "own.toml"], environ={})
    found = looked_around(loaded, tmp_path, ())
    assert found.settings_files == (SettingsFile(path=str(tmp_path / "own.toml"), open_to_others=True),)


def test_another_user_s_agent_is_not_taken_for_this_host_s(tmp_path: Path) -> None:
    loaded = settings.load({}, files=[], environ={})
    theirs = SeenProcess(pid=7, user="bob", uid=1001, words=("python", "-m", "cotenant.agent"))
    found = looked_around(loaded, tmp_path, (theirs,), uid=1000)
    assert (found.agent, found.other_agents) == (None, (theirs,))


def test_of_several_agents_the_one_of_our_controller_is_ours(tmp_path: Path) -> None:
    """On a shared machine, and for root beside a cluster of a test's."""
    loaded = settings.load({"controller.endpoint": "ipc:///run/me/c.sock"}, files=[], environ={})

    def agent_of(pid: int, uid: int, *words: str) -> SeenProcess:
        return SeenProcess(
            pid=pid, user=f"user{uid}", uid=uid, words=("python", "-m", "cotenant.agent", *words)
        )

    elsewhere = agent_of(6, 1000, "--set", "agent.controller=ipc:///tmp/other.sock")
    of_a_test = agent_of(5, 1000, "--controller", "ipc:///tmp/test.sock", "--host", "h1")
    roots = agent_of(7, 0)
    mine = agent_of(8, 1000, "--set", "agent.controller=ipc:///run/me/c.sock")
    bobs = agent_of(9, 1001)
    found = looked_around(loaded, tmp_path, (of_a_test, elsewhere, roots, mine, bobs), uid=1000)
    assert found.agent is not None and found.agent.pid == 8
    assert found.other_agents == (of_a_test, elsewhere, roots, bobs)
    without = looked_around(loaded, tmp_path, (elsewhere, roots, bobs), uid=1000)
    assert without.agent is not None and without.agent.pid == 7, "root's serves everybody"
    elsewhere_too = looked_around(loaded, tmp_path, (elsewhere, roots, bobs), uid=1000, knows_us=False)
    assert elsewhere_too.agent is None, "but not where our controller has no such host"
    assert elsewhere_too.other_agents == (elsewhere, roots, bobs)


AT_CONTROLLER = {
    "as a host that is well": (
        HostState.OK,
        "vm",
        "ok",
        "process 8 of root; the controller has this host as vm, which is ok",
    ),
    "as a host that is silent": (
        HostState.SILENT,
        "vm",
        "warn",
        "the controller has this host as vm, which is silent",
    ),
    "not at all": (HostState.OK, "gpu01", "ok", "this machine is no host of your controller"),
}


@pytest.mark.parametrize(
    ("state", "name", "verdict", "found"), AT_CONTROLLER.values(), ids=AT_CONTROLLER.keys()
)
def test_the_controller_says_how_it_has_this_machine(
    replies: ModuleType, state: HostState, name: str, verdict: str, found: str
) -> None:
    root = Agent(pid=8, user="root", uid=0)
    given = made_up(
        {},
        answers=msgspec.structs.replace(NOBODY, nodes=replies.nodes(replies.node(name, state=state))),
        agent=root if state is HostState.OK and name == "vm" else None,
        host="vm",
    )
    check = next(each for each in run_all(given) if each.name == "agent")
    assert check.verdict == verdict and found in check.found


def test_an_agent_that_never_joins_is_not_well(replies: ModuleType) -> None:
    """It ends and is started again by its service: its process is there, and no host."""
    given = made_up(
        {},
        answers=msgspec.structs.replace(NOBODY, nodes=replies.nodes()),
        agent=Agent(pid=8, user="root", uid=0),
        host="vm",
    )
    check = next(each for each in run_all(given) if each.name == "agent")
    assert check.verdict == "warn"
    assert check.found == (
        "process 8 of root; the controller does not have this host: it starts, or it ends again and again"
    )


def test_roots_agent_is_not_mine_where_my_socket_is_mine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    roots = SeenProcess(pid=7, user="root", uid=0, words=("python", "-m", "cotenant.agent"))
    found = looked_around(settings.load({}, files=[], environ={}), tmp_path, (roots,), uid=1000)
    assert (found.agent, found.other_agents) == (None, (roots,))


def test_agents_of_others_are_told_apart() -> None:
    given = made_up(
        {},
        answers=NOBODY,
        agent=Agent(pid=8, user="ada", uid=1000),
        other_agents=(SeenProcess(pid=9, user="bob", uid=1001),),
    )
    said = {check.name: check.found for check in run_all(given)}
    assert said["agent"] == "process 8 of ada"
    assert said["others' agents"] == "process 9 of bob: for controllers of their own, with their devices"


def test_an_empty_tree_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    found = looked_around(settings.load({}, files=[], environ={}), tmp_path, ())
    names = (
        "wsl", "agent", "other_agents", "lingers", "settings_files", "torch", "mps_daemons", "hostengines",
        "fork_servers", "infiniband", "peer_memory", "is_debian",
    )  # fmt: skip
    assert [name for name in names if getattr(found, name)] == []
    assert (found.limits, found.cgroup) == (InheritedLimits(), Cgroup())


def test_the_page_in_the_docs_is_what_such_a_host_gets(
    driver: Callable[[tuple[str, ...]], DriverFacts],
) -> None:
    situation = SITUATIONS["a GPU that fell off the bus"]._replace(
        nvml=WORN,
        around={
            "torch": Torch(version="2.11.0", cuda=(13, 0)),
            "agent": UNIT,
            "cgroup": Cgroup(version=2, path=UNIT.cgroup, ours=True),
            "folders": (DISK, STATE),
            "limits": InheritedLimits(open_files=1024),
        },
        link=AgentAnswer(endpoint="tcp://head:7070"),
    )
    lines = page(run_all(facts_of(situation, driver))).split("\n")
    assert lines[0].startswith("1 fails, ") and lines[1].startswith("fail  GPUs ")
    said = " ".join(" ".join(lines).split())
    text = (Path(__file__).resolve().parents[3] / "docs" / "operating.md").read_text()
    block = re.search(r"\n    1 fails, .*\n((?: {4}.*\n)+)", text)
    assert block is not None
    checks = re.split(r"^(?= {4}(?:ok|warn|fail) )", block[1], flags=re.MULTILINE)
    told = [" ".join(check.split()) for check in checks]
    assert len(told) > 8 and [check for check in told if check not in said] == []


def test_a_check_says_so_much_at_most() -> None:
    assert set(Check.__struct_fields__) == {"name", "verdict", "found", "todo", "command"}, "docs/cli.md"
