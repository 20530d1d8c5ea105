"""Ranks as plain processes, with the variables that torch reads: no controller, no agent, no checkpoint.

Rule: whatever happens, none is left running.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final

from cotenant.checkpoint.talk.protocol import ENV_ACCUMULATION_SCHEDULE
from cotenant.controller.cli.demo.measuring import job_environment
from cotenant.controller.cli.demo.plan import MeasuredJob

POLL_S: Final = 0.05


class ReferenceFailed(Exception):
    """The uninterrupted run did not finish; the text says why."""


def run_uninterrupted(
    measured: MeasuredJob,
    slots: Sequence[tuple[int, ...]],
    schedule: str,
    folder: Path,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
) -> str:
    """Train once from the first to the last step, with `env` beside the demo's environment; returns the
    parameters' SHA-256.

    Raises:
        ReferenceFailed: a rank failed, or the time ran out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "result.json"
    argv = measured.job.argv(sys.executable, measured.steps, result)
    given = {**job_environment(), **(env or {}), ENV_ACCUMULATION_SCHEDULE: schedule}
    run_ranks(argv, slots[: measured.job.workers], folder, timeout_s, given)
    sha256: str = json.loads(result.read_text())["parameters_sha256"]
    return sha256


def run_ranks(
    argv: Sequence[str],
    slots: Sequence[tuple[int, ...]],
    folder: Path,
    timeout_s: float,
    env: Mapping[str, str],
) -> None:
    """Runs one plain process per slot, on its cores, until all have ended.

    Raises:
        ReferenceFailed: one failed, or the time ran out.
    """
    port = _free_port()
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(PlainRank(argv, rank, slots, folder, {**env, "MASTER_PORT": str(port)}))
            for rank in range(len(slots))
        ]
        deadline_s = time.monotonic() + timeout_s
        while any(rank.process.poll() is None for rank in ranks):
            if any(rank.process.returncode for rank in ranks):
                break
            if time.monotonic() > deadline_s:
                raise ReferenceFailed(f"{Path(argv[1]).name}: no end after {timeout_s:.0f} s")
            time.sleep(POLL_S)
        for number, rank in enumerate(ranks):
            if rank.process.returncode:
                raise ReferenceFailed(f"{Path(argv[1]).name}: rank {number} failed: {rank.last_line()}")


class PlainRank:
    """A rank in a process group that ends with it."""

    def __init__(
        self,
        argv: Sequence[str],
        rank: int,
        slots: Sequence[tuple[int, ...]],
        folder: Path,
        env: Mapping[str, str],
    ) -> None:
        self._output = folder / f"rank-{rank}.out"
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(slots), "LOCAL_WORLD_SIZE": len(slots)}
        threads = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": str(len(slots[rank]))}
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                argv,
                env={**env, **threads, **{name: str(value) for name, value in place.items()}},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with suppress(ProcessLookupError):  # Already gone: its exit code tells.
            os.sched_setaffinity(self.process.pid, slots[rank])

    def __enter__(self) -> PlainRank:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def last_line(self) -> str:
        lines = self._output.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it printed nothing"


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
