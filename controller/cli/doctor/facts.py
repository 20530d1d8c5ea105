"""The facts that the checks of `doctor` judge: of the controller, the GPUs, the host and its processes.

Rule: each is found when a check asks for it, and once; finding it changes nothing. What is read from files is
read below one `root`, which is another tree in tests; of ports only those of loopback are asked.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import socket
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Final

from cotenant.controller.cli.doctor import containers, controller_link
from cotenant.controller.cli.doctor import host_files as files
from cotenant.controller.cli.doctor.host_files import read_text
from cotenant.controller.cli.doctor.processes import (
    DEFAULT_PIPES,
    ENGINES,
    Agent,
    SeenProcess,
    find_agent,
    kill_mode,
    running,
    unit_of,
)
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import is_system_socket, socket_path, this_host, user_endpoint
from cotenant.controller.system.settings import LoadedSettings
from cotenant.controller.wire import clients as wire
from cotenant.mps import detection, device_memory
from cotenant.profiler.driver import cdi
from cotenant.profiler.driver.facts import GpuFacts
from cotenant.profiler.driver.probe_client import driver_facts, gpus_on_the_bus
from cotenant.profiler.driver.process_info import runs_in_container, sees_host_processes
from cotenant.profiler.indicators import dcgm
from cotenant.profiler.indicators.device_process import Explanation, explain
from cotenant.profiler.indicators.sources import Wanted

DRIVER_S_MAX: Final = 30.0
"""A person waits for this; the agent allows more, since it must not misjudge a driver that starts slowly."""
DCGM_PORT: Final = 5555
EXPORTER_PORT: Final = 9400
CONNECT_TIMEOUT_S: Final = 0.2
DCGM_OLD: Final = ("usr/bin/dcgmi", "usr/bin/nv-hostengine", "usr/lib/x86_64-linux-gnu/libdcgm.so.3")
PEER_MEMORY: Final = ("nvidia_peermem", "nv_peer_mem")


class Facts:
    """What is known of this machine: a table of facts, each with how it is found."""

    def __init__(
        self, loaded: LoadedSettings, endpoint: str | None = None, root: Path = Path("/"), **known: object
    ) -> None:
        """`endpoint`: where the controller is asked, if not where the settings say. `known`: facts by their
        names, which nobody looks for any more."""
        assert known.keys() <= vars(Facts).keys(), known.keys() - vars(Facts).keys()
        self.loaded, self.endpoint, self.root = loaded, endpoint, root
        vars(self).update(known)

    def text(self, path: str) -> str:
        """What a file below the root says; empty where it cannot be read."""
        return read_text(self.root / path)

    # --- The controller -------------------------------------------------------------------------------

    answers = cached_property(lambda self: controller_link.ask_controller(self.loaded, self.endpoint))
    link = cached_property(lambda self: controller_link.ask_as_agent(self.loaded.settings))
    """Whether the controller accepts this host's agent; None: they use the user's own socket."""
    host = cached_property(lambda self: this_host(self.loaded.settings.agent.host))
    """What an agent here is called."""

    @cached_property
    def here(self) -> wire.NodeView | None:
        """The node that is this machine, as the controller knows it; None: it does not, or did not answer."""
        nodes = self.answers.nodes.nodes if self.answers.nodes is not None else ()
        return next((node for node in nodes if node.host == self.host), None)

    knows_us = cached_property(lambda self: None if self.answers.nodes is None else self.here is not None)
    """Whether our controller has this machine as a host; None: it did not say."""

    @cached_property
    def is_guest(self) -> bool:
        """All work here is done by services of the machine, for whose folders others answer."""
        with suppress(ValueError, OSError):
            path = socket_path(paths.client_endpoint(self.loaded.settings))
            return path is not None and is_system_socket(path) and os.getuid() != 0
        return False

    # --- GPUs -----------------------------------------------------------------------------------------

    driver = cached_property(lambda self: driver_facts(DRIVER_S_MAX, diagnostics=True))

    @property
    def gpus(self) -> tuple[GpuFacts, ...]:
        return self.driver.gpus

    @property
    def answering(self) -> list[GpuFacts]:
        """The GPUs that say something of themselves."""
        return [gpu for gpu in self.gpus if not gpu.problem]

    @property
    def whole(self) -> list[GpuFacts]:
        """Those of them that are not in MIG mode."""
        return [gpu for gpu in self.answering if not gpu.mig]

    @cached_property
    def indicators(self) -> Explanation | None:
        """The sources that were tried for the GPUs; None: there are none."""
        wanted, uuids = self.loaded.settings.profiler, [gpu.uuid for gpu in self.whole]
        if not uuids:
            return None
        return explain(uuids, Wanted(source=wanted.source, dcgm=wanted.dcgm, exporter=wanted.exporter))

    @cached_property
    def mps(self) -> detection.DetectedHost | None:
        """What was found of MPS; None: nobody has looked."""
        mps = self.loaded.settings.mps
        return detection.look(paths.mps_runtime_dir(mps), allowed=mps.mode != "off")

    @cached_property
    def no_names(self) -> str:
        """Why podman gives containers no GPUs."""
        return cdi.why_no_names(each.uuid for gpu in self.gpus for each in gpu.instances or (gpu,))

    @cached_property
    def pci_devices(self) -> int | None:
        """NVIDIA's display and 3D controllers on the bus; None: the bus cannot be read."""
        on_the_bus = gpus_on_the_bus(self.root)
        return None if on_the_bus is None else len(on_the_bus)

    module = cached_property(lambda self: files.module_version(self.text("proc/driver/nvidia/version")))
    """Version of the kernel module that is loaded; empty: none."""
    profiling_for_admins = cached_property(
        lambda self: files.profiling_for_admins(self.text("proc/driver/nvidia/params"))
    )
    """The driver keeps profiling counters to administrators."""
    device_files = cached_property(lambda self: tuple(files.device_files(self.root / "dev")))
    persistenced = cached_property(lambda self: (self.root / "run/nvidia-persistenced/socket").exists())
    dcgm_bindings = cached_property(
        lambda self: next((name for name in dcgm.BINDINGS if (self.root / name[1:]).is_dir()), "")
    )
    """Where DCGM's Python bindings are; empty: nowhere."""
    dcgm_old = cached_property(lambda self: any((self.root / name).exists() for name in DCGM_OLD))
    """DCGM's programs are here; without its Python bindings it is an old version."""
    hostengine = cached_property(lambda self: _listens(DCGM_PORT))
    """Something listens at DCGM's port on this machine."""
    exporter = cached_property(lambda self: _listens(EXPORTER_PORT))
    """Something listens at dcgm-exporter's port on this machine."""

    @cached_property
    def mps_left_by(self) -> str:
        """Whose control socket is where CUDA looks by default, whether a daemon listens there or not."""
        found = self.root.glob(f"{DEFAULT_PIPES[1:]}/control")
        return next((files.account_name(pwd.getpwuid, each.stat().st_uid) for each in found), "")

    @cached_property
    def memory_regions(self) -> int | None:
        """GPUs whose memory the kernel can limit for a group of processes; None: the kernel cannot at all."""
        capacity = f"sys/fs/cgroup/{device_memory.CAPACITY}"
        return len(device_memory.regions(self.text(capacity))) if (self.root / capacity).exists() else None

    @cached_property
    def memory_delegated(self) -> bool:
        """Our control group may pass this controller on to groups below it; root makes groups at the top."""
        folder = "" if os.geteuid() == 0 else files.own_group(self.text("proc/self/cgroup")).strip("/")
        controllers = self.text(f"sys/fs/cgroup/{folder}/cgroup.controllers")
        return device_memory.CONTROLLER in controllers.split()

    # --- The host -------------------------------------------------------------------------------------

    user = cached_property(lambda self: files.account_name(pwd.getpwuid, os.geteuid()))
    uid = cached_property(lambda self: os.geteuid())
    administrator = cached_property(
        lambda self: os.geteuid() == 0 or files.is_administrator(self.text("proc/self/status"))
    )
    """Root, or the capability that the driver takes for it."""
    is_debian = cached_property(lambda self: files.is_debian(self.text("etc/os-release")))
    """Debian itself: names of its packages mean something."""
    wsl = cached_property(lambda self: "microsoft" in self.text("proc/sys/kernel/osrelease").lower())
    """Linux inside Windows: the driver is Windows's."""
    container = cached_property(lambda self: runs_in_container(self.root))
    own_pids = cached_property(lambda self: not sees_host_processes(self.root))
    """We are in a PID namespace other than the host's."""
    tried_container = cached_property(lambda self: containers.try_container())
    """None: this host has no program for containers."""
    settings_files = cached_property(
        lambda self: tuple(files.settings_files(self.loaded.files, self.root / "etc/cotenant"))
    )
    folders = cached_property(lambda self: tuple(files.folders(self.loaded, self.text("proc/self/mounts"))))
    lingers = cached_property(
        lambda self: (self.root / "var/lib/systemd/linger" / os.environ.get("USER", "-")).is_file()
    )
    """What we start may outlive our login."""
    infiniband = cached_property(
        lambda self: tuple(each.name for each in files.entries(self.root / "sys/class/infiniband"))
    )
    peer_memory = cached_property(
        lambda self: any((self.root / "sys/module" / name).is_dir() for name in PEER_MEMORY)
    )
    """The kernel module by which network cards reach GPU memory is loaded."""

    @cached_property
    def torch(self) -> files.Torch | None:
        """The torch of our own environment; else that of the environment that is active in the shell, which
        jobs will have."""
        if self.root == Path("/") and (spec := importlib.util.find_spec("torch")) is not None and spec.origin:
            return files.torch_of(read_text(Path(spec.origin).with_name("version.py")))
        for place in filter(None, map(os.environ.get, ("VIRTUAL_ENV", "CONDA_PREFIX"))):
            tree = self.root / place.lstrip("/")
            for path in sorted(tree.glob("lib/python3*/site-packages/torch/version.py")):
                return files.torch_of(read_text(path), place)
        return None

    # --- Processes ------------------------------------------------------------------------------------

    processes = cached_property(lambda self: running())

    @cached_property
    def agent(self) -> Agent | None:
        """The agent that serves our jobs. No agent of root's comes to a socket that is this account's alone,
        unless our controller has this machine."""
        endpoints = paths.agent_endpoints(self.loaded.settings)
        is_own = self.knows_us is False or (self.knows_us is None and endpoints == (user_endpoint(),))
        uids = (self.uid,) if is_own else (self.uid, 0)
        mine = find_agent(self.processes, uids, ",".join(endpoints))
        if mine is None:
            return None
        group = files.own_group(self.text(f"proc/{mine.pid}/cgroup"))
        mode = kill_mode(unit_of(group))
        return Agent(pid=mine.pid, user=mine.user, uid=mine.uid, cgroup=group, kill_mode=mode)

    @cached_property
    def other_agents(self) -> tuple[SeenProcess, ...]:
        own = None if self.agent is None else self.agent.pid
        return tuple(each for each in self.processes if each.is_agent and each.pid != own)

    @cached_property
    def fork_servers(self) -> tuple[SeenProcess, ...]:
        """Fork servers that agents of this machine keep for warm starts."""
        agents = {each.pid for each in self.processes if each.is_agent}
        return tuple(each for each in self.processes if each.is_fork_server and each.parent in agents)

    @cached_property
    def mps_daemons(self) -> tuple[SeenProcess, ...]:
        """MPS control daemons that no agent of ours has started."""
        runtime = ""
        with suppress(paths.PathError):
            runtime = str(paths.mps_runtime_dir(self.loaded.settings.mps))
        return tuple(each for each in self.processes if each.is_mps_daemon(outside=runtime))

    @cached_property
    def hostengines(self) -> tuple[SeenProcess, ...]:
        """Processes that watch DCGM's profiling counters: host engines, and exporters with their own
        engine."""
        return tuple(each for each in self.processes if each.runs(*ENGINES))

    @property
    def _whose(self) -> str:
        """The process in /proc whose limits and group jobs get: the agent's, else our own."""
        return "self" if self.agent is None else str(self.agent.pid)

    limits = cached_property(lambda self: files.limits(self.text(f"proc/{self._whose}/limits")))

    @cached_property
    def cgroup(self) -> files.Cgroup:
        own = files.own_group(self.text(f"proc/{self._whose}/cgroup"))
        return files.cgroup(self.root / "sys/fs/cgroup", own, self.agent)


def _listens(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        return probe.connect_ex(("127.0.0.1", port)) == 0
