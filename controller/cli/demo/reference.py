"""The uninterrupted run that the preempted job is compared with.

Rule: the same command, world size, threads and schedule of accumulation steps; no controller, no agent, no
checkpoint.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotenant.controller.cli.demo.measuring import job_environment
from cotenant.controller.cli.demo.plan import MeasuredJob
from cotenant.controller.wire.clients import AttemptView
from cotenant.profiler.ranks import RankCommand, Ranks, Seat

POLL_S = 0.05


class ReferenceFailed(Exception):
    """The uninterrupted run did not finish; the text says why."""


def schedule_of(attempts: Sequence[AttemptView]) -> str:
    """Which s applied from which step on, over all attempts: `0:1,57:2`."""
    steps: dict[int, int] = {}
    for attempt in attempts:
        steps = {start: s for start, s in steps.items() if start < attempt.start_step}
        steps[attempt.start_step] = attempt.accumulation_steps
    return ",".join(f"{start}:{s}" for start, s in sorted(steps.items()))


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
    command = RankCommand(
        argv=measured.job.argv(sys.executable, measured.steps, result),
        workdir=os.getcwd(),
        env={**job_environment(), **(env or {})},
    )
    seats = [Seat(cores=cores) for cores in slots[: measured.job.workers]]
    deadline_s = time.monotonic() + timeout_s
    with Ranks(command, seats, folder, schedule) as ranks:
        while None in ranks.exit_codes():
            if time.monotonic() > deadline_s:
                raise ReferenceFailed(f"{measured.job.name}: no end after {timeout_s:.0f} s")
            failed = [rank for rank, code in enumerate(ranks.exit_codes()) if code]
            if failed:
                break
            time.sleep(POLL_S)
            while select.select([ranks.inbox], [], [], 0)[0]:
                ranks.inbox.recv(65536)  # The ranks report their steps; nobody needs them here.
        codes = ranks.exit_codes()
        if any(codes):
            rank = next(i for i, code in enumerate(codes) if code)
            raise ReferenceFailed(f"{measured.job.name}: rank {rank} failed: {ranks.last_line(rank)}")
    sha256: str = json.loads(result.read_text())["parameters_sha256"]
    return sha256
