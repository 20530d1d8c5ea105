"""A host with four GPUs that are not there, on which every fault of a GPU can happen.

The library of `tests/agent/nvml`, a kernel's log that is a file, and a control program of MPS: the stub
(which has clients, servers and FAULT) or the genuine one (which has none without a GPU). What happens here
happens to files and processes; whoever watches sees it as they would on a host.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import psutil

from cotenant.mps import process
from cotenant.mps.environment import host_daemon, log_directory, pipe_directory
from cotenant.mps.process import CONTROL, FoundProcess
from tests.agent.mock_gpus import MockGpus, build
from tests.building.limits import within_s
from tests.live.gpu_job import living
from tests.mps.conftest import GENUINE, remove_device_node, stub_in

UUIDS = tuple(f"GPU-{number}a2b3c4d-0000-0000-0000-000000000000" for number in (1, 2, 3, 4))
IDLE_MIB = 600
LOST, RESET_REQUIRED = 15, 16


class GpuHost:
    def __init__(self, base: Path, runtime: Path, state: Path, *, program: str, per_device: bool) -> None:
        """`program`: stub, genuine or none. `runtime`: short, for sockets. `state`: the agent's folder.
        `per_device`: each GPU has an MPS daemon of its own."""
        self.base, self.runtime, self.state, self.program = base, runtime, state, program
        self.per_device = per_device
        for name in ("nvml", "bin", "claims"):
            (base / name).mkdir()
        self.starts = base / "starts"
        self.log = base / "kmsg"
        self.log.touch()
        self.starts.touch()
        build(base / "nvml")
        self.facts = MockGpus(base / "facts")
        for index, uuid in enumerate(UUIDS):
            self.facts.say(f"gpu {index} uuid {uuid}", f"gpu {index} energy 100000")
        self.facts.say(f"claims {base / 'claims'}")
        self._records = itertools.count(1)
        self._energy = 100_000
        self._ecc = 0
        self._in_fault: set[str] = set()
        if program == "stub":
            stub_in(base / "bin")
            self.tell_stub()
        elif program == "genuine":
            assert GENUINE is not None
            (base / "bin" / CONTROL).symlink_to(GENUINE)
        self.held_since_s: dict[str, float] = {}

    def environment(self) -> dict[str, str]:
        """Of the agent."""
        return {
            "LD_LIBRARY_PATH": str(self.base / "nvml"),
            "PATH": f"{self.base / 'bin'}:{os.environ['PATH']}",
            "COTENANT_MOCK_NVML": str(self.facts.path),
            "MPS_STUB_WORLD": str(self.base / "world.json"),
            "CHAOS_KERNEL_LOG": str(self.log),
        }

    def environment_of_jobs(self) -> dict[str, str]:
        return {
            "CHAOS_CLAIMS": str(self.base / "claims"),
            "CHAOS_STARTS": str(self.starts),
            "CHAOS_STATE": str(self.state),
            "CHAOS_FACTS": str(self.facts.path),
            "CHAOS_GPUS": " ".join(UUIDS),
        }

    # --- Who is where ------------------------------------------------------------------------------

    def witnessed(self) -> list[dict[str, Any]]:
        """What each rank wrote when it began."""
        return [json.loads(line) for line in self.starts.read_text().splitlines()]

    def tenants(self, gpu: str | None = None) -> list[dict[str, Any]]:
        """Ranks that live, on that GPU or anywhere."""
        return [each for each in self.witnessed() if gpu in (None, each["gpu"]) and living(each["pid"])]

    def daemon_of(self, gpu: str) -> str:
        """What stands for the daemon that serves it in the paths."""
        uid = os.getuid()
        return gpu if self.per_device else host_daemon(uid, one_uid=uid != 0)

    def pipe(self, gpu: str) -> Path:
        return Path(pipe_directory(_pure(self.runtime), self.daemon_of(gpu)))

    def connected(self, gpu: str) -> list[dict[str, Any]]:
        """Clients whom a fault on that GPU reaches: those on it, and who shares GPUs with them."""
        clients = [each for each in self.tenants() if each["pipe"]]
        here = {gpu}
        while (
            more := {
                each["gpu"]
                for each in clients
                if not self.per_device
                and each["job"] in {one["job"] for one in clients if one["gpu"] in here}
            }
            - here
        ):
            here |= more
        return [each for each in clients if each["gpu"] in here]

    def daemons(self, gpu: str | None = None) -> list[FoundProcess]:
        """Control daemons below this host's folder."""
        under = str(self.pipe(gpu)) if gpu is not None else f"{self.runtime}/"
        now = process.look_around()
        found = now.daemons if gpu is not None else (*now.daemons, *now.servers)
        return [each for each in found if (each.pipe_directory or "").startswith(under)]

    def modes(self) -> dict[str, str]:
        """Compute modes that were set and are not the default."""
        paths = {uuid: Path(f"{self.facts.path}.mode-{index}") for index, uuid in enumerate(UUIDS)}
        modes = {uuid: path.read_text().strip() for uuid, path in paths.items() if path.exists()}
        return {uuid: mode for uuid, mode in modes.items() if mode != "0"}

    # --- What happens ------------------------------------------------------------------------------

    def xid(self, index: int, number: int, pid: int | None, *, by_event: bool, by_log: bool) -> None:
        if by_log:
            named = f"pid={pid}, name=python3" if pid is not None else "pid='<unknown>', name=<unknown>"
            line = (
                f"4,{next(self._records)},1000,-;NVRM: Xid (PCI:0000:{index + 1:02x}:00): {number}, {named}\n"
            )
            with self.log.open("a") as log:
                log.write(line)
        if by_event:
            self.facts.say(f"xid {index} {number}")

    def reset(self, index: int) -> None:
        """As `nvidia-smi --gpu-reset`, or a boot: its counters begin anew."""
        self._energy -= 1
        self.facts.unsay(f"gpu {index} remap")
        self.facts.unsay(f"gpu {index} ecc")
        self.facts.unsay(f"gpu {index} rc")
        self.facts.unsay(f"gpu {index} energy")
        self.facts.say(f"gpu {index} energy {self._energy}")

    def ecc(self, index: int) -> None:
        self._ecc += 1
        self.facts.say(f"gpu {index} ecc {self._ecc}")

    def say(self, *facts: str) -> Callable[[], None]:
        """Facts, and how they are taken back."""
        self.facts.say(*facts)

        def undo() -> None:
            for fact in facts:
                self.facts.unsay(fact)

        return undo

    def stranger(self, gpu: str) -> Callable[[], None]:
        other = subprocess.Popen(["sleep", "1000"], env={**os.environ, "CHAOS_HOME": f"{self.base}/"})
        (self.base / "claims" / f"{gpu}.{other.pid}.4000").write_text("C")

        def undo() -> None:
            other.kill()
            other.wait()

        return undo

    def tell_stub(self) -> None:
        fresh = self.base / "world.new"
        fault = [str(self.pipe(gpu)) for gpu in sorted(self._in_fault)]
        fresh.write_text(json.dumps({"gpu": True, "claims": str(self.base / "claims"), "fault": fault}))
        os.replace(fresh, self.base / "world.json")

    def server_fault(self, gpu: str) -> Callable[[], None]:
        self._in_fault.add(gpu)
        self.tell_stub()

        def undo() -> None:
            self._in_fault.discard(gpu)
            self.tell_stub()

        return undo

    # --- MPS daemons -------------------------------------------------------------------------------

    def kill_daemon(self, gpu: str) -> None:
        for found in self.daemons(gpu):
            process.end(found.identity, 10.0)

    def wedge_daemon(self, gpu: str) -> Callable[[], None]:
        frozen = [found.identity for found in self.daemons(gpu)]
        for identity in frozen:
            with suppress(ProcessLookupError):
                os.kill(identity.pid, signal.SIGSTOP)

        def undo() -> None:
            for identity in frozen:
                if process.is_alive(identity):
                    os.kill(identity.pid, signal.SIGCONT)

        return undo

    def remove_pipes(self, gpu: str) -> None:
        shutil.rmtree(self.pipe(gpu), ignore_errors=True)

    def second_daemon(self, gpu: str) -> Callable[[], None]:
        """Somebody's own, in the very same place."""
        before = {found.identity for found in self.daemons(gpu)}
        self.remove_pipes(gpu)
        self.pipe(gpu).mkdir(parents=True, exist_ok=True)
        env = {**os.environ, **self.environment(), "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe(gpu))}
        subprocess.run(
            [str(self.base / "bin" / CONTROL), "-d"],
            env={**env, "CUDA_MPS_LOG_DIRECTORY": str(self.base), "CUDA_VISIBLE_DEVICES": gpu},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=within_s(60),
            check=False,
        )

        def undo() -> None:
            now = process.look_around()
            there = [
                each for each in (*now.daemons, *now.servers) if each.pipe_directory == str(self.pipe(gpu))
            ]
            for found in there:
                if found.identity not in before and not found.owner:
                    process.end(found.identity, 10.0)

        return undo

    def full_log_disk(self, gpu: str) -> Callable[[], None]:
        logs = Path(log_directory(_pure(self.state), self.daemon_of(gpu)))
        if not logs.is_dir():
            return lambda: None
        for name in ("control.log", "server.log"):
            link = logs / f"{name}.full"  # In one step: the daemon may just write its log anew.
            link.symlink_to("/dev/full")
            link.replace(logs / name)

        def undo() -> None:
            for name in ("control.log", "server.log"):
                (logs / name).unlink(missing_ok=True)

        return undo

    # --- Processes of the agent --------------------------------------------------------------------

    def children(self, agent: int, module: str) -> list[int]:
        """Of the agent, by the module that they run."""
        with suppress(psutil.Error):
            found = []
            for child in psutil.Process(agent).children():
                with suppress(psutil.Error):
                    found += [child.pid] if any(module in word for word in child.cmdline()) else []
            return found
        return []

    def close(self) -> None:
        for found in self.daemons():
            process.end(found.identity, 10.0)
        shutil.rmtree(self.runtime, ignore_errors=True)
        remove_device_node()


def _pure(path: Path) -> PurePosixPath:
    return PurePosixPath(path)
