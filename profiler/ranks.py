"""The worker processes of one profiling run.

Rule: whatever happens, `close` leaves none of them alive, and ends nothing it did not start: what belongs
to the run carries the run's own socket path in its environment, wherever it was re-parented to.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import TracebackType

import msgspec
import psutil

from cotenant.controller.wire import job
from cotenant.profiler.indicators.cpu import Usage

_OUTPUT_BYTES_MAX = 16 * 1024 * 1024
_TAIL_BYTES = 4096
_KILL_TIMEOUT_S = 10.0
_KILL_ROUNDS_MAX = 5
_SOCKET_NAME = "supervisor.sock"


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank runs: its cores, and variables of its own (such as CUDA_VISIBLE_DEVICES)."""

    cores: tuple[int, ...]
    env: dict[str, str] = {}

    def __post_init__(self) -> None:
        if not self.cores:
            raise ValueError("a rank needs at least one core")


class RankCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank starts, and in which environment. Nothing else is inherited."""

    argv: tuple[str, ...]
    workdir: str
    env: dict[str, str]


class Ranks:
    """One process per seat, started together, ended together."""

    def __init__(self, command: RankCommand, seats: Sequence[Seat], folder: Path, schedule: str) -> None:
        self._cleanup = ExitStack()
        self.folder = folder
        self._sign = os.fsencode(f"{job.ENV_SOCKET}={folder / _SOCKET_NAME}")
        self.processes: list[subprocess.Popen[bytes]] = []
        self.usages: list[Usage] = []
        try:
            self.inbox = self._cleanup.enter_context(_bound_socket(folder / _SOCKET_NAME))
            port = _free_port()
            for rank, seat in enumerate(seats):
                variables = _rank_env(command.env, rank, seats, port, folder, schedule)
                self._start(command, rank, seat, variables)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, command: RankCommand, rank: int, seat: Seat, variables: Mapping[str, str]) -> None:
        with self.output_path(rank).open("ab") as output:
            process = subprocess.Popen(
                command.argv,
                cwd=command.workdir,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        with suppress(ProcessLookupError):  # Already gone: `exit_codes` tells.
            os.sched_setaffinity(process.pid, seat.cores)
        self.usages.append(Usage((process.pid,)))

    def exit_codes(self) -> tuple[int | None, ...]:
        return tuple(process.poll() for process in self.processes)

    def output_path(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.out"

    def last_line(self, rank: int) -> str:
        """The last thing a rank printed that is not blank; for an error message."""
        with self.output_path(rank).open("rb") as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = output.read().decode("utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")

    def bound_output(self) -> None:
        """Empty an output file that grew too large; the ranks append, so they go on at its new end."""
        for rank in range(len(self.processes)):
            if self.output_path(rank).stat().st_size > _OUTPUT_BYTES_MAX:
                os.truncate(self.output_path(rank), 0)

    def close(self) -> None:
        """End every rank and descendant. Safe to call twice."""
        for rank in self.processes:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait(timeout=_KILL_TIMEOUT_S)
        for _ in range(_KILL_ROUNDS_MAX):  # A process may have forked while we looked.
            found = _carrying(self._sign)
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.kill()  # Checks the start time first, so a reused id is left alone.
            if not found:
                break
            psutil.wait_procs(found, timeout=_KILL_TIMEOUT_S)
        self._cleanup.close()


def _carrying(sign: bytes) -> list[psutil.Process]:
    """Live processes with this in their environment, which children inherit wherever they go."""
    found = []
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):  # Gone meanwhile, or another user's.
            process = psutil.Process(pid)
            carries = sign in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if carries and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _rank_env(
    base: Mapping[str, str], rank: int, seats: Sequence[Seat], port: int, folder: Path, schedule: str
) -> dict[str, str]:
    temporary = folder / f"tmp-{rank}"
    temporary.mkdir()
    return {
        **{name: value for name, value in base.items() if name not in job.ENVIRONMENT},
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(len(seats)),
        "LOCAL_WORLD_SIZE": str(len(seats)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": str(len(seats[rank].cores)),
        "PYTHONUNBUFFERED": "1",
        # The ranks are killed, not asked to leave: what they keep in temporary files goes with our folder.
        "TMPDIR": str(temporary),
        job.ENV_PROTOCOL: str(job.PROTOCOL_VERSION),
        job.ENV_JOB: "profile",
        job.ENV_ATTEMPT: "1",
        job.ENV_CHECKPOINT_ROOT: str(folder / "checkpoints"),
        job.ENV_SOCKET: str(folder / _SOCKET_NAME),
        job.ENV_RESUME: "none",
        job.ENV_ACCUMULATION_STEPS: "1",
        job.ENV_ACCUMULATION_SCHEDULE: schedule,
        **seats[rank].env,
    }


def _bound_socket(path: Path) -> socket.socket:
    inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        inbox.bind(str(path))
    except OSError:
        inbox.close()
        raise
    return inbox


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
