"""`python -m cotenant.agent.slurm.allocation`: this host as a part of a Slurm job.

Rule: everything that the agent starts ends with the Slurm job, also supervisors, which elsewhere outlive
their agent: this process is the reaper of all its descendants (PR_SET_CHILD_SUBREAPER), so none leaves
Slurm's tree of processes, and at its end it kills them, the agent first: what is killed here is no job's
failure, and nobody must report it as one.

Rule: the controller may move (it may be a Slurm job itself): the agent is started anew where the file with
the endpoint says something else, and supervisors go on meanwhile.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from cotenant.agent.host.process_identity import children_of, tree_of
from cotenant.agent.host.rights import become_subreaper
from cotenant.controller.system.diagnostics import say
from cotenant.profiler.driver.probe_client import driver_facts

ENDPOINT_FILE: Final = "endpoint"
LOOK_S: Final = 2.0
"""How often the endpoint's file is read."""
RESTARTS_MAX: Final = 5
"""Of an agent that ended by itself."""
RESTART_WAIT_S: Final = 2.0
HOPELESS: Final = frozenset((2, 4, 6))
"""Exit codes of an agent that would say the same again: usage, not allowed, can never run here."""
END_WITHIN_S: Final = 10.0


class NoAllocation(Exception):
    """Why this cannot be a host; one line."""


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        words = agent_words(options, os.environ, time.time())
    except NoAllocation as problem:
        say(f"error[failed]: allocation: {problem}")
        return 1
    become_subreaper()
    state = Path(tempfile.mkdtemp(prefix=f"cotenant-{os.getuid()}-", dir=os.environ.get("SLURM_TMPDIR")))
    state.chmod(0o711)
    keeper = Keeper([*words, "--state-dir", str(state / "agent")], options.folder / ENDPOINT_FILE)
    try:
        return keeper.run()
    finally:
        end_descendants(keeper.agent)
        shutil.rmtree(state, ignore_errors=True)


def parser() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(prog="python -m cotenant.agent.slurm.allocation")
    known.add_argument("--folder", type=Path, required=True, help="endpoint, key and checkpoints")
    known.add_argument("--host", required=True, help="this host's name in the cluster")
    known.add_argument("--devices", default="cuda", help="cuda: those of CUDA_VISIBLE_DEVICES; or cpu:N")
    known.add_argument("--time-limit-s", type=float, required=True, help="unless Slurm says it better")
    known.add_argument("--grace-s", type=float, required=True)
    return known


# --- How the agent is started ------------------------------------------------------------------------


def agent_words(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    now_s: float,
    *,
    uuids: Callable[[], dict[str, str]] | None = None,
    left: Callable[[str], str] | None = None,
) -> list[str]:
    """Returns the words of the agent's command, without the endpoint. `uuids`: of GPUs by index; `left`: what
    Slurm says of the time that is left.

    Raises:
        NoAllocation: this is no Slurm job, or its GPUs are not here.
    """
    number = environ.get("SLURM_JOB_ID", "")
    if not number.isdecimal():
        raise NoAllocation("this is started by Slurm: `cotenant alloc add slurm` asks for it")
    devices = options.devices
    if devices == "cuda":
        devices = cuda_devices(environ.get("CUDA_VISIBLE_DEVICES"), uuids or known_uuids)
    left_s = seconds((left or time_left)(number))
    settings = {
        "agent.allocation": number,
        "agent.leaves_at": f"{now_s + (options.time_limit_s if left_s is None else left_s):.3f}",
        "agent.leave_grace_s": f"{options.grace_s:g}",
        "agent.address": own_address(),
        "checkpoint.root": str(options.folder / "checkpoints"),
    }
    words = [sys.executable, "-m", "cotenant.agent", "--host", options.host, "--devices", devices]
    words += ["--keys-dir", str(options.folder / f"{options.host}.key")]
    return [*words, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


def cuda_devices(visible: str | None, uuids: Callable[[], dict[str, str]]) -> str:
    """The GPUs that Slurm gave, by UUID: their numbers are others in every cgroup. All, if it says nothing.

    Raises:
        NoAllocation: one is not here.
    """
    if visible is None:
        return "cuda"
    picked = [each.strip() for each in visible.split(",") if each.strip()]
    if not picked or picked == ["NoDevFiles"]:
        raise NoAllocation("Slurm gave this job no GPU: ask for some, or declare slots (--shape slots=N)")
    known: dict[str, str] = {}
    if any(each.isdecimal() for each in picked):
        known = uuids()
    missing = [each for each in picked if each.isdecimal() and each not in known]
    if missing:
        raise NoAllocation(f"Slurm gave GPU {', '.join(missing)}, and the driver shows {len(known)} here")
    return "cuda:" + ",".join(known.get(each, each) for each in picked)


def known_uuids() -> dict[str, str]:
    return {str(gpu.index): gpu.uuid for gpu in driver_facts().gpus}


def time_left(number: str) -> str:
    """Returns what `squeue` says of the time that is left; empty: nothing."""
    with suppress(OSError, subprocess.SubprocessError):
        words = ["squeue", "-h", "-j", number, "-o", "%L"]
        return subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
    return ""


def seconds(left: str) -> float | None:
    """`1-02:03:04`, `2:03:04`, `3:04` or `4`, as `squeue` writes what is left; None: anything else."""
    days, dash, clock = left.strip().rpartition("-")
    parts = clock.split(":")
    if not all(each.isdecimal() for each in (*parts, *([days] if dash else []))) or len(parts) > 3:
        return None
    total = 0
    for each in parts:
        total = total * 60 + int(each)
    return total + int(days or 0) * 86_400.0


def own_address() -> str:
    """Where other hosts reach this one; 127.0.0.1 where its name means nothing."""
    with suppress(OSError):
        return socket.gethostbyname(socket.gethostname())
    return "127.0.0.1"


# --- While it runs -----------------------------------------------------------------------------------


class Keeper:
    """Keeps one agent running, where the endpoint's file says."""

    def __init__(self, words: Sequence[str], endpoint_file: Path, look_s: float = LOOK_S) -> None:
        self._words, self._file, self._look_s = list(words), endpoint_file, look_s
        self._told, self._tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._is_over = False
        self.agent: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Until Slurm ends the job, or the agent does not stay."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.signal(signal.SIGCHLD, self._wake)
        endpoint, restarts = self._endpoint(), 0
        self._start(endpoint)
        while not self._is_over:
            assert self.agent is not None
            select.select([self._told], [], [], self._look_s)
            with suppress(BlockingIOError):
                os.read(self._told, 4096)
            reap_strangers(self.agent.pid)
            if (code := self.agent.poll()) is not None:
                restarts += 1
                if restarts > RESTARTS_MAX or code in HOPELESS:
                    return code or 1
                time.sleep(RESTART_WAIT_S)
                self._start(endpoint := self._endpoint())
            elif (now := self._endpoint()) not in ("", endpoint):
                self.agent.terminate()
                self.agent.wait()
                self._start(endpoint := now)
        return 0

    def _start(self, endpoint: str) -> None:
        if not self._is_over:
            self.agent = subprocess.Popen([*self._words, "--controller", endpoint], stdin=subprocess.DEVNULL)

    def _endpoint(self) -> str:
        """Empty while the file cannot be read: a shared file system may be away for a while."""
        with suppress(OSError):
            return self._file.read_text(encoding="utf-8").strip()
        return ""

    def _end(self, number: int, _frame: object) -> None:
        self._is_over = True
        self._wake(number, _frame)

    def _wake(self, _number: int, _frame: object) -> None:
        with suppress(BlockingIOError):
            os.write(self._tell, b"x")


def reap_strangers(agent: int) -> None:
    """What became our child and has ended; the agent's own end is waited for elsewhere."""
    for pid in children_of(os.getpid()):
        if pid != agent:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def end_descendants(agent: subprocess.Popen[bytes] | None) -> None:
    """The agent first, then all others, as often as new ones turn up."""
    if agent is not None:
        agent.kill()
        agent.wait()
    until_s = time.monotonic() + END_WITHIN_S
    while (left := children_of(os.getpid())) and time.monotonic() < until_s:
        for pid in [each for child in left for each in tree_of(child)]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main())
