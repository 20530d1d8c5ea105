"""An MPS control daemon of the suite's own, for one GPU, in a private pipe directory.

Rule: whoever starts one ends it, by its process id, whatever happens. It is asked as the product asks,
through `mps.channel`, and replies are read by `mps.health`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Final

from cotenant.mps import answers
from cotenant.mps.channel import ChannelError, ControlChannel
from cotenant.mps.detection import CONTROL
from cotenant.mps.environment import MemoryLimit, client_environment, drop_mps_variables
from hwtests.busy import Busy, LoadFailed
from hwtests.device import Device

QUERY_TIMEOUT_S: Final = 10.0
QUIT_S: Final = 5
START_TIMEOUT_S: Final = 15.0
ATTACH_S_MAX: Final = 90.0
"""For torch to be imported and a context to be made, server and all."""


_CHATTER: Final = re.compile(r"Accepting connection|NEW UI|UI closed|Cmd:|Unknown command")


class MpsFailed(Exception):
    """The daemon does not do what it should; the text has its own words."""


class PrivateMps:
    """Start on entry, quit on exit."""

    def __init__(self, device_uuid: str = "") -> None:
        """`device_uuid`: the one GPU it serves; empty: whatever it finds (there may be none)."""
        self._uuid = device_uuid
        self.folder = Path()
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrivateMps:
        # Short, because the control socket in it must fit a Unix socket's address.
        self.folder = Path(tempfile.mkdtemp(prefix="hw-mps-", dir="/tmp"))
        self.pipes, self.logs = self.folder / "p", self.folder / "l"
        self.pipes.mkdir(mode=0o700)
        self.logs.mkdir(mode=0o700)
        try:
            # In the foreground it is our own child, and is reaped; older ones leave no file with their id.
            with (self.logs / "foreground.log").open("wb") as log:
                self._daemon = subprocess.Popen(
                    (CONTROL, "-f"),
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._await_answer(self._daemon)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the control daemon."""
        assert self._daemon is not None, "it has not been started"
        return self._daemon.pid

    def _await_answer(self, daemon: subprocess.Popen[bytes]) -> None:
        until_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.ask("get_server_list")
                return
            except MpsFailed as problem:
                if daemon.poll() is not None:
                    said = self.log("control").strip()[-300:]
                    raise MpsFailed(f"{CONTROL} -f: exit {daemon.returncode}: {said}") from None
                if time.monotonic() > until_s:
                    raise MpsFailed(f"it did not answer in {START_TIMEOUT_S:.0f} s: {problem}") from None
                time.sleep(0.1)

    # Queries.

    def ask(self, command: str) -> str:
        """The daemon's answer, in its own words.

        Raises:
            MpsFailed: no whole answer, or none in time.
        """
        try:
            return self.channel.ask(command)
        except (ChannelError, answers.Incomplete) as error:
            raise MpsFailed(f"{command}: {error}") from None

    @property
    def channel(self) -> ControlChannel:
        """As the product asks it."""
        return ControlChannel(pipe_directory=PurePosixPath(self.pipes), program=CONTROL)

    def ask_unguarded(self, command: str) -> subprocess.CompletedProcess[str]:
        """One bare query, with neither lock nor proof: what becomes of queries side by side."""
        return self._run((CONTROL,), f"{command}\n")

    def servers(self) -> tuple[int, ...]:
        return answers.pids(self.ask("get_server_list"))

    def clients(self) -> tuple[int, ...]:
        """Of all servers."""
        return tuple(pid for server in self.servers() for pid in self._clients_of(server))

    def _clients_of(self, server: int) -> tuple[int, ...]:
        try:
            return answers.pids(self.ask(f"get_client_list {server}"))
        except answers.Rejected:  # It ended in between.
            return ()

    def await_clients(self, *pids: int, timeout_s: float = 30.0) -> None:
        """Wait until these processes are its clients.

        Raises:
            MpsFailed: one is not, and so runs without MPS.
        """
        until_s = time.monotonic() + timeout_s
        while missing := set(pids) - set(self.clients()):
            if time.monotonic() > until_s:
                raise MpsFailed(f"{sorted(missing)} did not attach: {self.log('control')[-500:]}")
            time.sleep(0.2)

    def log(self, name: str) -> str:
        """`control` or `server`."""
        paths = [self.logs / f"{name}.log"]
        if name == "control":  # Where the daemon writes depends on how it was started.
            paths.append(self.logs / "foreground.log")
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def environment(
        self, memory: Sequence[MemoryLimit] = (), percentage: float | None = None
    ) -> dict[str, str]:
        """What a client has beyond the device's own environment."""
        return client_environment(PurePosixPath(self.pipes), memory, percentage)

    # Its life.

    def close(self) -> None:
        """Quit; then end it and its servers by their ids, if they are still what we started."""
        if not self.folder.name:
            return
        servers: tuple[int, ...] = ()
        with contextlib.suppress(MpsFailed, answers.Rejected, subprocess.TimeoutExpired, OSError):
            servers = self.servers()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._run((CONTROL,), f"quit -t {QUIT_S}\n", timeout_s=QUIT_S + QUERY_TIMEOUT_S)
        for pid in servers:
            _end(pid)
        if self._daemon is not None:
            try:
                self._daemon.wait(QUIT_S)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait(QUIT_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(
        self, words: tuple[str, ...], said: str, timeout_s: float = QUERY_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        # To files, not pipes: the daemon would inherit a pipe and keep it open for ever.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            done = subprocess.run(
                words,
                input=said,
                stdout=out,
                stderr=err,
                env=self._environment(),
                timeout=timeout_s,
                text=True,
                check=False,
            )
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(words, done.returncode, out.read(), err.read())

    def _environment(self) -> dict[str, str]:
        plain = {
            name: value
            for name, value in drop_mps_variables(os.environ).items()
            if name != "CUDA_VISIBLE_DEVICES"
        }
        visible = {"CUDA_VISIBLE_DEVICES": self._uuid} if self._uuid else {}
        directories = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipes), "CUDA_MPS_LOG_DIRECTORY": str(self.logs)}
        return {**plain, **visible, **directories}


def attach_problem(device: Device) -> str:
    """Why a process that was told of a daemon does not become its client; empty if it does.

    With the last words of the load, of the daemon and of its server, for whoever has to find out.
    """
    try:
        with PrivateMps(device.uuid) as daemon, Busy("idle", device, env=daemon.environment()) as load:
            try:
                said = load.until(lambda words: "ready" in words or "error" in words, ATTACH_S_MAX)
                if "error" in said:
                    raise MpsFailed(str(said["error"]))
                daemon.await_clients(load.pid)
            except (LoadFailed, MpsFailed) as problem:
                logs = (" / ".join(telling(daemon.log(name))) for name in ("server", "control"))
                return " | ".join((str(problem), *(log[-400:] for log in logs if log)))
    except (MpsFailed, OSError) as problem:
        return str(problem)
    return ""


def telling(log: str) -> list[str]:
    """What a log says beside the questions that were asked."""
    return [line.strip() for line in log.splitlines() if line.strip() and not _CHATTER.search(line)]


def versions(daemon: PrivateMps) -> str:
    """What control.log says of its version; empty where it says nothing."""
    found = re.search(r"binary version:?\s*(\d+)", daemon.log("control"))
    return found[1] if found else ""


def _end(pid: int) -> None:
    """Kill it, if it is one of MPS's programs and not a stranger with its number."""
    if pid <= 1:
        return
    try:
        name = os.readlink(f"/proc/{pid}/exe").rpartition("/")[2]
        if name.startswith("nvidia-cuda-mps"):
            os.kill(pid, signal.SIGKILL)
    except OSError:
        return
