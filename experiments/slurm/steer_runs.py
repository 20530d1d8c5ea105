"""One arm of the comparison: a private Slurm, what is submitted to it in real time, and what its accounts say
of it.

Submitted are jobs of a dozen kinds that come again and again, three times as much work as fits. Time is
scaled: a second here stands for ten minutes. A job sleeps for its length; its limit, which Slurm takes in
minutes, is two to six minutes for each of its seconds, as people overestimate. That makes every limit far too
long for Slurm's backfilling, by the same factor in each arm.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from tests.building.slurm import LocalSlurm

KINDS: Final = 12
MEDIAN_S: Final = 9.0
SPREAD_OF_KINDS: Final = 1.0
SPREAD_WITHIN: Final = 0.35
LENGTHS_S: Final = (1.0, 60.0)
SIZES: Final = (1, 1, 1, 2, 2, 4)

NODES: Final = 4
CPUS: Final = 4
"""Of a node."""
INTERVAL: Final = "2s"
MULTIFACTOR: Final = {
    "PriorityType": "priority/multifactor",
    "PriorityWeightAge": "1000",
    "PriorityWeightJobSize": "1000",
    "PriorityWeightFairshare": "1000",
    "PriorityMaxAge": "17",  # Minutes: the default's seven days, scaled.
    "PriorityCalcPeriod": "1",
}
ARMS: Final = {
    "fifo": {"PriorityType": "priority/basic"},
    "multifactor": MULTIFACTOR,
    "favor-small": MULTIFACTOR | {"PriorityFavorSmall": "YES"},
}
"""And an arm for each order that steers one with multifactor."""
STARTING: Final = threading.Lock()
"""One after the other: a start needs processors, the jobs need none."""
DONE_S_MAX: Final = 900.0


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    name: str
    length_s: float
    limit_min: int
    cpus: int


def arrivals(seed: int, *, cpus: int, load: float, window_s: float) -> list[Arrival]:
    """As many as bring `load` times what so many processors can do within the window."""
    random = Random(seed)
    kinds = [
        (
            random.lognormvariate(math.log(MEDIAN_S), SPREAD_OF_KINDS),
            random.choice(SIZES),
            random.uniform(2, 6),
        )
        for _ in range(KINDS)
    ]
    drawn: list[tuple[str, float, int, int]] = []
    work = 0.0
    while work < load * cpus * window_s:
        kind = random.randrange(KINDS)
        middle_s, size, over = kinds[kind]
        length_s = min(max(middle_s * random.lognormvariate(0.0, SPREAD_WITHIN), LENGTHS_S[0]), LENGTHS_S[1])
        drawn.append((f"kind{chr(97 + kind)}-{len(drawn)}", length_s, math.ceil(middle_s * over), size))
        work += length_s * size
    times = sorted(random.uniform(0.0, window_s) for _ in drawn)
    return [
        Arrival(at_s=at_s, name=name, length_s=length_s, limit_min=limit, cpus=size)
        for at_s, (name, length_s, limit, size) in zip(times, drawn, strict=True)
    ]


def run_arm(folder: Path, arm: str, jobs: Sequence[Arrival], gate: threading.Barrier) -> list[dict[str, Any]]:
    """A row per job; all arms begin when all are ready."""
    slurm = LocalSlurm(
        folder,
        nodes=NODES,
        cpus=CPUS,
        memory_mib=4000,
        accounting=True,
        settings=ARMS.get(arm, MULTIFACTOR),
        partitions=("main Default=YES",),
    )
    steerer: subprocess.Popen[bytes] | None = None
    try:
        with STARTING:
            slurm.start()
        if arm not in ARMS:
            steerer = _steer(slurm, arm)
        gate.wait()
        began_s = time.monotonic()
        for job in jobs:
            time.sleep(max(began_s + job.at_s - time.monotonic(), 0.0))
            options = (f"--job-name={job.name}", f"--time={job.limit_min}", f"--ntasks={job.cpus}")
            slurm.submit(*options, "--output=/dev/null", command=f"sleep {job.length_s:.2f}")
        return _ended(slurm, len(jobs))
    finally:
        if steerer is not None:
            steerer.send_signal(signal.SIGTERM)
            steerer.wait()
        slurm.stop()


def _steer(slurm: LocalSlurm, order: str) -> subprocess.Popen[bytes]:
    env = {**slurm.env, "XDG_STATE_HOME": str(slurm.folder / "xdg")}
    program = "import sys; from cotenant.controller.cli.main import main; sys.exit(main())"
    words = ("steer", "slurm", "--order", order, "--interval", INTERVAL)
    log = (slurm.folder / "log" / "steer.log").open("ab")
    with log:
        process = subprocess.Popen((sys.executable, "-c", program, *words), env=env, stdout=log, stderr=log)
    slurm.await_said("squeue", "-h", "-n", "cotenant-steer", "-o", "%T", wanted="PENDING")
    return process


def _ended(slurm: LocalSlurm, count: int) -> list[dict[str, Any]]:
    deadline_s = time.monotonic() + DONE_S_MAX
    words = ("sacct", "-a", "-X", "-n", "-P", "-S", "now-2hours", "-E", "now", "-s", "CD")
    fields = ("JobName", "Submit", "Start", "End")
    slurm.env["SLURM_TIME_FORMAT"] = "%s"
    while len(rows := slurm.run(*words, "-o", ",".join(fields)).splitlines()) < count:
        assert time.monotonic() < deadline_s, f"{len(rows)} of {count} jobs have ended\n{slurm.said()}"
        time.sleep(2.0)
    found = []
    for row in rows:
        name, submitted, started, ended = row.split("|")
        waited_s, ran_s = int(started) - int(submitted), int(ended) - int(started)
        found.append({"job": name, "submitted_s": int(submitted), "waited_s": waited_s, "ran_s": ran_s})
    return found
