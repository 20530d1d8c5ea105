"""Runs a training script as `__main__` and bears witness that no other live process is the same rank.

`python witness.py FOLDER SCRIPT [ARGUMENT ...]`. Each rank of a job holds a lock for as long as it lives
and notes each start in FOLDER. A second live rank of another attempt cannot get the lock: it says so in
the notes and fails, so that the whole job fails and nobody can overlook it. One that is stopped (its host is
frozen, and its lease over) does not run: the newer rank notes that it stands `beside` it and goes on.

With COTENANT_WITNESS_GATE=STEPS:FILE the rank waits after so many optimizer steps of its own until FILE, or
FILE-aN for attempt N, is there, so that what a test does to a running job never comes too late. With
COTENANT_WITNESS_PACE=SECONDS each step takes at least so long until FILE is there. Neither changes a number.
"""

from __future__ import annotations

import fcntl
import os
import runpy
import sys
import time
from pathlib import Path

TWICE = 98
POLL_S = 0.02


def main() -> None:
    folder, script = Path(sys.argv[1]), sys.argv[2]
    job, attempt = os.environ.get("COTENANT_JOB", "reference"), os.environ.get("COTENANT_ATTEMPT", "0")
    name = f"{job}-r{os.environ.get('RANK', '0')}"
    # Not inherited by what the script may start: the kernel drops the lock with this very process.
    lock = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with (folder / f"{name}.starts").open("a+") as notes:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            notes.seek(0)
            word = judged(notes.read().splitlines(), int(attempt))
            notes.write(f"{word} {os.getpid()} {attempt} {time.time()}\n")
            if word != "beside":
                sys.exit(TWICE)
        notes.write(f"start {os.getpid()} {attempt} {time.time()}\n")
    gate = os.environ.get("COTENANT_WITNESS_GATE", "")
    if gate:
        close_gate(int(gate.partition(":")[0]), Path(gate.partition(":")[2]), folder / f"{name}.starts")
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def judged(notes: list[str], attempt: int) -> str:
    """Of a rank that finds another alive: `late` if that is of a later attempt, `beside` if all before it
    stand still (their host is frozen), else `twice`."""
    ran = [words for words in map(str.split, notes) if words[0] == "start"]
    if any(int(words[2]) > attempt for words in ran):
        return "late"
    return "twice" if any(runs(int(words[1])) for words in ran) else "beside"


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TtZX"
    except OSError:
        return False


def close_gate(steps: int, file: Path, notes: Path) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    done, attempt = 0, os.environ["COTENANT_ATTEMPT"]
    pace_s = float(os.environ.get("COTENANT_WITNESS_PACE", "0"))
    for_attempt = file.with_name(f"{file.name}-a{attempt}")

    def step_done(*_: object) -> None:
        nonlocal done
        done += 1
        if pace_s and not file.exists():
            time.sleep(pace_s)
        if done == steps:
            with notes.open("a") as opened:
                opened.write(f"gate {os.getpid()} {attempt} {time.time()}\n")
        while 0 < steps <= done and not (file.exists() or for_attempt.exists()):
            time.sleep(POLL_S)

    register_optimizer_step_post_hook(step_done)


if __name__ == "__main__":
    main()
