"""A guest of a job that names a bound, submitted as people do: nothing is declared, and no pair was measured.

The loader-bound job starts alone on the only slot, and the guest is submitted as soon as that job trains.
Nothing but `--share max=` is said of either. The guest waits until the job's memory is known, and is tried.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId
from cotenant.controller.wire import clients as wire
from experiments.shared.live.beside import (
    ALONE_AFTER,
    STEPS_WITHIN_S,
    TRAINING,
    Beside,
    Lengths,
    Stretch,
    await_steps,
    read_steps,
    wait_for,
)
from experiments.shared.live.run import WentWrong

PAIR: Final = "loader:compute"
BOUND: Final = 1.1
PROFILE_S: Final = 60.0
"""As a controller has it by default."""
ADMITTED_WITHIN_S: Final = 180.0
AFTER_GUEST_S: Final = 2.0
"""From then on no reported step is of the time with the guest."""
LOOK_S: Final = 0.25


def run_undeclared(
    client: Client, endpoint: str, folder: Path, lengths: Lengths
) -> tuple[Beside, dict[str, Any]]:
    """One run on a cluster of the caller's with one slot. The job is alone after its guest was cancelled.

    Returns:
        What the two did, and how long and why the guest waited.

    Raises:
        WentWrong: one of them made no steps, or the guest was not admitted.
    """
    logs = [folder / f"steps-{number}" for number in (1, 2)]
    kinds = PAIR.split(":")
    first = _submit(endpoint, kinds[0], logs[0], f"--share=max={BOUND:g}")
    await_steps(client, first, logs[0], ALONE_AFTER)
    second = _submit(endpoint, kinds[1], logs[1])
    asked_s = time.monotonic()
    reason = _await_admission(client, second)
    waited_s = time.monotonic() - asked_s
    await_steps(client, second, logs[1], 1)
    together = Stretch(wait_for(lengths.settle_s), wait_for(lengths.together_s))
    stands = client.ask(wire.ShowJob(job_id=first)).job.bound
    _cancel(client, second)
    alone = Stretch(wait_for(AFTER_GUEST_S), wait_for(lengths.alone_s))
    mine, guest = (read_steps(log) for log in logs)
    _cancel(client, first)
    return Beside(mine, guest, alone, together, stands), {"waited_s": waited_s, "reason": reason}


def _cancel(client: Client, job_id: JobId) -> None:
    client.ask(wire.ChangeJobs(verb="cancel", job_ids=(job_id,)))
    client.ask(wire.WaitJobs(job_ids=(job_id,), timeout_s=STEPS_WITHIN_S))


def _submit(endpoint: str, kind: str, log: Path, *options: str) -> JobId:
    program = Path(sys.executable).with_name("cotenant")
    command = [program, "submit", "--endpoint", endpoint, *options, "--", sys.executable, TRAINING]
    done = subprocess.run(
        [*map(str, command), kind, log.name[-1], str(log)],
        cwd=log.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise WentWrong(f"cotenant submit: {done.stderr.strip()}")
    return JobId("".join(filter(str.isdecimal, done.stdout.split()[-1])))


def _await_admission(client: Client, job_id: JobId) -> str:
    """Returns the last reason for which the job waited, once it has a device; empty: it did not wait."""
    reason, deadline_s = "", time.monotonic() + ADMITTED_WITHIN_S
    while (job := client.ask(wire.ShowJob(job_id=job_id)).job).phase == "queued":
        told = client.ask(wire.Explain(job_id=job_id)).explanation
        reason = told.reason if told.phase == "queued" else reason
        if time.monotonic() > deadline_s:
            raise WentWrong(f"{job.name} was not admitted within {ADMITTED_WITHIN_S:.0f} s: {reason}")
        time.sleep(LOOK_S)
    return reason
